"""Train, evaluate and compare encoders with the losses of tricouple: the ``tricouple`` command."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricouple_lab.experiments.encoder import load_encoder

__all__ = ["load_encoder"]


def __getattr__(name: str) -> object:
    # Imported on first use: `tricouple --help` runs this file and should not wait for torch.
    if name == "load_encoder":
        from tricouple_lab.experiments import encoder

        return encoder.load_encoder
    raise AttributeError(f"module 'tricouple_lab' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
