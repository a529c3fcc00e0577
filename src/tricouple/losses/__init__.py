"""Losses, one file each, with one call signature."""

from tricouple.losses.iot import IOT
from tricouple.losses.neg_mmiot import NegMMIOT
from tricouple.losses.push_pull import PushPull

__all__ = ["IOT", "NegMMIOT", "PushPull"]
