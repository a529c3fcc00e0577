"""Train, evaluate and compare encoders with the losses of tricouple: the ``tricouple`` command."""

from typing import Any

__all__ = ["load_encoder"]


def __getattr__(name: str) -> Any:
    # Imported on first use: `tricouple --help` runs this file and does not wait for torch.
    if name == "load_encoder":
        from tricouple_lab.runs.encoder import load_encoder

        return load_encoder
    raise AttributeError(f"module 'tricouple_lab' has no attribute {name!r}")
