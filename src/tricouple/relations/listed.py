"""Relations as miners give them: explicit triplets, or explicit pairs and all their triplets."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero, on_host, wide_dtype
from tricouple.relations.target import (
    ListedPairs,
    Relation,
    Shape,
    TargetPairs,
    TripletTarget,
    distinct,
)


class Listed(Relation):
    """A relation that is given by lists."""

    @abstractmethod
    def listed(self, *, positive: bool) -> ListedPairs:
        """Distinct positive or negative pairs, of any positive weight."""

    @abstractmethod
    def counted(self, *, positive: bool) -> ListedPairs:
        """The same pairs, each with the number of its triplets as its weight."""

    @cached_property
    def n_positives(self) -> Tensor:
        """The number of distinct (anchor, positive) pairs."""
        return self.listed(positive=True).kept.sum()

    def triplets(self) -> TripletTarget:
        """Pair marginals by counting: P̃¹²_ij and P̃¹³_ik are numbers of triplets over |A|."""
        near, far = self.counted(positive=True), self.counted(positive=False)
        size = self.n_triplets.clamp_min(1.0)
        contrast = ListedPairs(
            torch.cat([near.rows, far.rows]),
            torch.cat([near.columns, far.columns]),
            torch.cat([near.weights, -far.weights]) / size,
            near.shape,
        )
        sums = (*near.marginals, far.marginals[1])
        first, second, third = (part / size for part in sums)
        each, ones = torch.ones_like(first) / size, torch.ones_like(third)
        return TripletTarget(size.log(), contrast, (first, second, third), each, ones)

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Uniform on distinct pairs: on all, or on those of triplets."""
        pairs = (self.counted if of_triplets else self.listed)(positive=positive)
        size = pairs.kept.sum().clamp_min(1.0)
        return TargetPairs(size.log(), replace(pairs, weights=pairs.kept / size))

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        pairs = self.listed(positive=True)
        pairs = replace(pairs, weights=pairs.kept)
        counts = pairs.marginals[0]
        each = divide_or_zero(pairs.weights, torch.count_nonzero(counts) * counts[pairs.rows])
        return replace(pairs, weights=each)


@dataclass(frozen=True)
class ListedTriplets(Listed):
    """A set of triplets; one that is listed twice counts once.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 1, 0]), torch.tensor([2, 2, 2])
        >>> int(ListedTriplets.distinct(a, p, n, (3, 3)).n_triplets)
        2
    """

    anchors: Tensor  # index of each triplet's anchor among the N anchors
    positive_indices: Tensor  # index of its positive among the M references
    negative_indices: Tensor  # index of its negative among the M references
    shape: Shape  # (N, M)
    kept: Tensor  # 1 for each; 0 for repeated ones, which stay on a device

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: Shape
    ) -> ListedTriplets:
        """Drop repeated triplets."""
        m = shape[1]
        keys, counts = distinct((anchors * m + positives) * m + negatives, _ones(anchors))
        pairs = keys // m
        return cls(pairs // m, pairs % m, keys % m, shape, (counts > 0).to(counts.dtype))

    @cached_property
    def n_triplets(self) -> Tensor:
        """|A|."""
        return self.kept.sum()

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return values.mean() if on_host(values) else (values * self.kept).sum() / self.n_triplets

    def listed(self, *, positive: bool) -> ListedPairs:
        """Distinct pairs: who is listed as a positive has a negative, and the other way round."""
        return self.counted(positive=positive)

    def counted(self, *, positive: bool) -> ListedPairs:
        """Distinct pairs, by the number of their triplets."""
        partners = self.positive_indices if positive else self.negative_indices
        return ListedPairs.distinct(self.anchors, partners, self.kept, self.shape)


@dataclass(frozen=True)
class MinedPairs(Listed):
    """Every listed positive of an anchor with every listed negative of it (mathematics §1).

    A pair that is listed twice counts once. The triplets are products for each anchor and are never
    listed: memory is that of the pairs.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([3, 4, 4])
        >>> int(MinedPairs.distinct((a, p), (a, n), (5, 5)).n_triplets)   # 2·2 + 1·1
        5
    """

    near: ListedPairs  # the positive pairs, each with weight 1, or 0 if it is listed twice
    far: ListedPairs  # the negative pairs

    @classmethod
    def distinct(
        cls, near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], shape: Shape
    ) -> MinedPairs:
        """Drop repeated pairs.

        Args:
            near: Anchors and references of the positive pairs.
            far: Those of the negative pairs.
            shape: (N, M).
        """
        both = (ListedPairs.distinct(*pairs, _ones(pairs[0]), shape) for pairs in (near, far))
        return cls(*(replace(pairs, weights=pairs.kept) for pairs in both))

    def contradiction(self) -> Tensor:
        """Whether a pair is listed as positive and as negative."""
        return ((self.near.dense() > 0) & (self.far.dense() > 0)).any()

    def check(self) -> None:
        """Require that no pair is listed as positive and as negative."""
        near, far = (
            (pairs.rows * pairs.shape[1] + pairs.columns)[pairs.weights > 0]
            for pairs in (self.near, self.far)
        )
        both = near[torch.isin(near, far)]
        if len(both):
            pair = divmod(int(both[0]), self.near.shape[1])
            raise ValueError(
                f"indices_tuple lists the pair {pair} as positive (a1, p) and as negative (a2, n): "
                "it can be one of them"
            )

    @cached_property
    def n_triplets(self) -> Tensor:
        """|A| = Σ_i n⁺_i n⁻_i."""
        return self.near.marginals[0] @ self.far.marginals[0]

    def listed(self, *, positive: bool) -> ListedPairs:
        """The listed pairs."""
        return self.near if positive else self.far

    def counted(self, *, positive: bool) -> ListedPairs:
        """W⁺_ij n⁻_i, or W⁻_ik n⁺_i (mathematics §1)."""
        pairs, others = self.listed(positive=positive), self.listed(positive=not positive)
        return replace(pairs, weights=pairs.weights * others.marginals[0][pairs.rows])


def _ones(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=wide_dtype(values.device))
