"""Target couplings P̃: their marginals and products with embeddings."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero


@dataclass(frozen=True)
class PairTarget:
    """P̃_ij = same_i W_ij at positives, other_i at negatives, (N, M), some rows at a time."""

    relation: Any  # a Relation, which has the positives and negatives
    same: Tensor  # (N,), float64
    other: Tensor  # (N,)

    def scaled(self, factor: float | Tensor) -> Self:
        """P̃ times a number."""
        return replace(self, same=self.same * factor, other=self.other * factor)

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors."""
        if rows.stop - rows.start == len(self.same):
            return self  # with what it has computed
        part = self.relation.of_rows(rows)
        return replace(self, relation=part, same=self.same[rows], other=self.other[rows])

    @cached_property
    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""
        near, far = self.relation.halves
        return torch.addcmul(near * self.same[:, None], far, self.other[:, None])

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        return self.of_rows(slice(*rows.indices(len(self.same)))).entries

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.entries != 0

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d)."""
        return torch.cat(
            [self.dense(rows).to(values.dtype) @ values for rows in self.relation.blocks()]
        )

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        out = values.new_zeros(self.relation.shape[1], values.shape[1])
        for rows in self.relation.blocks():
            out.addmm_(self.dense(rows).to(values.dtype).T, values[rows])
        return out

    @cached_property
    def columns(self) -> Tensor:
        """Column sums over positives and over negatives, (2, M)."""
        columns = self.same.new_zeros(2, self.relation.shape[1])
        for part in map(self.of_rows, self.relation.blocks()):
            near, far = part.relation.halves
            columns += torch.stack([part.same @ near, part.other @ far])
        return columns


class TargetPairs(NamedTuple):
    """The target coupling of positive or of negative pairs."""

    entropy: Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget
    masses: Tensor  # of the anchors, (N,)

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Masses of anchors, (N,), and of references, (M,)."""
        return self.masses, self.pairs.columns.sum(0)


class TripletTarget(NamedTuple):
    """The target coupling of triplets, seen through its pair marginals."""

    entropy: Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    masses: Tensor  # of the anchors, (N,)

    @property
    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masses as anchor, as positive and as negative."""
        near, far = self.contrast.columns
        return self.masses, near, -far

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """P̃¹²_ij and P̃¹³_ik/p_i of some anchors i, (R, M) each.

        Their products are P̃, where triplets are all products of pairs.
        """
        entries = self.contrast.dense(rows)
        negatives = (-entries).clamp_(min=0)
        return entries.clamp(min=0), divide_or_zero(negatives, self.masses[rows, None])
