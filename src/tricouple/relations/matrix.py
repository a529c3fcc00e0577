"""Relations that are listed: weights of pairs that a user gives, pairs or triplets of a miner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, fill_own, wide_dtype
from tricouple.relations.identities import Relation
from tricouple.relations.target import PairTarget, TargetPairs, TripletTarget, WeightedPairs


@dataclass(frozen=True)
class PairMatrix(Relation):
    """W_ij > 0 is a positive of anchor i with that weight, 0 a negative; −1 and own_i are neither.

    As the user gives it, or a miner's pairs, all positives of an anchor with all negatives of it.
    """

    matrix: Tensor  # W, (N, M), of any real dtype
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | None = None

    def mirrored(self) -> PairMatrix:
        """With anchors for references, of two sets without common samples."""
        own = self.own.new_full((self.matrix.shape[1],), -1)
        return PairMatrix(self.matrix.T, own, self.anchor_weights)

    @cached_property
    def partners(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Σ_j W_ij and the number of negatives of each anchor, (N,) each."""
        ones = torch.ones_like(self.own, dtype=wide_dtype(self.own.device))
        near, far = self.pairs(ones, ones).sums[0]
        return near, far

    def pairs(self, same: Tensor, other: Tensor, weights: Tensor | None = None) -> MatrixPairs:
        """By rows of W."""
        return MatrixPairs(self.matrix, self.own, same, other)

    def entries(self, rows: slice) -> Tensor:
        """W of some anchors, and −1 at own, (R, M)."""
        part = self.matrix[rows]
        part = part.to(torch.int8) if part.dtype == torch.bool else part.clone()
        return fill_own(part, self.own[rows], -1)

    def mean_log(self, pairs: MatrixPairs) -> Tensor:
        """W is any; v is 1."""
        total = torch.zeros_like(pairs.same).sum()
        for part in map(pairs.of_rows, pairs.blocks()):
            near, _ = part.halves()
            total += part.same @ xlogy(near, near).sum(1)
        return total


@dataclass(frozen=True)
class MatrixPairs(WeightedPairs):
    """P̃_ij = same_i W_ij at positives, other_i at negatives, 0 for j = own_i."""

    matrix: Tensor  # W, (N, M)
    own: Tensor  # (N,)
    same: Tensor  # (N,), float64
    other: Tensor  # (N,)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """(N, M)."""
        return self.matrix.shape

    def scaled(self, factor: float | Tensor) -> MatrixPairs:
        """P̃ times a number."""
        return replace(self, same=self.same * factor, other=self.other * factor)

    def of_rows(self, rows: slice) -> MatrixPairs:
        """The same of some anchors."""
        parts = self.matrix, self.own, self.same, self.other
        return MatrixPairs(*(part[rows] for part in parts))

    def halves(self) -> tuple[Tensor, Tensor]:
        """W at positives, and 1 at negatives, (N, M) each."""
        wide = self.matrix.to(self.same.dtype)
        near, far = wide.clamp(min=0), wide.abs().eq_(0)
        return fill_own(near, self.own, 0.0), fill_own(far, self.own, 0.0)

    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""
        near, far = self.halves()
        return near.mul_(self.same[:, None]).add_(far.mul_(self.other[:, None]))

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """Row sums, (2, N), and column sums, (2, M), of positives and of negatives."""
        rows, columns = [], self.same.new_zeros(2, self.shape[1])
        for part in map(self.of_rows, self.blocks()):
            near, far = part.halves()
            rows.append(torch.stack([near.sum(1) * part.same, far.sum(1) * part.other]))
            columns += torch.stack([part.same @ near, part.other @ far])
        return torch.cat(rows, 1), columns

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Row sums, (N,), and column sums, (M,)."""
        rows, columns = self.sums
        return rows.sum(0), columns.sum(0)

    @property
    def columns(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Column sums of positives and of negatives, (M,) each."""
        near, far = self.sums[1]
        return near, far


