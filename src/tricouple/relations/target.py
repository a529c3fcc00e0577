"""Target couplings P̃: their marginals and products with embeddings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
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
