"""Relations as miners give them: explicit triplets, or explicit pairs and all their triplets."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.relations.targets import TargetPairs, TripletTarget


@dataclass(frozen=True)
class ListedTriplets:
    """A set of triplets; one that is listed twice counts once.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2])
        >>> ListedTriplets.distinct(a, p, n, (3, 3)).n_triplets
        2.0
    """

    anchors: Tensor  # index of each triplet's anchor among the N anchors
    positive_indices: Tensor  # index of its positive among the M references
    negative_indices: Tensor  # index of its negative among the M references
    shape: tuple[int, int]  # (N, M)

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: tuple[int, int]
    ) -> ListedTriplets:
        """Drop repeated triplets."""
        m = shape[1]
        keys = torch.unique((anchors * m + positives) * m + negatives)
        pairs = keys // m
        return cls(pairs // m, pairs % m, keys % m, shape)

    @property
    def n_triplets(self) -> float:
        """|A|."""
        return float(len(self.anchors))

    @cached_property
    def n_positives(self) -> float:
        """The number of distinct (anchor, positive) pairs."""
        return float(len(self._pairs(self.positive_indices).weights))

    def triplets(self) -> TripletTarget:
        """Pair marginals by counting."""
        pairs = self._pairs(self.positive_indices), self._pairs(self.negative_indices)
        return _triplet_target(self.n_triplets, *pairs)

    def attracting(self) -> TargetPairs:
        """Distinct (anchor, positive) pairs."""
        return self._uniform(self.positive_indices)

    def repelling(self) -> TargetPairs:
        """Distinct (anchor, negative) pairs."""
        return self._uniform(self.negative_indices)

    def positives(self) -> TargetPairs:
        """The same as ``attracting``: a listed positive always has a negative."""
        return self.attracting()

    def negatives(self) -> TargetPairs:
        """The same as ``repelling``: a listed negative always has a positive."""
        return self.repelling()

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        pairs = self._pairs(self.positive_indices)
        return _per_anchor(pairs.rows, pairs.columns, self.shape)

    def _pairs(self, partners: Tensor) -> ListedPairs:
        keys, counts = torch.unique(self.anchors * self.shape[1] + partners, return_counts=True)
        weights = counts.to(wide_dtype(keys.device)) / max(1.0, self.n_triplets)
        return ListedPairs(keys // self.shape[1], keys % self.shape[1], weights, self.shape)

    def _uniform(self, partners: Tensor) -> TargetPairs:
        pairs = self._pairs(partners)
        return _uniform(pairs.rows, pairs.columns, self.shape)


@dataclass(frozen=True)
class MinedPairs:
    """Every listed positive of an anchor with every listed negative of it (mathematics §1).

    A pair that is listed twice counts once. The triplets are products for each anchor and are never
    listed: memory is that of the pairs.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([3, 4, 4])
        >>> MinedPairs.distinct(a, p, a, n, (5, 5)).n_triplets   # 2·2 + 1·1
        5.0
    """

    positive_pairs: tuple[Tensor, Tensor]  # anchors and references
    negative_pairs: tuple[Tensor, Tensor]
    shape: tuple[int, int]

    @classmethod
    def distinct(
        cls,
        anchors: Tensor,
        positives: Tensor,
        others: Tensor,
        negatives: Tensor,
        shape: tuple[int, int],
    ) -> MinedPairs:
        """Drop repeated pairs.

        Args:
            anchors: Of the positive pairs.
            positives: Their references.
            others: Anchors of the negative pairs.
            negatives: Their references.
            shape: (N, M).

        Raises:
            ValueError: If a pair is listed as positive and as negative.
        """
        m = shape[1]
        near, far = torch.unique(anchors * m + positives), torch.unique(others * m + negatives)
        both = near[torch.isin(near, far)]
        if len(both):
            pair = int(both[0]) // m, int(both[0]) % m
            raise ValueError(
                f"indices_tuple lists the pair {pair} as positive (a1, p) and as negative (a2, n): "
                "it can be one of them"
            )
        return cls((near // m, near % m), (far // m, far % m), shape)

    @cached_property
    def _partners(self) -> tuple[Tensor, Tensor]:
        """n⁺ and n⁻ of each anchor, shape (N,) each."""
        rows = self.positive_pairs[0], self.negative_pairs[0]
        near, far = (
            torch.bincount(row, minlength=self.shape[0]).to(wide_dtype(row.device)) for row in rows
        )
        return near, far

    @cached_property
    def n_triplets(self) -> float:
        """|A| = Σ_i n⁺_i n⁻_i."""
        near, far = self._partners
        return float(near @ far)

    @property
    def n_positives(self) -> float:
        """Σ_i n⁺_i."""
        return float(len(self.positive_pairs[0]))

    def triplets(self) -> TripletTarget:
        """P̃¹²_ij = W⁺_ij n⁻_i/|A| and P̃¹³_ik = W⁻_ik n⁺_i/|A| (mathematics §1)."""
        near, far = self._partners
        positives = self._weighted(self.positive_pairs, far / self.n_triplets)
        negatives = self._weighted(self.negative_pairs, near / self.n_triplets)
        return _triplet_target(self.n_triplets, positives, negatives)

    def attracting(self) -> TargetPairs:
        """Positive pairs of anchors that also have a negative."""
        pairs = self._weighted(self.positive_pairs, self._partners[1])
        return _uniform(pairs.rows, pairs.columns, self.shape)

    def repelling(self) -> TargetPairs:
        """Negative pairs of anchors that also have a positive."""
        pairs = self._weighted(self.negative_pairs, self._partners[0])
        return _uniform(pairs.rows, pairs.columns, self.shape)

    def positives(self) -> TargetPairs:
        """All positive pairs."""
        return _uniform(*self.positive_pairs, self.shape)

    def negatives(self) -> TargetPairs:
        """All negative pairs."""
        return _uniform(*self.negative_pairs, self.shape)

    def per_anchor(self) -> ListedPairs:
        """All positive pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        return _per_anchor(*self.positive_pairs, self.shape)

    def _weighted(self, pairs: tuple[Tensor, Tensor], of_anchor: Tensor) -> ListedPairs:
        """The pairs of anchors that have weight."""
        rows, columns = pairs
        weights = of_anchor[rows]
        kept = weights > 0
        return ListedPairs(rows[kept], columns[kept], weights[kept], self.shape)