@dataclass(frozen=True)
class ListedTriplets(Relation):
    """A set of triplets; one that is listed twice counts once."""

    anchors: Tensor  # index of each triplet's anchor among the N anchors
    positive_indices: Tensor  # index of its positive among the M references
    negative_indices: Tensor  # index of its negative among the M references
    shape: tuple[int, int]  # (N, M)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    kept: Tensor  # 1 for each, 0 for repeated ones
    anchor_weights: Tensor | None = None

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: tuple[int, int],
        own: Tensor,
    ) -> ListedTriplets:  # fmt: skip
        """Sort the triplets and mark the repeated ones."""
        m = shape[1]
        keys, kept = _distinct((anchors * m + positives) * m + negatives)
        return cls(keys // m**2, keys // m % m, keys % m, shape, own, kept)

    def margins(self, anchors: Tensor, references: Tensor | None) -> Tensor:
        """``s_ij − s_ik`` of each triplet, float64; without references of a given matrix s."""
        wide = anchors.to(wide_dtype(anchors.device))
        rows, near, far = self.anchors, self.positive_indices, self.negative_indices
        if references is None:
            return wide[rows, near] - wide[rows, far]
        others = references.to(wide.dtype)
        return (wide[rows] * (others[near] - others[far])).sum(1)

    @cached_property
    def weights(self) -> Tensor:
        """Of each triplet, that of its anchor."""
        return self._weighed(self.kept, self.anchors)

    @cached_property
    def n_triplets(self) -> Tensor:
        """|A|."""
        return self.weights.sum()

    @property
    def n_positives(self) -> Tensor:
        """As above: each has one."""
        return self.n_triplets

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return (values * self.weights).sum() / self.n_triplets

    def entries(self, rows: slice) -> Tensor:
        """1 at listed positives, 0 at other listed negatives, else −1, of some anchors, (R, M)."""
        near, far = (
            ListedPairs(self.anchors, partners, self.kept, self.shape).dense(rows) > 0
            for partners in (self.positive_indices, self.negative_indices)
        )
        return near.to(torch.int8) - (~near & ~far).to(torch.int8)

    def triplets(self) -> TripletTarget:
        """Uniform on the list, but for weights."""
        shares, (n, m) = divide_or_zero(self.weights, self.n_triplets), self.shape
        a, p, k = self.anchors, self.positive_indices, self.negative_indices
        masses = _sums(a, shares, n), _sums(p, shares, m), _sums(k, shares, m)
        both = torch.cat([shares, -shares])
        contrast = ListedPairs(a.repeat(2), torch.cat([p, k]), both, self.shape)
        return TripletTarget(-xlogy(shares, shares).sum(), contrast, masses)

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Uniform on distinct pairs, but for weights; all are of triplets."""
        pairs = self._pairs(self.positive_indices if positive else self.negative_indices)
        return TargetPairs(-xlogy(pairs.weights, pairs.weights).sum(), pairs)

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        return self._pairs(self.positive_indices, per_anchor=True)

    def _pairs(self, partners: Tensor, *, per_anchor: bool = False) -> ListedPairs:
        n, m = self.shape
        keys, kept = _distinct(self.anchors * m + partners)
        rows, columns = keys // m, keys % m
        weights = self._weighed(kept, rows)
        if per_anchor:
            weights = weights / _sums(rows, kept, n)[rows]
        return ListedPairs(rows, columns, divide_or_zero(weights, weights.sum()), self.shape)

    def _weighed(self, numbers: Tensor, anchors: Tensor) -> Tensor:
        return numbers if self.anchor_weights is None else numbers * self.anchor_weights[anchors]


@dataclass(frozen=True)
class ListedPairs(PairTarget):
    """P̃ with mass ``weights`` added up at (rows, columns), and none elsewhere."""

    rows: Tensor
    columns: Tensor
    weights: Tensor  # float64
    shape: tuple[int, int]

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        """Row sums, (N,), and column sums, (M,)."""
        n, m = self.shape
        return _sums(self.rows, self.weights, n), _sums(self.columns, self.weights, m)

    def scaled(self, factor: float | Tensor) -> ListedPairs:
        """P̃ times a number."""
        return replace(self, weights=self.weights * factor)

    def of_rows(self, rows: slice) -> ListedPairs:
        """The same of some anchors."""
        inside = (self.rows >= rows.start) & (self.rows < rows.stop)
        weights = torch.where(inside, self.weights, 0.0)
        places = torch.where(inside, self.rows - rows.start, 0)
        return ListedPairs(places, self.columns, weights, (rows.stop - rows.start, self.shape[1]))

    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""
        n, m = self.shape
        return _sums(self.rows * m + self.columns, self.weights, n * m).view(n, m)


def _sums(places: Tensor, values: Tensor, number: int) -> Tensor:
    return values.new_zeros(number).index_add_(0, places, values)


def _distinct(keys: Tensor) -> tuple[Tensor, Tensor]:
    """The keys in order, and 1 for each, 0 for repeated ones, which stay for a device's sake."""
    keys = keys.sort().values
    kept = torch.ones_like(keys, dtype=wide_dtype(keys.device))
    kept[1:] = keys[1:] != keys[:-1]
    return keys, kept
