"""Target couplings P̃: their marginals and products with embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from torch import Tensor

if TYPE_CHECKING:
    from tricouple.relations.identities import GroupedPairs
    from tricouple.relations.listed import ListedPairs

PairTarget: TypeAlias = "GroupedPairs | ListedPairs"
"""P̃ on pairs of anchors and references, (N, M)."""


@dataclass(frozen=True)
class TargetPairs:
    """A pair target with its entropy."""

    entropy: Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, P̃_ijk = w_i v_k on A, seen through its pair marginals."""

    entropy: Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    marginals: tuple[Tensor, Tensor, Tensor]  # masses as anchor, as positive, as negative
    anchor_weights: Tensor  # w, (N,)
    negative_weights: Tensor  # v, (M,)

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """w_i at the positives of some anchors i, and v_k at their negatives, (R, M) each.

        Their products are P̃, where triplets are all products of pairs.
        """
        entries, kind = self.contrast.dense(rows), self.anchor_weights.dtype
        positives, negatives = (entries > 0).to(kind), (entries < 0).to(kind)
        positives.mul_(self.anchor_weights[rows, None])
        return positives, negatives.mul_(self.negative_weights)


class Relation(ABC):
    """The admissible triplets of a batch and their projections on pairs."""

    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    n_triplets: Tensor  # |A|, float64: it grows as N³
    n_positives: Tensor  # positive pairs, with or without a negative for their anchor

    @abstractmethod
    def triplets(self) -> TripletTarget:
        """On A; uniform, but for class marginals."""

    @abstractmethod
    def per_anchor(self) -> PairTarget:
        """Equal mass on every anchor that has a positive, evenly over the positives it has."""

    @abstractmethod
    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """On positive or on negative pairs, those of A or all; uniform, but for class marginals."""

    def attracting(self) -> TargetPairs:
        """On A⁺, the (anchor, positive) pairs of A."""
        return self.on_pairs(positive=True, of_triplets=True)

    def repelling(self) -> TargetPairs:
        """On A⁻, the (anchor, negative) pairs of A."""
        return self.on_pairs(positive=False, of_triplets=True)

    def positives(self) -> TargetPairs:
        """On all positive pairs, whether or not their anchor has a negative."""
        return self.on_pairs(positive=True, of_triplets=False)

    def negatives(self) -> TargetPairs:
        """On all negative pairs, whether or not their anchor has a positive."""
        return self.on_pairs(positive=False, of_triplets=False)

    def with_marginals(self, marginals: str) -> Relation:
        """For ``"classes"`` with class marginals: every class the same mass on every axis."""
        if marginals != "classes":
            return self
        raise ValueError(
            'marginals="classes" needs classes: pass labels; triplets and pairs of indices_tuple '
            'have none, use marginals="target"'
        )
