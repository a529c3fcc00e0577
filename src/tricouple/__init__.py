"""Exact multi-marginal optimal-transport losses for contrastive learning."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tricouple import geometry, ot, shaping
    from tricouple.experiments.encoder import load_encoder
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

# Imported on first use: `tricouple --help` runs this file and should not have to wait for torch.
_HOMES = {
    "load_encoder": "tricouple.experiments.encoder",
    "pair_views": "tricouple.relations",
}


def __getattr__(name: str) -> object:
    if name in ("geometry", "ot", "shaping"):
        return import_module(f"tricouple.{name}")
    if name in __all__:
        return getattr(import_module(_HOMES.get(name, "tricouple.losses")), name)
    raise AttributeError(f"module 'tricouple' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
