"""Entropic couplings of two and three marginals, with exact gradients."""

from tricouple.ot.engine import compiled
from tricouple.ot.pairwise import PairPlan, sinkhorn
from tricouple.ot.triplet import TripletPlan, triplet_sinkhorn

__all__ = ["PairPlan", "TripletPlan", "compiled", "sinkhorn", "triplet_sinkhorn"]
