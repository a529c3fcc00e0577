"""Target couplings P̃: their marginals and products with embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, weighed
from tricouple.ot.scores import blocks

_ENTRIES = 1 << 20  # of rows of P̃ that are computed together


class PairTarget(ABC):
    """P̃ on pairs of anchors and references, (N, M), of which some rows are computed at a time."""

    shape: tuple[int, int]  # (N, M)
    marginals: tuple[Tensor, Tensor]  # row sums, (N,), and column sums, (M,)

    @abstractmethod
    def scaled(self, factor: float | Tensor) -> PairTarget:
        """P̃ times a number."""

    @abstractmethod
    def of_rows(self, rows: slice) -> PairTarget:
        """The same of some anchors."""

    @abstractmethod
    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        return self.of_rows(slice(*rows.indices(self.shape[0]))).entries()

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.entries() != 0

    def blocks(self) -> Iterator[slice]:
        """Some rows at a time."""
        return blocks(self.shape[0], _ENTRIES // self.shape[1])

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d)."""
        return torch.cat([self.dense(rows).to(values.dtype) @ values for rows in self.blocks()])

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        out = values.new_zeros(self.shape[1], values.shape[1])
        for rows in self.blocks():
            out.addmm_(self.dense(rows).to(values.dtype).T, values[rows])
        return out


class WeightedPairs(PairTarget):
    """P̃_ij = same_i W_ij at positives, other_i v_j at negatives, 0 for j = own_i."""

    weights: Any  # v, (M,)
    columns: tuple[Tensor, Tensor]  # column sums of positives and of negatives, (M,) each


@dataclass(frozen=True)
class TargetPairs:
    """A pair target with its entropy."""

    entropy: Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, seen through its pair marginals."""

    entropy: Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    marginals: tuple[Tensor, Tensor, Tensor]  # masses as anchor, as positive, as negative

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """P̃¹²_ij and P̃¹³_ik/p_i of some anchors i, (R, M) each.

        Their products are P̃, where triplets are all products of pairs.
        """
        entries = self.contrast.dense(rows)
        negatives = (-entries).clamp_(min=0)
        return entries.clamp_(min=0), divide_or_zero(negatives, self.marginals[0][rows, None])


class Relation:
    """The admissible triplets of a batch and their projections on pairs.

    Every target is ``P̃¹²_ij = p_i W_ij/n⁺_i`` on the positives and ``P̃¹³_ik = p_i v_k/Z_i`` on the
    negatives of anchor i, with its mass p_i, weights W of pairs and v of references,
    ``n⁺_i = Σ_j W_ij`` and ``Z_i = Σ_k v_k`` over its negatives; given the anchor, positive and
    negative are independent (mathematics §1, §11).
    """

    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | None  # factors of the anchors' masses in all targets, (N,)
    partners: tuple[Tensor, Tensor]  # n⁺ and the number n⁻ of negatives of each anchor, (N,) each

    @cached_property
    def n_triplets(self) -> Tensor:
        """|A| = Σ_i n⁺_i n⁻_i, float64: it grows as N³; of weighted triplets their sum."""
        return torch.dot(weighed(self.partners[0], self.anchor_weights), self.partners[1])

    @cached_property
    def n_positives(self) -> Tensor:
        """Σ_i n⁺_i, with or without a negative for the anchor; likewise."""
        return weighed(self.partners[0], self.anchor_weights).sum()

    def entries(self, rows: slice) -> Tensor:
        """Pairs of some anchors, (R, M), numbers: W > 0 at positives, 0 at negatives, else −1."""
        raise NotImplementedError

    def pairs(self, same: Tensor, other: Tensor, weights: Tensor | None = None) -> WeightedPairs:
        """P̃_ij = same_i W_ij at positives, other_i v_j at negatives; v is 1 where it is None."""
        raise NotImplementedError

    def mean_log(self, pairs: Any) -> Tensor | float:
        """Σ |P̃_ij| log W_ij over the positives, and Σ |P̃_ij| log v_j over the negatives."""
        raise NotImplementedError

    def masses(self, number: Tensor) -> Tensor:
        """p_i, proportional to these numbers, (N,), times the anchors' weights."""
        number = weighed(number, self.anchor_weights)
        return number / number.sum()

    def references_of(self, number: Tensor) -> tuple[Tensor | None, Tensor]:
        """v_k of each reference, (M,), None for 1, and Z_i of each anchor."""
        return None, self.partners[1]

    def triplets(self) -> TripletTarget:
        """P̃_ijk = p_i W_ij/n⁺_i · v_k/Z_i, on A; W_ij/|A|, but for class marginals."""
        positives, negatives = self.partners
        number = positives * negatives
        masses, (weights, totals) = self.masses(number), self.references_of(number)
        near, far = divide_or_zero(masses, positives), divide_or_zero(masses, totals)
        contrast = self.pairs(near, -far, weights)
        received = contrast.columns[0], -contrast.columns[1]
        entropy = self._entropy(masses, divide_or_zero(near, totals), contrast)
        return TripletTarget(entropy, contrast, (masses, *received))

    def per_anchor(self) -> PairTarget:
        """p_i W_ij/n⁺_i, with masses p_i ∝ a_i of the anchors that have a positive."""
        positives = self.partners[0]
        each = divide_or_zero(self.masses((positives > 0).to(positives.dtype)), positives)
        return self.pairs(each, torch.zeros_like(each))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """∝ W on positive or uniform on negative pairs, all or those of A; or class marginals."""
        partners, others = self.partners if positive else self.partners[::-1]
        number = partners * (others > 0) if of_triplets else partners
        masses, none = self.masses(number), torch.zeros_like(number)
        weights, totals = (None, partners) if positive else self.references_of(number)
        each = divide_or_zero(masses, totals)
        pairs = self.pairs(each, none) if positive else self.pairs(none, each, weights)
        return TargetPairs(self._entropy(masses, each, pairs), pairs)

    def _entropy(self, masses: Tensor, each: Tensor, pairs: WeightedPairs) -> Tensor:
        """−Σ P̃ log P̃ of entries each_i · W_ij · v_k with these sums of rows."""
        entropy: Tensor = -xlogy(masses, each).sum() - self.mean_log(pairs)
        return entropy

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
            'marginals="classes" needs classes: pass labels without weights; triplets, pairs and '
            'matrices of pairs have none, use marginals="target"'
        )
