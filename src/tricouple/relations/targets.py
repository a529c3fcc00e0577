"""What losses need from a target coupling: marginals and inner products, never its entries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


class PairTarget(Protocol):
    """A target coupling of (anchor, reference) pairs, P̃_ij."""

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums over references, shape (N,), and column sums over anchors, shape (M,)."""

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """``Σ_ij P̃_ij ⟨anchors_i, references_j⟩``, differentiable in both."""

    def dense(self) -> Tensor:
        """P̃ as an N×M matrix, for losses that need it entry by entry."""

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The support of P̃, or some rows of it, as a boolean matrix: for what needs its entries."""


@dataclass(frozen=True)
class TargetPairs:
    """A pair target with its entropy."""

    entropy: (
        float | Tensor
    )  # −Σ P̃ log P̃: the logarithm of the number of pairs where all weigh the same
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, P̃_ijk = w_i v_k on A, seen through its pair marginals."""

    entropy: float | Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    positives: PairTarget  # P̃¹², its (anchor, positive) marginal
    negatives: PairTarget  # P̃¹³, its (anchor, negative) marginal
    # P̃¹² − P̃¹³, whose inner product with the similarities is the mean margin.
    contrast: PairTarget
    # Masses of the samples as anchor, as positive and as negative.
    marginals: tuple[Tensor, Tensor, Tensor]
    anchor_weights: Tensor | float  # w, shape (N,), or 1/|A| for all
    negative_weights: Tensor | float = 1.0  # v, shape (M,)

    def weights(
        self, rows: slice = slice(None), dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is P̃, where triplets are all products of pairs.

        w_i at the positives of some anchors i, and v_k at their negatives, shape (rows, M) each, in
        the wide dtype unless another is asked for.
        """
        kind, of_anchor = dtype or self.marginals[0].dtype, self.anchor_weights
        if isinstance(of_anchor, Tensor) and of_anchor.ndim:
            of_anchor = of_anchor[rows, None]
        positives, negatives = self.positives.mask(rows), self.negatives.mask(rows)
        return positives.to(kind).mul_(of_anchor), negatives.to(kind).mul_(self.negative_weights)


class Relation(Protocol):
    """The admissible triplets of a batch and their projections on pairs."""

    @property
    def n_triplets(self) -> float | Tensor:
        """|A|; a float, since it grows as N³, or what a device knows of it."""

    @property
    def n_positives(self) -> float | Tensor:
        """The number of positive pairs, with or without a negative for their anchor."""

    def triplets(self) -> TripletTarget:
        """On A; uniform, but for class marginals."""

    def attracting(self) -> TargetPairs:
        """Uniform on A⁺, the (anchor, positive) pairs of A."""

    def repelling(self) -> TargetPairs:
        """Uniform on A⁻, the (anchor, negative) pairs of A."""

    def positives(self) -> TargetPairs:
        """Uniform on all positive pairs, whether or not their anchor has a negative."""

    def negatives(self) -> TargetPairs:
        """Uniform on all negative pairs, whether or not their anchor has a positive."""

    def per_anchor(self) -> PairTarget:
        """Equal mass on every anchor that has a positive, evenly over the positives it has."""
