"""Which samples are positives and negatives of which, and the target couplings.

A label per sample (its class, its source instance, its pair number) has the admissible triplets
A = {(i, j, k): id(i) = id(j), id(i) ≠ id(k)}, entries distinct within one set. Targets are uniform
on A or on its projections, and are never built.
"""

from tricouple.relations.identities import Identities, PairTarget, Relation
from tricouple.relations.matrix import ListedTriplets, PairMatrix
from tricouple.relations.views import pair_views

__all__ = ["Identities", "ListedTriplets", "PairMatrix", "PairTarget", "Relation", "pair_views"]
