"""Entropic transport plans of two and three marginals, with exact gradients."""

from tricouple.ot import dense
from tricouple.ot.native import compiled
from tricouple.ot.plans import PairPlan, TripletPlan, sinkhorn, triplet_sinkhorn

__all__ = ["PairPlan", "TripletPlan", "compiled", "dense", "sinkhorn", "triplet_sinkhorn"]
