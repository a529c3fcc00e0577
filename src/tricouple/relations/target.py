"""Target couplings P̃: their marginals and products with embeddings, never all of their entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host

Shape = tuple[int, int]  # (N, M)


@dataclass(frozen=True)
class Groups:
    """The group of each anchor and of each reference, numbered 0 … K−1."""

    anchors: Tensor  # (N,)
    references: Tensor  # (M,)
    own: Tensor  # (N,): the reference that each anchor is, −1 for none
    number: int  # K
    within: bool  # whether anchor i is reference i, for all
    apart: bool = False  # whether no anchor is a reference

    def anchor_sums(self, values: Tensor) -> Tensor:
        """Sums of values (N, …) over the anchors of each group, (K, …)."""
        return values.new_zeros(self.number, *values.shape[1:]).index_add_(0, self.anchors, values)

    def reference_sums(self, values: Tensor) -> Tensor:
        """Sums of values (M, …) over the references of each group, (K, …)."""
        sums = values.new_zeros(self.number, *values.shape[1:])
        return sums.index_add_(0, self.references, values)

    def at_own(self, values: Tensor) -> Tensor | float:
        """Values (M, d) of the reference that each anchor is, (N, d), 0 for none."""
        if self.within or self.apart:
            return values if self.within else 0.0
        return values[self.own.clamp(min=0)] * (self.own >= 0)[:, None]

    def to_own(self, values: Tensor) -> Tensor:
        """Values (N, …) of anchors, added up at the references that they are, (M, …)."""
        if self.within:
            return values
        out = values.new_zeros(len(self.references) + 1, *values.shape[1:])
        return out.index_add_(0, self.own % len(out), values)[:-1]  # −1 at the end


@dataclass(frozen=True)
class GroupedPairs:
    """P̃_ij = same_i where j has the label of i, other_i v_j elsewhere, 0 for j = own_i."""

    groups: Groups
    same: Tensor  # (N,), float64
    other: Tensor  # (N,)
    weights: Tensor  # v, (M,)

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d), by sums over groups."""
        groups, (same, other, weights) = self.groups, self._columns(values.dtype)
        near = groups.reference_sums(values)[groups.anchors] - groups.at_own(values)
        sums = groups.reference_sums(values * weights)
        return near * same + (sums.sum(0) - sums)[groups.anchors] * other

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        groups, (same, other, weights) = self.groups, self._columns(values.dtype)
        sent = values * same
        near = groups.anchor_sums(sent)[groups.references] - groups.to_own(sent)
        sums = groups.anchor_sums(values * other)
        return near + (sums.sum(0) - sums)[groups.references] * weights

    def symmetric_times(self, values: Tensor) -> Tensor:
        """``Σ_j (P̃_ij + P̃_ji) values_j`` within one set, where weights are those of groups."""
        groups, columns = self.groups, self._columns(values.dtype)
        members = torch.arange(len(groups.anchors), device=values.device)
        first = members.new_zeros(groups.number).index_copy_(0, groups.anchors, members)
        same, other, weights = (column[first] for column in columns)  # of each group, (K, 1)
        sums = groups.reference_sums(values)  # (K, d)
        of_groups = torch.addmm(2 * (same - other * weights) * sums, other, weights.T @ sums)
        of_groups.addmm_(weights, other.T @ sums)
        return of_groups[groups.anchors].addcmul_(columns[0], values, value=-2)

    def _columns(self, dtype: torch.dtype) -> list[Tensor]:
        """``same``, ``other`` and ``weights`` as columns, (N, 1) and (M, 1)."""
        return [part.to(dtype)[:, None] for part in (self.same, self.other, self.weights)]

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        groups = self.groups
        counts = groups.reference_sums(torch.ones_like(self.weights))[groups.anchors]
        rows = self.same * (counts - (groups.own >= 0).to(counts.dtype))
        sums = groups.reference_sums(self.weights)
        rows = rows + self.other * difference(sums.sum(), sums)[groups.anchors]
        return rows, torch.add(*self.columns)

    @cached_property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Column sums over pairs of one label and over pairs of two, (M,) each."""
        groups = self.groups
        received = groups.anchor_sums(self.same)[groups.references]
        sums = groups.anchor_sums(self.other)
        far = self.weights * difference(sums.sum(), sums)[groups.references]
        return difference(received, groups.to_own(self.same)), far

    def negated(self) -> GroupedPairs:
        """−P̃."""
        return replace(self, same=-self.same, other=-self.other)

    def of_rows(self, rows: slice) -> GroupedPairs:
        """The same of some anchors."""
        groups = self.groups
        part = replace(groups, anchors=groups.anchors[rows], own=groups.own[rows], within=False)
        return GroupedPairs(part, self.same[rows], self.other[rows], self.weights)

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        groups = self.groups
        equal = groups.anchors[rows, None] == groups.references
        far = self.other[rows, None] * self.weights
        return fill_own(torch.where(equal, self.same[rows, None], far), groups.own[rows], 0.0)

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The pairs that have weight, of some anchors."""
        return self.dense(rows) != 0


