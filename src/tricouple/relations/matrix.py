"""Relations that are listed: weights of pairs that a user gives, pairs or triplets of a miner."""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, fill_own, wide_dtype
from tricouple.relations.identities import PairTarget, Relation, TripletTarget


@dataclass(frozen=True)
class PairMatrix(Relation):
    """W_ij > 0 is a positive of anchor i with that weight, 0 a negative; −1 and own_i are neither.

    As the user gives it, or a miner's pairs, all positives of an anchor with all negatives of it.
    """

    matrix: Tensor  # W, (N, M), of any real dtype
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | float = 1.0

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """(N, M)."""
        return self.matrix.shape

    def mirrored(self) -> Self:
        """With anchors for references, of two sets without common samples."""
        own = self.own.new_full((self.matrix.shape[1],), -1)
        return replace(self, matrix=self.matrix.T, own=own)

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors, in targets that have their masses."""
        return replace(self, matrix=self.matrix[rows], own=self.own[rows])

    def entries(self) -> Tensor:
        """W, and −1 at own, (N, M)."""
        bools = self.matrix.dtype == torch.bool
        return fill_own(self.matrix.to(torch.int8) if bools else self.matrix.clone(), self.own, -1)

    def mean_log(self, pairs: PairTarget) -> Tensor:
        """W is any; v is 1."""
        total = torch.zeros_like(pairs.same).sum()
        for part in map(pairs.of_rows, self.blocks()):
            near, _ = part.relation.halves
            total += part.same @ xlogy(near, near).sum(1)
        return total


@dataclass(frozen=True)
class ListedTriplets(Relation):
    """A set of triplets; one that is listed twice counts once."""

    anchors: Tensor  # index of each triplet's anchor among the N anchors
    positive_indices: Tensor  # index of its positive among the M references
    negative_indices: Tensor  # index of its negative among the M references
    shape: tuple[int, int]  # (N, M)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    kept: Tensor  # 1 for each, 0 for repeated ones, which stay for a device's sake
    anchor_weights: Tensor | float = 1.0
    most: float = 1.0  # how often a pair of several triplets counts, at most

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: tuple[int, int],
        own: Tensor,
    ) -> Self:  # fmt: skip
        """Sort the triplets and mark the repeated ones."""
        m = shape[1]
        keys = ((anchors * m + positives) * m + negatives).sort().values
        kept = torch.ones_like(keys, dtype=wide_dtype(keys.device))
        kept[1:] = keys[1:] != keys[:-1]
        return cls(keys // m**2, keys // m % m, keys % m, shape, own, kept)

    def margins(self, anchors: Tensor, references: Tensor) -> Tensor:
        """``s_ij − s_ik`` of each triplet, float64."""
        wide = wide_dtype(anchors.device)
        near, far = (references[i].to(wide) for i in (self.positive_indices, self.negative_indices))
        return (anchors[self.anchors].to(wide) * (near - far)).sum(1)

    @cached_property
    def weights(self) -> Tensor:
        """Of each triplet, that of its anchor."""
        each = self.anchor_weights
        return self.kept * (each[self.anchors] if isinstance(each, Tensor) else each)

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return (values * self.weights).sum() / self.weights.sum()

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors, in targets that have their masses."""
        inside = (self.anchors >= rows.start) & (self.anchors < rows.stop)
        kept, own = torch.where(inside, self.kept, 0.0), self.own[rows]
        places, shape = torch.where(inside, self.anchors - rows.start, 0), (len(own), self.shape[1])
        return replace(self, anchors=places, kept=kept, own=own, shape=shape)

    @cached_property
    def totals(self) -> tuple[Tensor, Tensor]:
        """The sum of weights, twice: each triplet has a positive."""
        return self.weights.sum(), self.weights.sum()

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """How often pairs count as positives, and as negatives, (N, M) each."""
        n, m = self.shape
        near, far = (
            self.kept.new_zeros(n * m).index_add_(0, self.anchors * m + partners, self.kept)
            for partners in (self.positive_indices, self.negative_indices)
        )
        return near.clamp_(max=self.most).view(n, m), far.clamp_(max=self.most).view(n, m)

    def entries(self) -> Tensor:
        """1 at listed positives, 0 at other listed negatives, else −1, (N, M)."""
        near, far = self.halves
        return near - (near + far == 0).to(near.dtype)

    def triplets(self) -> TripletTarget:
        """Uniform on the list, but for weights."""
        counted = replace(self, most=math.inf)
        number = self.kept.new_zeros(self.shape[0]).index_add_(0, self.anchors, self.kept)
        masses = self.masses(number)
        each = divide_or_zero(masses, number)
        contrast = counted.pairs(each, -each)
        return TripletTarget(self._entropy(masses, each, contrast), contrast, masses)
