"""Relations as miners give them: explicit triplets, or explicit pairs and all their triplets."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, on_host, wide_dtype
from tricouple.relations.target import Relation, TargetPairs, TripletTarget

Shape = tuple[int, int]  # (N, M)


@dataclass(frozen=True)
class ListedPairs:
    """P̃ with mass ``weights`` at (rows, columns) and none elsewhere."""

    rows: Tensor
    columns: Tensor
    weights: Tensor  # float64
    shape: Shape

    @classmethod
    def distinct(cls, rows: Tensor, columns: Tensor, weights: Tensor, shape: Shape) -> ListedPairs:
        """From pairs that may be repeated, and weights that are added up."""
        keys, weights = _distinct(rows * shape[1] + columns, weights)
        return cls(keys // shape[1], keys % shape[1], weights, shape)

    @property
    def keys(self) -> Tensor:
        """Places in a matrix that is read row by row."""
        return self.rows * self.shape[1] + self.columns

    @property
    def kept(self) -> Tensor:
        """1 for pairs that have mass."""
        return (self.weights > 0).to(self.weights.dtype)

    def negated(self) -> ListedPairs:
        """−P̃."""
        return replace(self, weights=-self.weights)

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        rows, columns = (self.weights.new_zeros(size) for size in self.shape)
        return (
            rows.index_add_(0, self.rows, self.weights),
            columns.index_add_(0, self.columns, self.weights),
        )

    def symmetric_times(self, values: Tensor) -> Tensor:
        """``Σ_j (P̃_ij + P̃_ji) values_j`` within one set."""
        return self.times(values) + self.transposed_times(values)

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d)."""
        return self._sum(values, self.columns, self.rows, self.shape[0])

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        return self._sum(values, self.rows, self.columns, self.shape[1])

    def _sum(self, values: Tensor, here: Tensor, there: Tensor, size: int) -> Tensor:
        weights = self.weights.to(values.dtype)
        if on_host(values):  # one sparse product
            places, shape = torch.stack([there, here]), (size, len(values))
            target = torch.sparse_coo_tensor(
                places, weights, shape, device=values.device, check_invariants=False
            )
            return torch.sparse.mm(target, values)  # type: ignore[no-any-return]
        out = values.new_zeros(size, values.shape[1])
        return out.index_add_(0, there, values[here] * weights[:, None])

    def of_rows(self, rows: slice) -> ListedPairs:
        """The same of some anchors."""
        inside = (self.rows >= rows.start) & (self.rows < rows.stop)
        weights = torch.where(inside, self.weights, 0.0)
        places = torch.where(inside, self.rows - rows.start, 0)
        return ListedPairs(places, self.columns, weights, (rows.stop - rows.start, self.shape[1]))

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        part = self.of_rows(slice(*rows.indices(self.shape[0])[:2]))
        flat = part.weights.new_zeros(part.shape[0] * part.shape[1])
        return flat.index_add_(0, part.keys, part.weights).view(part.shape)

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.dense() != 0


