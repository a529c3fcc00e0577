"""Exact multi-marginal optimal-transport losses for contrastive learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from warnings import catch_warnings, filterwarnings

if TYPE_CHECKING:
    from pathlib import Path

    from tricouple import geometry, ot, shaping
    from tricouple.losses import (
        DBOT,
        IOT,
        BothDirections,
        FusedGromov,
        InfoNCE,
        InvaSpread,
        NegMMIOT,
        PushPull,
        VICReg,
    )
    from tricouple.relations import pair_views
    from tricouple_lab.experiments.encoder import TrainedEncoder

__version__ = "0.1.0"

__all__ = [
    "DBOT",
    "IOT",
    "BothDirections",
    "FusedGromov",
    "InfoNCE",
    "InvaSpread",
    "NegMMIOT",
    "PushPull",
    "VICReg",
    "geometry",
    "load_encoder",
    "ot",
    "pair_views",
    "shaping",
]


def load_encoder(run: Path | str) -> TrainedEncoder:
    """Model, transform and class names of a run of ``tricouple train``, ``clip`` or ``text``.

    The model of an image-text run embeds images; its method ``texts`` embeds texts beside them.
    That of a text run takes a list of texts.

    Its data are not needed. A run that is not finished gives the weights of its last epoch.

    Args:
        run: The folder of the run.

    Raises:
        ValueError: If this is no run, or its weights are damaged.
        ImportError: If a package is missing; it names the extra that brings it.

    Example:
        >>> model, transform, classes = load_encoder("runs/digits-scl-…")  # doctest: +SKIP
        >>> model(transform("photo.jpg")[None])  # doctest: +SKIP
        tensor([[ 0.8, …]])
        >>> load_encoder("runs/text-…").model(["where is my card?"])  # doctest: +SKIP
        tensor([[ 0.1, …]])
    """
    try:
        from tricouple_lab.experiments import encoder
    except ModuleNotFoundError as error:
        raise ImportError(
            f"load_encoder needs {error.name}: pip install '.[train]' in a clone of tricouple"
        ) from error
    return encoder.load_encoder(run)


def __getattr__(name: str) -> object:
    # Imported on first use: `tricouple --help` runs this file and should not wait for torch, which
    # says on its first import that it has no NumPy. Nothing here needs it.
    with catch_warnings():
        filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
        if name in ("geometry", "ot", "shaping"):
            return import_module(f"tricouple.{name}")
        if name in __all__:
            home = "relations" if name == "pair_views" else "losses"
            return getattr(import_module(f"tricouple.{home}"), name)
    raise AttributeError(f"module 'tricouple' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
