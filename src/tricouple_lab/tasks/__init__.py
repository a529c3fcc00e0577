"""What can be learned: images, image-text, text, the synthetic mixture."""

from tricouple_lab.tasks.base import task_of

__all__ = ["task_of"]