@dataclass(frozen=True)
class ListedPairs:
    """P̃ with mass ``weights`` at (rows, columns) and none elsewhere."""

    rows: Tensor
    columns: Tensor
    weights: Tensor  # float64
    shape: tuple[int, int]

    @classmethod
    def distinct(cls, rows: Tensor, columns: Tensor, weights: Tensor, shape: Shape) -> ListedPairs:
        """From pairs that may be repeated, and weights that are added up."""
        keys, weights = distinct(rows * shape[1] + columns, weights)
        return cls(keys // shape[1], keys % shape[1], weights, shape)

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
        n, m = self.shape
        rows = self.weights.new_zeros(n).index_add(0, self.rows, self.weights)
        columns = self.weights.new_zeros(m).index_add(0, self.columns, self.weights)
        return rows, columns

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
            target = torch.sparse_coo_tensor(
                torch.stack([there, here]),
                weights,
                (size, len(values)),
                device=values.device,
                check_invariants=False,
            )
            found: Tensor = torch.sparse.mm(target, values)
            return found
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
        start, stop, _ = rows.indices(self.shape[0])
        part = self if stop - start == self.shape[0] else self.of_rows(slice(start, stop))
        flat = part.weights.new_zeros(part.shape[0] * part.shape[1])
        keys = part.rows * part.shape[1] + part.columns
        return flat.index_add_(0, keys, part.weights).view(part.shape)

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The pairs that have mass, of some anchors."""
        return self.dense(rows) != 0


PairTarget = GroupedPairs | ListedPairs


@dataclass(frozen=True)
class TargetPairs:
    """A pair target with its entropy."""

    entropy: Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, P̃_ijk = w_i v_k on A, seen through its pair marginals."""

    entropy: Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    marginals: tuple[Tensor, Tensor, Tensor]  # masses as anchor, as positive, as negative
    anchor_weights: Tensor  # w, (N,)
    negative_weights: Tensor  # v, (M,)

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is P̃, where triplets are all products of pairs.

        w_i at the positives of some anchors i, and v_k at their negatives, (R, M) each.
        """
        entries, kind = self.contrast.dense(rows), self.anchor_weights.dtype
        of_anchor = self.anchor_weights[rows, None]
        positives, negatives = (entries > 0).to(kind), (entries < 0).to(kind)
        return positives.mul_(of_anchor), negatives.mul_(self.negative_weights)


class Relation(ABC):
    """The admissible triplets of a batch and their projections on pairs."""

    @property
    @abstractmethod
    def n_triplets(self) -> Tensor:
        """|A|, float64: it grows as N³."""

    @property
    @abstractmethod
    def n_positives(self) -> Tensor:
        """The number of positive pairs, with or without a negative for their anchor."""

    @abstractmethod
    def triplets(self) -> TripletTarget:
        """On A; uniform, but for class marginals."""

    @abstractmethod
    def per_anchor(self) -> PairTarget:
        """Equal mass on every anchor that has a positive, evenly over the positives it has."""

    @abstractmethod
    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """On positive or on negative pairs, those of A or all; uniform, but for class marginals."""

    def attracting(self) -> TargetPairs:
        """On A⁺, the (anchor, positive) pairs of A."""
        return self.on_pairs(positive=True, of_triplets=True)

    def repelling(self) -> TargetPairs:
        """On A⁻, the (anchor, negative) pairs of A."""
        return self.on_pairs(positive=False, of_triplets=True)

    def positives(self) -> TargetPairs:
        """On all positive pairs, whether or not their anchor has a negative."""
        return self.on_pairs(positive=True, of_triplets=False)

    def negatives(self) -> TargetPairs:
        """On all negative pairs, whether or not their anchor has a positive."""
        return self.on_pairs(positive=False, of_triplets=False)

    def with_class_masses(self) -> Relation:
        """The relation with class marginals: every class the same mass on every axis."""
        raise ValueError(
            'marginals="classes" needs classes: pass labels; triplets and pairs of indices_tuple '
            'have none, use marginals="target"'
        )


def difference(total: Tensor, part: Tensor) -> Tensor:
    """``total − part``, and exactly zero where only rounding is left.

    A mass that is zero must come out as zero; true masses are at least 1/N³ of the total.
    """
    left = total - part
    return left * (left > 8 * torch.finfo(left.dtype).eps * total)


def distinct(keys: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Each key once, and the sum of its weights.

    On a device, where their number is not known, the first key fills the rest, with weight 0.
    """
    if on_host(keys):
        keys, places = torch.unique(keys, return_inverse=True)
        return keys, weights.new_zeros(len(keys)).index_add_(0, places, weights)
    keys, order = keys.sort()
    places = torch.zeros_like(order)
    places[1:] = (keys[1:] != keys[:-1]).cumsum(0)
    sums = torch.zeros_like(weights).index_add_(0, places, weights[order])
    return keys[:1].repeat(len(keys)).scatter_(0, places, keys), sums
