"""Target couplings P̃: their marginals and products with embeddings, never all of their entries."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host, wide_dtype


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

    def at_own(self, values: Tensor) -> Tensor:
        """Values (M, d) of the reference that each anchor is, (N, d), 0 for none."""
        if self.within:
            return values
        return values[self.own.clamp(min=0)] * (self.own >= 0)[:, None]

    def to_own(self, values: Tensor) -> Tensor:
        """Values (N, d) of anchors, added up at the references that they are, (M, d)."""
        if self.within:
            return values
        out = values.new_zeros(len(self.references), values.shape[1])
        return out.index_add_(0, self.own.clamp(min=0), values * (self.own >= 0)[:, None])


@dataclass(frozen=True)
class GroupedPairs:
    """P̃_ij = same_i where j has the identity of i, other_i v_j elsewhere, 0 for j = own_i."""

    groups: Groups
    same: Tensor | None = None  # (N,), float64; None for zero
    other: Tensor | None = None  # (N,)
    weights: Tensor | None = None  # v, (M,); None for one

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d), by sums over groups."""
        groups, out = self.groups, None
        if self.same is not None:
            near = groups.reference_sums(values)[groups.anchors]
            if not groups.apart:
                near = near - groups.at_own(values)
            out = near * self.same.to(values.dtype)[:, None]
        if self.other is not None:
            weighted = (
                values if self.weights is None else values * self.weights.to(values.dtype)[:, None]
            )
            sums = groups.reference_sums(weighted)
            far = (sums.sum(0) - sums)[groups.anchors] * self.other.to(values.dtype)[:, None]
            out = far if out is None else out + far
        assert out is not None
        return out

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        groups, out = self.groups, None
        if self.same is not None:
            sent = values * self.same.to(values.dtype)[:, None]
            out = groups.anchor_sums(sent)[groups.references]
            if not groups.apart:
                out = out - groups.to_own(sent)
        if self.other is not None:
            sums = groups.anchor_sums(values * self.other.to(values.dtype)[:, None])
            far = (sums.sum(0) - sums)[groups.references]
            if self.weights is not None:
                far = far * self.weights.to(values.dtype)[:, None]
            out = far if out is None else out + far
        assert out is not None
        return out

    def symmetric_times(self, values: Tensor) -> Tensor:
        """``Σ_j (P̃_ij + P̃_ji) values_j`` within one set, where weights are those of groups."""
        groups, dtype = self.groups, values.dtype
        sums = groups.reference_sums(values)  # (K, d)
        members = torch.arange(len(groups.anchors), device=values.device)
        first = members.new_zeros(groups.number).index_copy_(0, groups.anchors, members)
        of_groups, itself = torch.zeros_like(sums), None
        if self.same is not None:
            itself = 2 * self.same.to(dtype)
            of_groups += itself[first, None] * sums
        if self.other is not None:
            sent = self.other.to(dtype)[first]
            weights = (
                torch.ones_like(sent) if self.weights is None else self.weights.to(dtype)[first]
            )
            of_groups += sent.outer(weights @ sums) + weights.outer(sent @ sums)
            of_groups -= (2 * sent * weights)[:, None] * sums
        out = of_groups[groups.anchors]
        return out if itself is None else out.addcmul_(itself[:, None], values, value=-1)

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        groups = self.groups
        rows, columns = [], []
        if self.same is not None:
            counts = groups.reference_sums(
                torch.ones_like(groups.references, dtype=self.same.dtype)
            )
            rows.append(self.same * (counts[groups.anchors] - (groups.own >= 0).to(counts.dtype)))
            received = groups.anchor_sums(self.same)[groups.references]
            columns.append(difference(received, groups.to_own(self.same[:, None])[:, 0]))
        if self.other is not None:
            weights = self.weights
            if weights is None:
                weights = torch.ones_like(groups.references, dtype=self.other.dtype)
            sums = groups.reference_sums(weights)
            rows.append(self.other * difference(sums.sum(), sums)[groups.anchors])
            sums = groups.anchor_sums(self.other)
            columns.append(weights * difference(sums.sum(), sums)[groups.references])
        return sum_of(rows), sum_of(columns)

    def negated(self) -> GroupedPairs:
        """−P̃."""
        same, other = (None if x is None else -x for x in (self.same, self.other))
        return GroupedPairs(self.groups, same, other, self.weights)

    def of_rows(self, rows: slice) -> GroupedPairs:
        """The same of some anchors."""
        groups = self.groups
        part = replace(groups, anchors=groups.anchors[rows], own=groups.own[rows], within=False)
        same, other = (None if x is None else x[rows] for x in (self.same, self.other))
        return GroupedPairs(part, same, other, self.weights)

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        groups = self.groups
        equal = groups.anchors[rows, None] == groups.references
        like = self.same if self.same is not None else self.other
        assert like is not None
        near = like.new_zeros(()) if self.same is None else self.same[rows, None]
        far = like.new_zeros(()) if self.other is None else self.other[rows, None]
        if self.other is not None and self.weights is not None:
            far = far * self.weights
        return fill_own(torch.where(equal, near, far), groups.own[rows], 0.0)

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
    def of(cls, keys: Tensor, weights: Tensor, shape: tuple[int, int]) -> ListedPairs:
        """From ``row · M + column`` of each."""
        return cls(keys // shape[1], keys % shape[1], weights, shape)

    @property
    def kept(self) -> Tensor:
        """1 for pairs that have mass."""
        return (self.weights > 0).to(self.weights.dtype)

    def negated(self) -> ListedPairs:
        """−P̃."""
        return replace(self, weights=-self.weights)

    def scaled(self, of_anchor: Tensor) -> ListedPairs:
        """The same, each times a number of its anchor."""
        return replace(self, weights=self.weights * of_anchor[self.rows])

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

    entropy: float | Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget


@dataclass(frozen=True)
class TripletTarget:
    """The target coupling of triplets, P̃_ijk = w_i v_k on A, seen through its pair marginals."""

    entropy: float | Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    positives: PairTarget  # P̃¹², its (anchor, positive) marginal
    negatives: PairTarget  # P̃¹³, its (anchor, negative) marginal
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    marginals: tuple[Tensor, Tensor, Tensor]  # masses as anchor, as positive, as negative
    anchor_weights: Tensor | float  # w, (N,), or 1/|A| for all
    negative_weights: Tensor | float = 1.0  # v, (M,)

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is P̃, where triplets are all products of pairs.

        w_i at the positives of some anchors i, and v_k at their negatives, (R, M) each.
        """
        kind, of_anchor = self.marginals[0].dtype, self.anchor_weights
        if isinstance(of_anchor, Tensor) and of_anchor.ndim:
            of_anchor = of_anchor[rows, None]
        positives, negatives = self.positives.mask(rows), self.negatives.mask(rows)
        return positives.to(kind).mul_(of_anchor), negatives.to(kind).mul_(self.negative_weights)


class Relation(ABC):
    """The admissible triplets of a batch and their projections on pairs."""

    @property
    @abstractmethod
    def n_triplets(self) -> float | Tensor:
        """|A|; a float, since it grows as N³, or a tensor on a device."""

    @property
    @abstractmethod
    def n_positives(self) -> float | Tensor:
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


def sum_of(parts: list[Tensor]) -> Tensor:
    """One or two vectors, added."""
    return parts[0] if len(parts) == 1 else parts[0] + parts[1]


def counts(codes: Tensor, number: int) -> Tensor:
    """The number of samples in each group, (K,), float64."""
    wide = wide_dtype(codes.device)
    if on_host(codes):
        return torch.bincount(codes, minlength=number).to(wide)
    ones = torch.ones_like(codes, dtype=wide)
    return ones.new_zeros(number).index_add_(0, codes, ones)
