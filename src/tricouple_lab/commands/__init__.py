"""What the commands of the package do."""

from typing import Any

WHICH: dict[str, Any] = {  # of the option --which
    "choices": ("last", "best"),
    "default": "last",
    "help": "weights of the last epoch, as in the table of the run (default), or of the best one "
    "on validation data, which may be the one before training",
}
