"""Who is whose positive and negative: identities or triplets → counts and target marginals.

Every setting of the paper is one relation (an *identity* for each sample: its class, its source
instance, its pair number), with admissible triplets

    A = {(i, j, k): id(i) = id(j), id(i) ≠ id(k)},   entries distinct within one set.

The target couplings are uniform on A or on its projections, and are never built.
"""

from tricouple.relations.identities import Identities, adjacent_views, pair_views
from tricouple.relations.listed import ListedTriplets, MinedPairs
from tricouple.relations.target import PairTarget, Relation, TargetPairs, TripletTarget

__all__ = [
    "Identities",
    "ListedTriplets",
    "MinedPairs",
    "PairTarget",
    "Relation",
    "TargetPairs",
    "TripletTarget",
    "adjacent_views",
    "pair_views",
]
