"""Losses, one file each, with one call signature."""

from tricouple.losses.both_directions import BothDirections as BothDirections
from tricouple.losses.dbot import DBOT as DBOT
from tricouple.losses.fused_gromov import FusedGromov as FusedGromov
from tricouple.losses.info_nce import InfoNCE as InfoNCE
from tricouple.losses.inva_spread import InvaSpread as InvaSpread
from tricouple.losses.iot import IOT as IOT
from tricouple.losses.multimodal import MultiModalIOT as MultiModalIOT
from tricouple.losses.neg_mmiot import NegMMIOT as NegMMIOT
from tricouple.losses.push_pull import PushPull as PushPull
from tricouple.losses.siglip import SigLIP as SigLIP
from tricouple.losses.vicreg import VICReg as VICReg
