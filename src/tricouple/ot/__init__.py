"""Entropic transport plans of two and three marginals, with exact gradients."""

from tricouple.ot import dense
from tricouple.ot.multimodal import MultiModalPlan, multimodal_sinkhorn
from tricouple.ot.native import compiled
from tricouple.ot.plans import PairPlan, TripletPlan, sinkhorn, triplet_sinkhorn

__all__ = [
    "MultiModalPlan",
    "PairPlan",
    "TripletPlan",
    "compiled",
    "dense",
    "multimodal_sinkhorn",
    "sinkhorn",
    "triplet_sinkhorn",
]
