"""The weights of a run are kept alike in every kind of run."""

from tricouple.experiments.runs.trained import Trained, load_trained, save_trained

__all__ = ["Trained", "load_trained", "save_trained"]
