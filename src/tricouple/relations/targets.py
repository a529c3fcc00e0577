"""What losses need from a target coupling: marginals and inner products, never its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


class PairTarget(Protocol):
    """A target coupling of (anchor, reference) pairs, P̃_ij."""

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums over references, shape (N,), and column sums over anchors, shape (M,)."""

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """``Σ_ij P̃_ij ⟨anchors_i, references_j⟩``, differentiable in both."""

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The support of P̃ as an N×M boolean matrix, for losses that need it entry by entry."""


@dataclass(frozen=True)
class UniformPairs:
    """A pair target that is uniform on ``size`` pairs."""

    size: float
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, uniform on A, seen through its pair marginals."""

    size: float  # |A|, the number of admissible triplets
    positives: PairTarget  # P̃¹², its (anchor, positive) marginal
    negatives: PairTarget  # P̃¹³, its (anchor, negative) marginal
    # P̃¹² − P̃¹³, whose inner product with the similarities is the mean margin.
    contrast: PairTarget
    # Masses of the samples as anchor, as positive and as negative.
    marginals: tuple[Tensor, Tensor, Tensor]


class Relation(Protocol):
    """The admissible triplets of a batch and their projections on pairs."""

    @property
    def n_triplets(self) -> float:
        """|A|; a float, since it grows as N³."""

    @property
    def n_positives(self) -> float:
        """The number of positive pairs, with or without a negative for their anchor."""

    def triplets(self) -> TripletTarget:
        """Uniform on A."""

    def attracting(self) -> UniformPairs:
        """Uniform on A⁺, the (anchor, positive) pairs of A."""

    def repelling(self) -> UniformPairs:
        """Uniform on A⁻, the (anchor, negative) pairs of A."""

    def positives(self) -> UniformPairs:
        """Uniform on all positive pairs, whether or not their anchor has a negative."""

    def negatives(self) -> UniformPairs:
        """Uniform on all negative pairs, whether or not their anchor has a positive."""

    def per_anchor(self) -> PairTarget:
        """Equal mass on every anchor that has a positive, evenly over the positives it has."""