class Listed(Relation):
    """A relation that is given by lists."""

    @abstractmethod
    def counted(self, *, positive: bool) -> ListedPairs:
        """Distinct positive or negative pairs, weighted by the number of their triplets."""

    def listed(self, *, positive: bool) -> ListedPairs:
        """The pairs of any positive weight, with or without a triplet."""
        return self.counted(positive=positive)

    @cached_property
    def n_positives(self) -> Tensor:  # type: ignore[override]
        """The number of distinct (anchor, positive) pairs."""
        pairs = self.listed(positive=True)
        return self._shares(pairs, pairs.kept, 1.0).weights.sum()

    def triplets(self) -> TripletTarget:
        """Pair marginals by counting: P̃¹²_ij and P̃¹³_ik are numbers of triplets over |A|."""
        pairs = [self.counted(positive=positive) for positive in (True, False)]
        near, far = (self._shares(part, part.weights, self.n_triplets) for part in pairs)
        contrast = ListedPairs(
            torch.cat([near.rows, far.rows]),
            torch.cat([near.columns, far.columns]),
            torch.cat([near.weights, -far.weights]),
            near.shape,
        )
        first, second = near.marginals
        each = divide_or_zero(self.weighed(torch.ones_like(first)), self.n_triplets)
        return TripletTarget(-xlogy(first, each).sum(), contrast, (first, second, far.marginals[1]))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Uniform on distinct pairs, but for weights: on all, or on those of triplets."""
        pairs = (self.counted if of_triplets else self.listed)(positive=positive)
        total = self._shares(pairs, pairs.kept, 1.0).weights.sum()
        pairs = self._shares(pairs, pairs.kept, total)
        return TargetPairs(-xlogy(pairs.weights, pairs.weights).sum(), pairs)

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        pairs = self.listed(positive=True)
        counts = replace(pairs, weights=pairs.kept).marginals[0]
        total = self.weighed((counts > 0).to(counts.dtype)).sum()
        return self._shares(pairs, pairs.kept, total * counts[pairs.rows])

    def _shares(self, pairs: ListedPairs, numbers: Tensor, total: Tensor | float) -> ListedPairs:
        """Pairs that weigh numbers, times those of their anchors, over a total."""
        masses = self.weighed(torch.ones_like(self.own, dtype=numbers.dtype))[pairs.rows]
        return replace(pairs, weights=divide_or_zero(numbers * masses, torch.as_tensor(total)))


@dataclass(frozen=True)
class ListedTriplets(Listed):
    """A set of triplets; one that is listed twice counts once."""

    anchors: Tensor  # index of each triplet's anchor among the N anchors
    positive_indices: Tensor  # index of its positive among the M references
    negative_indices: Tensor  # index of its negative among the M references
    shape: Shape  # (N, M)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    kept: Tensor  # 1 for each; 0 for repeated ones, which stay on a device
    anchor_weights: Tensor | None = None

    def margins(self, anchors: Tensor, references: Tensor | None) -> Tensor:
        """``s_ij − s_ik`` of each triplet, float64; without references of a given matrix s."""
        wide = anchors.to(wide_dtype(anchors.device))
        rows, near, far = self.anchors, self.positive_indices, self.negative_indices
        if references is None:
            return wide[rows, near] - wide[rows, far]
        others = references.to(wide.dtype)
        return (wide[rows] * (others[near] - others[far])).sum(1)

    @classmethod
    def distinct(
        cls, anchors: Tensor, positives: Tensor, negatives: Tensor, shape: Shape, own: Tensor
    ) -> ListedTriplets:
        """Drop repeated triplets."""
        m = shape[1]
        keys, counts = _distinct((anchors * m + positives) * m + negatives, _ones(anchors))
        pairs = keys // m
        return cls(pairs // m, pairs % m, keys % m, shape, own, (counts > 0).to(counts.dtype))

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """|A|."""
        return self._weights.sum()

    @cached_property
    def _weights(self) -> Tensor:
        """Of each triplet."""
        given = self.anchor_weights
        return self.kept if given is None else self.kept * given[self.anchors]

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return (values * self._weights).sum() / self.n_triplets

    def counted(self, *, positive: bool) -> ListedPairs:
        """Distinct pairs, weighted by the number of their triplets."""
        partners = self.positive_indices if positive else self.negative_indices
        return ListedPairs.distinct(self.anchors, partners, self.kept, self.shape)


@dataclass(frozen=True)
class MinedPairs(Listed):
    """Every listed positive of an anchor with every listed negative of it (mathematics §1).

    A pair that is listed twice counts once. Memory is that of the pairs, not of their triplets.

    Example:
        >>> a, p, n = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 0]), torch.tensor([3, 4, 4])
        >>> pairs = MinedPairs.distinct((a, p), (a, n), (5, 5), torch.arange(5))
        >>> int(pairs.n_triplets)   # 2·2 + 1·1
        5
    """

    near: ListedPairs  # the positive pairs, each with weight 1, or 0 if it is listed twice
    far: ListedPairs  # the negative pairs
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | None = None

    @classmethod
    def distinct(
        cls, near: tuple[Tensor, Tensor], far: tuple[Tensor, Tensor], shape: Shape, own: Tensor
    ) -> MinedPairs:
        """From anchors and references of positive and of negative pairs; drop repeated ones."""
        both = [ListedPairs.distinct(*pairs, _ones(pairs[0]), shape) for pairs in (near, far)]
        first, second = (replace(pairs, weights=pairs.kept) for pairs in both)
        return cls(first, second, own)

    def repeated(self) -> tuple[Tensor, Tensor]:
        """Places of pairs, and whether each is listed as positive and as negative."""
        both = self.near, self.far
        weights = torch.cat([pairs.weights for pairs in both])
        keys, counts = _distinct(torch.cat([pairs.keys for pairs in both]), weights)
        return keys, counts > 1

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """|A| = Σ_i n⁺_i n⁻_i."""
        return self.weighed(self.near.marginals[0]) @ self.far.marginals[0]

    def listed(self, *, positive: bool) -> ListedPairs:
        """The listed pairs."""
        return self.near if positive else self.far

    def counted(self, *, positive: bool) -> ListedPairs:
        """W⁺_ij n⁻_i, or W⁻_ik n⁺_i (mathematics §1)."""
        pairs, others = self.listed(positive=positive), self.listed(positive=not positive)
        return replace(pairs, weights=pairs.weights * others.marginals[0][pairs.rows])


def _ones(values: Tensor) -> Tensor:
    return torch.ones_like(values, dtype=wide_dtype(values.device))


def _distinct(keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Each key once, and the sum of its weights.

    On a device, where the number of keys is not read, the first one fills the rest, with weight 0.
    """
    if on_host(keys):
        keys, places = torch.unique(keys, return_inverse=True)
        return keys, weights.new_zeros(len(keys)).index_add_(0, places, weights)
    keys, order = keys.sort()
    places = torch.zeros_like(order)
    places[1:] = (keys[1:] != keys[:-1]).cumsum(0)
    sums = torch.zeros_like(weights).index_add_(0, places, weights[order])
    return keys[:1].repeat(len(keys)).scatter_(0, places, keys), sums
