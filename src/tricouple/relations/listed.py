"""The relation of explicit (anchor, positive, negative) triplets, as a miner gives them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.relations.targets import TripletTarget, UniformPairs


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
        positives = self._pairs(self.positive_indices)
        negatives = self._pairs(self.negative_indices)
        contrast = ListedPairs(
            torch.cat([positives.rows, negatives.rows]),
            torch.cat([positives.columns, negatives.columns]),
            torch.cat([positives.weights, -negatives.weights]),
            self.shape,
        )
        marginals = (*positives.marginals, negatives.marginals[1])
        return TripletTarget(self.n_triplets, positives, negatives, contrast, marginals)

    def attracting(self) -> UniformPairs:
        """Distinct (anchor, positive) pairs."""
        return self._uniform(self.positive_indices)

    def repelling(self) -> UniformPairs:
        """Distinct (anchor, negative) pairs."""
        return self._uniform(self.negative_indices)

    def positives(self) -> UniformPairs:
        """The same as ``attracting``: a listed positive always has a negative."""
        return self.attracting()

    def negatives(self) -> UniformPairs:
        """The same as ``repelling``: a listed negative always has a positive."""
        return self.repelling()

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        pairs = self._pairs(self.positive_indices)
        counts = torch.bincount(pairs.rows, minlength=self.shape[0]).to(pairs.weights.dtype)
        weights = 1 / (torch.count_nonzero(counts) * counts[pairs.rows])
        return ListedPairs(pairs.rows, pairs.columns, weights, self.shape)

    def _pairs(self, partners: Tensor) -> ListedPairs:
        keys, counts = torch.unique(self.anchors * self.shape[1] + partners, return_counts=True)
        weights = counts.to(wide_dtype(keys.device)) / max(1.0, self.n_triplets)
        return ListedPairs(keys // self.shape[1], keys % self.shape[1], weights, self.shape)

    def _uniform(self, partners: Tensor) -> UniformPairs:
        pairs = self._pairs(partners)
        size = float(len(pairs.weights))
        uniform = torch.full_like(pairs.weights, 1 / size)
        return UniformPairs(size, ListedPairs(pairs.rows, pairs.columns, uniform, self.shape))


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

    def mask(self) -> Tensor:
        """The listed pairs."""
        chosen = torch.zeros(self.shape, dtype=torch.bool, device=self.rows.device)
        chosen[self.rows, self.columns] = True
        return chosen
