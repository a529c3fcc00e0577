"""Exact multi-marginal optimal-transport losses for contrastive learning."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING
from warnings import catch_warnings, filterwarnings

if TYPE_CHECKING:
    from pathlib import Path

    from tricouple import geometry, ot, retrieval, shaping
    from tricouple.bags import match_bags
    from tricouple.caching import cached
    from tricouple.losses import (
        DBOT,
        IOT,
        BothDirections,
        FusedGromov,
        InfoNCE,
        InvaSpread,
        MultiModalIOT,
        NegMMIOT,
        PushPull,
        SigLIP,
        VICReg,
    )
    from tricouple.relations.views import class_weights, pair_views
    from tricouple_lab.runs.encoder import Encoder

__version__ = "0.1.0"

__all__ = [
    "DBOT",
    "IOT",
    "BothDirections",
    "FusedGromov",
    "InfoNCE",
    "InvaSpread",
    "MultiModalIOT",
    "NegMMIOT",
    "PushPull",
    "SigLIP",
    "VICReg",
    "cached",
    "class_weights",
    "geometry",
    "load_encoder",
    "match_bags",
    "ot",
    "pair_views",
    "retrieval",
    "shaping",
]


def load_encoder(run: Path | str, which: str = "last") -> Encoder:
    """Load the encoder of a run of ``tricouple train``, ``clip`` or ``text``; no data are needed.

    Args:
        run: The folder of the run.
        which: ``last``, or ``best`` by the validation metric.

    Raises:
        ValueError: If this is no finished run, or its files are damaged.
        ImportError: If a package is missing; it names the extra that has it.

    Example:
        >>> encoder = load_encoder("runs/digits-scl-…")  # doctest: +SKIP
        >>> encoder.embed(["photo.jpg"])  # doctest: +SKIP
        array([[ 0.8, …]])
        >>> model, transform, classes = encoder  # doctest: +SKIP
        >>> model(transform("photo.jpg")[None])  # doctest: +SKIP
        tensor([[ 0.8, …]])
    """
    try:
        from tricouple_lab.runs.encoder import load_encoder as load
    except ModuleNotFoundError as error:
        raise ImportError(
            f"load_encoder needs {error.name}: pip install 'tricouple[train]'"
        ) from error
    return load(run, which)


def __getattr__(name: str) -> object:
    # Imported on first use: `tricouple --help` runs this file and should not wait for torch, which
    # says on its first import that it has no NumPy. Nothing here needs it.
    with catch_warnings():
        filterwarnings("ignore", message="Failed to initialize NumPy", category=UserWarning)
        if name in ("geometry", "ot", "retrieval", "shaping"):
            return import_module(f"tricouple.{name}")
        if name in __all__:
            homes = {"match_bags": "bags", "cached": "caching", "class_weights": "relations.views"}
            home = homes.get(name, "relations" if name == "pair_views" else "losses")
            return getattr(import_module(f"tricouple.{home}"), name)
    raise AttributeError(f"module 'tricouple' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
