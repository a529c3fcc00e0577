"""The relation of triplets that are listed, as some miners do."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, on_host, weighed, wide_dtype
from tricouple.relations.target import PairsByRows, Relation, TargetPairs, TripletTarget

Shape = tuple[int, int]  # (N, M)


@dataclass(frozen=True)
class ListedPairs(PairsByRows):
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

    def scaled(self, factor: float | Tensor) -> ListedPairs:
        """P̃ times a number."""
        return replace(self, weights=self.weights * factor)

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
        places = part.rows * part.shape[1] + part.columns
        return flat.index_add_(0, places, part.weights).view(part.shape)


@dataclass(frozen=True)
class ListedTriplets(Relation):
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
        ones = torch.ones_like(anchors, dtype=wide_dtype(anchors.device))
        keys, counts = _distinct((anchors * m + positives) * m + negatives, ones)
        pairs = keys // m
        return cls(pairs // m, pairs % m, keys % m, shape, own, (counts > 0).to(counts.dtype))

    @cached_property
    def weights(self) -> Tensor:
        """Of each triplet, that of its anchor."""
        ones = torch.ones_like(self.own, dtype=self.kept.dtype)
        return self.kept * weighed(ones, self.anchor_weights)[self.anchors]

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """|A|."""
        return self.weights.sum()

    @property
    def n_positives(self) -> Tensor:  # type: ignore[override]
        """As above: each has one."""
        return self.n_triplets

    def mean(self, values: Tensor) -> Tensor:
        """The mean of a value of each triplet."""
        return (values * self.weights).sum() / self.n_triplets

    def counted(self, *, positive: bool) -> ListedPairs:
        """Distinct pairs, weighted by the number of their triplets."""
        partners = self.positive_indices if positive else self.negative_indices
        return ListedPairs.distinct(self.anchors, partners, self.kept, self.shape)

    def entries(self, rows: slice) -> Tensor:
        """1 at listed positives, 0 at other listed negatives, else −1, of some anchors, (R, M)."""
        size, place = rows.stop - rows.start, self.anchors - rows.start
        place = torch.where((place >= 0) & (place < size), place, size)  # of others a last row
        found = -torch.ones(size + 1, self.shape[1], dtype=torch.int8, device=place.device)
        found[place, self.negative_indices] = 0
        found[place, self.positive_indices] = 1
        return found[:-1]

    def triplets(self) -> TripletTarget:
        """Pair marginals by counting: P̃¹²_ij and P̃¹³_ik are numbers of triplets over |A|."""
        pairs = (self.counted(positive=positive) for positive in (True, False))
        near, far = (self._shares(part, part.weights) for part in pairs)
        contrast = ListedPairs(
            torch.cat([near.rows, far.rows]),
            torch.cat([near.columns, far.columns]),
            torch.cat([near.weights, -far.weights]),
            near.shape,
        )
        first, second = near.marginals
        each = divide_or_zero(weighed(torch.ones_like(first), self.anchor_weights), self.n_triplets)
        return TripletTarget(-xlogy(first, each).sum(), contrast, (first, second, far.marginals[1]))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Uniform on distinct pairs, but for weights; all are of triplets."""
        pairs = self.counted(positive=positive)
        pairs = self._shares(pairs, pairs.weights.sign())
        return TargetPairs(pairs.entropy(), pairs)

    def per_anchor(self) -> ListedPairs:
        """Distinct (anchor, positive) pairs, each weighing 1/n⁺_i of what its anchor weighs."""
        pairs = self.counted(positive=True)
        kept = pairs.weights.sign()
        counts = replace(pairs, weights=kept).marginals[0]
        return self._shares(pairs, divide_or_zero(kept, counts[pairs.rows]))

    def _shares(self, pairs: ListedPairs, numbers: Tensor) -> ListedPairs:
        """Pairs that weigh these numbers times what their anchors do, and one together."""
        ones = torch.ones_like(self.own, dtype=numbers.dtype)
        weights = numbers * weighed(ones, self.anchor_weights)[pairs.rows]
        return replace(pairs, weights=divide_or_zero(weights, weights.sum()))


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
