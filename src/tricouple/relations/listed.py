"""Relations as miners give them: explicit triplets, or explicit pairs and all their triplets."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import as_number, divide_or_zero, logarithm, on_host, wide_dtype
from tricouple.relations.target import ListedPairs, Relation, TargetPairs, TripletTarget


@dataclass(frozen=True)
class ListedTriplets(Relation):
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
    kept: Tensor  # 1 for each; 0 for repeated ones, which stay on a device

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: tuple[int, int]
    ) -> ListedTriplets:
        """Drop repeated triplets."""
        m = shape[1]
        keys, kept = _once((anchors * m + positives) * m + negatives)
        pairs = keys // m
        return cls(pairs // m, pairs % m, keys % m, shape, kept)

    @cached_property
    def n_triplets(self) -> float | Tensor:
        """|A|."""
        return as_number(self.kept.sum())

    @cached_property
    def n_positives(self) -> float | Tensor:
        """The number of distinct (anchor, positive) pairs."""
        return as_number(self._pairs(self.positive_indices).kept.sum())

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return values.mean() if on_host(values) else (values * self.kept).sum() / self.n_triplets

    def triplets(self) -> TripletTarget:
        """Pair marginals by counting."""
        pairs = self._pairs(self.positive_indices), self._pairs(self.negative_indices)
        return _triplet_target(self.n_triplets, *pairs)

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Distinct pairs: who is listed as a positive has a negative, and the other way round."""
        return _uniform(self._pairs(self.positive_indices if positive else self.negative_indices))

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        return _per_anchor(self._pairs(self.positive_indices))

    def _pairs(self, partners: Tensor) -> ListedPairs:
        """Distinct pairs, by the number of their triplets."""
        keys = self.anchors * self.shape[1] + partners
        if on_host(keys):
            keys, counts = torch.unique(keys, return_counts=True)
            weights = counts.to(self.kept.dtype)
        else:  # as many as there are triplets; those that are too many are the first, without mass
            keys, places = keys.sort()
            slots = torch.zeros_like(places)
            slots[1:] = (keys[1:] != keys[:-1]).cumsum(0)
            weights = torch.zeros_like(self.kept).index_add_(0, slots, self.kept[places])
            keys = torch.zeros_like(keys).scatter_(0, slots, keys)
        return ListedPairs.of(keys, weights / _at_least_one(self.n_triplets), self.shape)


@dataclass(frozen=True)
class MinedPairs(Relation):
    """Every listed positive of an anchor with every listed negative of it (mathematics §1).

    A pair that is listed twice counts once. The triplets are products for each anchor and are never
    listed: memory is that of the pairs.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([3, 4, 4])
        >>> MinedPairs.distinct(a, p, a, n, (5, 5)).n_triplets   # 2·2 + 1·1
        5.0
    """

    near: ListedPairs  # the positive pairs, each with weight 1, or 0 if it is listed twice
    far: ListedPairs  # the negative pairs
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
        """
        m = shape[1]
        near, far = (
            ListedPairs.of(*_once(keys), shape)
            for keys in (anchors * m + positives, others * m + negatives)
        )
        return cls(near, far, shape)

    def contradiction(self) -> Tensor:
        """Whether a pair is listed as positive and as negative."""
        return ((self.near.dense() > 0) & (self.far.dense() > 0)).any()

    def check(self) -> None:
        """Require that no pair is listed as positive and as negative."""
        near, far = (
            (pairs.rows * self.shape[1] + pairs.columns)[pairs.weights > 0]
            for pairs in (self.near, self.far)
        )
        both = near[torch.isin(near, far)]
        if len(both):
            pair = int(both[0]) // self.shape[1], int(both[0]) % self.shape[1]
            raise ValueError(
                f"indices_tuple lists the pair {pair} as positive (a1, p) and as negative (a2, n): "
                "it can be one of them"
            )

    @cached_property
    def _partners(self) -> tuple[Tensor, Tensor]:
        """n⁺ and n⁻ of each anchor, shape (N,) each."""
        return self.near.marginals[0], self.far.marginals[0]

    @cached_property
    def n_triplets(self) -> float | Tensor:
        """|A| = Σ_i n⁺_i n⁻_i."""
        near, far = self._partners
        return as_number(near @ far)

    @property
    def n_positives(self) -> float | Tensor:
        """Σ_i n⁺_i."""
        return as_number(self.near.weights.sum())

    def triplets(self) -> TripletTarget:
        """P̃¹²_ij = W⁺_ij n⁻_i/|A| and P̃¹³_ik = W⁻_ik n⁺_i/|A| (mathematics §1)."""
        near, far = self._partners
        positives = self.near.scaled(far / self.n_triplets)
        negatives = self.far.scaled(near / self.n_triplets)
        return _triplet_target(self.n_triplets, positives, negatives)

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """The listed pairs, of all anchors or of those that have both."""
        pairs = self.near if positive else self.far
        return _uniform(pairs.scaled(self._partners[int(positive)]) if of_triplets else pairs)

    def per_anchor(self) -> ListedPairs:
        """All positive pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        return _per_anchor(self.near)


def _once(keys: Tensor) -> tuple[Tensor, Tensor]:
    """Each key once, and 1 for it; on a device repeated ones stay, with 0."""
    wide = wide_dtype(keys.device)
    if on_host(keys):
        keys = torch.unique(keys)
        return keys, torch.ones_like(keys, dtype=wide)
    keys = keys.sort().values
    kept = torch.ones_like(keys, dtype=wide)
    kept[1:] = (keys[1:] != keys[:-1]).to(wide)
    return keys, kept


def _at_least_one(size: float | Tensor) -> float | Tensor:
    return size.clamp_min(1.0) if isinstance(size, Tensor) else max(1.0, size)


def _triplet_target(
    size: float | Tensor, positives: ListedPairs, negatives: ListedPairs
) -> TripletTarget:
    """The target with these pair marginals."""
    contrast = ListedPairs(
        torch.cat([positives.rows, negatives.rows]),
        torch.cat([positives.columns, negatives.columns]),
        torch.cat([positives.weights, -negatives.weights]),
        positives.shape,
    )
    marginals = (*positives.marginals, negatives.marginals[1])
    return TripletTarget(logarithm(size), positives, negatives, contrast, marginals, 1 / size)


def _uniform(pairs: ListedPairs) -> TargetPairs:
    """Uniform on the pairs that have mass."""
    size = _at_least_one(as_number(pairs.kept.sum()))
    uniform = ListedPairs(pairs.rows, pairs.columns, pairs.kept / size, pairs.shape)
    return TargetPairs(logarithm(size), uniform)


def _per_anchor(pairs: ListedPairs) -> ListedPairs:
    """The pairs that have mass, each weighing 1/n⁺_i of what its anchor weighs."""
    kept = pairs.kept
    counts = kept.new_zeros(pairs.shape[0]).index_add_(0, pairs.rows, kept)
    weights = divide_or_zero(kept, torch.count_nonzero(counts) * counts[pairs.rows])
    return ListedPairs(pairs.rows, pairs.columns, weights, pairs.shape)
