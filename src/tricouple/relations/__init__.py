"""Who is whose positive and negative: identities or triplets → counts and target marginals.

Every setting of the paper is one relation (an *identity* for each sample: its class, its source
instance, its pair number), with admissible triplets

    A = {(i, j, k): id(i) = id(j), id(i) ≠ id(k)},   entries distinct within one set.

The target couplings are uniform on A or on its projections, and are never built.
"""

from tricouple.relations.identities import Identities, adjacent_views, pair_views, view_pairs
from tricouple.relations.listed import ListedTriplets, MinedPairs
from tricouple.relations.targets import (
    PairTarget,
    PlacedRelation,
    Places,
    Relation,
    TargetPairs,
    TripletTarget,
)
from tricouple.relations.weighted import WeightedIdentities, by_class, exclude_own_

__all__ = [
    "Identities",
    "ListedTriplets",
    "MinedPairs",
    "PairTarget",
    "PlacedRelation",
    "Places",
    "Relation",
    "TargetPairs",
    "TripletTarget",
    "WeightedIdentities",
    "adjacent_views",
    "by_class",
    "exclude_own_",
    "pair_views",
    "view_pairs",
]
