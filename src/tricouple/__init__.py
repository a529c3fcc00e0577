"""Exact multi-marginal optimal-transport losses for contrastive learning."""

from tricouple import geometry, ot
from tricouple.losses import IOT, NegMMIOT, PushPull
from tricouple.views import pair_views

__version__ = "0.1.0"

__all__ = ["IOT", "NegMMIOT", "PushPull", "geometry", "ot", "pair_views"]