@dataclass(frozen=True)
class ListedPairs:
    """P̃ with mass ``weights`` at (rows, columns) and none elsewhere."""

    rows: Tensor
    columns: Tensor
    weights: Tensor
    shape: tuple[int, int]

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row and column sums."""
        n, m = self.shape
        rows = self.weights.new_zeros(n).index_add(0, self.rows, self.weights)
        columns = self.weights.new_zeros(m).index_add(0, self.columns, self.weights)
        return rows, columns

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """``Σ_i ⟨anchors_i, Σ_j P̃_ij references_j⟩`` as one sparse product."""
        target = torch.sparse_coo_tensor(
            torch.stack([self.rows, self.columns]),
            self.weights.to(references.dtype),
            self.shape,
            device=references.device,
            check_invariants=False,
        )
        received: Tensor = torch.sparse.mm(target, references)
        return (anchors * received).sum()

    def dense(self) -> Tensor:
        """The entries."""
        entries = self.weights.new_zeros(self.shape)
        entries[self.rows, self.columns] = self.weights
        return entries

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The listed pairs."""
        start, stop, _ = rows.indices(self.shape[0])
        own = (self.rows >= start) & (self.rows < stop)
        chosen = torch.zeros(stop - start, self.shape[1], dtype=torch.bool, device=self.rows.device)
        chosen[self.rows[own] - start, self.columns[own]] = True
        return chosen


def _triplet_target(size: float, positives: ListedPairs, negatives: ListedPairs) -> TripletTarget:
    """The target with these pair marginals."""
    contrast = ListedPairs(
        torch.cat([positives.rows, negatives.rows]),
        torch.cat([positives.columns, negatives.columns]),
        torch.cat([positives.weights, -negatives.weights]),
        positives.shape,
    )
    marginals = (*positives.marginals, negatives.marginals[1])
    return TripletTarget(math.log(size), positives, negatives, contrast, marginals, 1 / size)


def _uniform(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> TargetPairs:
    """Uniform on these pairs."""
    size = float(len(rows))
    weights = torch.full_like(rows, 1 / max(1.0, size), dtype=wide_dtype(rows.device))
    return TargetPairs(math.log(max(1.0, size)), ListedPairs(rows, columns, weights, shape))


def _per_anchor(rows: Tensor, columns: Tensor, shape: tuple[int, int]) -> ListedPairs:
    """These pairs, each weighing 1/n⁺_i of what its anchor weighs."""
    counts = torch.bincount(rows, minlength=shape[0]).to(wide_dtype(rows.device))
    weights = 1 / (torch.count_nonzero(counts) * counts[rows])
    return ListedPairs(rows, columns, weights, shape)
