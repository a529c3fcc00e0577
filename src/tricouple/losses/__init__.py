"""Losses, one file each, with one call signature."""

from tricouple.losses.both_directions import BothDirections
from tricouple.losses.dbot import DBOT
from tricouple.losses.fused_gromov import FusedGromov
from tricouple.losses.info_nce import InfoNCE
from tricouple.losses.inva_spread import InvaSpread
from tricouple.losses.iot import IOT
from tricouple.losses.multimodal import MultiModalIOT
from tricouple.losses.neg_mmiot import NegMMIOT
from tricouple.losses.push_pull import PushPull
from tricouple.losses.siglip import SigLIP
from tricouple.losses.vicreg import VICReg

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
]
