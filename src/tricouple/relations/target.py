"""Target couplings P̃: their marginals and products with embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, TypeAlias

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero
from tricouple.ot.scores import blocks

if TYPE_CHECKING:
    from tricouple.relations.identities import GroupedPairs
    from tricouple.relations.listed import ListedPairs
    from tricouple.relations.matrix import MatrixPairs

PairTarget: TypeAlias = "GroupedPairs | ListedPairs | MatrixPairs"
"""P̃ on pairs of anchors and references, (N, M)."""

_ENTRIES = 1 << 20  # of rows of P̃ that are computed together


class PairsByRows(ABC):
    """P̃ by its entries, of which some rows are computed at a time."""

    shape: tuple[int, int]  # (N, M)

    @abstractmethod
    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        sums = [(part.sum(1), part.sum(0)) for part in map(self.dense, self.blocks())]
        rows, columns = zip(*sums, strict=True)
        return torch.cat(rows), torch.stack(columns).sum(0)

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.dense() != 0

    def blocks(self) -> Iterator[slice]:
        """Some rows at a time."""
        return blocks(self.shape[0], _ENTRIES // self.shape[1])

    def entropy(self) -> Tensor:
        """−Σ P̃ log P̃."""
        entries = (self.dense(rows) for rows in self.blocks())
        return -torch.stack([xlogy(part, part).sum() for part in entries]).sum()

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d)."""
        return torch.cat([self.dense(rows).to(values.dtype) @ values for rows in self.blocks()])

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        out = values.new_zeros(self.shape[1], values.shape[1])
        for rows in self.blocks():
            out.addmm_(self.dense(rows).to(values.dtype).T, values[rows])
        return out


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


class Relation(ABC):
    """The admissible triplets of a batch and their projections on pairs."""

    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | None  # factors of the anchors' masses in all targets, (N,)
    n_triplets: Tensor  # |A|, float64: it grows as N³; of weighted triplets their sum
    n_positives: Tensor  # positive pairs, with or without a negative for their anchor; likewise

    @abstractmethod
    def entries(self, rows: slice) -> Tensor:
        """Pairs of some anchors, (R, M), numbers: W > 0 at positives, 0 at negatives, else −1."""

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
            'marginals="classes" needs classes: pass labels without weights; triplets, pairs and '
            'matrices of pairs have none, use marginals="target"'
        )
