"""The relation of samples that share an identity: everything is a sum over groups."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, fill_own, on_host, weighed, wide_dtype
from tricouple.relations.target import Relation, TargetPairs, TripletTarget


@dataclass(frozen=True)
class Identities(Relation):
    """Positives share the anchor's identity, negatives do not; the anchor itself is neither.

    Every target is ``P̃¹²_ij = p_i/n⁺_i`` on the positives and ``P̃¹³_ik = p_i v_k/Z_i`` on the
    negatives of anchor i, with its mass p_i, weights v of the references and ``Z_i = Σ_k v_k`` over
    its negatives; given the anchor, positive and negative are independent (mathematics §1, §11).

    Example:
        >>> relation = Identities.of(torch.tensor([0, 0, 1]))
        >>> int(relation.n_triplets)   # (0, 1, 2) and (1, 0, 2)
        2
    """

    anchors: Tensor  # group of each anchor, 0 … K−1, (N,)
    references: Tensor  # group of each reference, (M,)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    number: int  # K
    within: bool  # whether anchor i is reference i, for all
    apart: bool  # whether no anchor is a reference
    classes: bool = False  # whether every class has the same mass, or every triplet (or pair)
    anchor_weights: Tensor | None = None

    @classmethod
    def of(
        cls, anchors: Tensor, references: Tensor | None = None, own: Tensor | None = None
    ) -> Identities:
        """From labels of one set, or of two; some anchors may be among the references.

        On a device K is not read: it is the number of samples, and some groups are empty.
        """
        n, within = len(anchors), references is None
        samples = anchors if references is None else torch.cat([anchors, references])
        if on_host(samples):
            values, codes = torch.unique(samples, return_inverse=True)
            number = len(values)
        else:
            ordered, places = samples.sort()
            begun = (ordered[1:] != ordered[:-1]).cumsum(0)
            codes = torch.zeros_like(places).scatter_(0, places[1:], begun)
            number = len(codes)
        apart = own is None and not within
        if own is None:
            own = torch.arange(n, device=codes.device) if within else torch.full_like(codes[:n], -1)
        return cls(codes[:n], codes if within else codes[n:], own, number, within, apart)

    def with_marginals(self, marginals: str) -> Identities:
        """For ``"classes"`` with class marginals (mathematics §11)."""
        if marginals != "classes":
            return self
        if self.anchor_weights is not None:
            super().with_marginals(marginals)  # raises an error
        return replace(self, classes=True)

    def mirrored(self) -> Identities:
        """With anchors for references, of two sets without common samples."""
        own = torch.full_like(self.references, -1)
        return replace(self, anchors=self.references, references=self.anchors, own=own)

    def sums(self, codes: Tensor, values: Tensor) -> Tensor:
        """Sums over the samples of each group, which the codes name, (K, …)."""
        return values.new_zeros(self.number, *values.shape[1:]).index_add_(0, codes, values)

    @cached_property
    def sizes(self) -> Tensor:
        """The number of references in each group, (K,), float64."""
        ones = torch.ones_like(self.references, dtype=wide_dtype(self.references.device))
        return self.sums(self.references, ones)

    @cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """Positives n⁺ and negatives n⁻ of each anchor, (N,) each."""
        same = self.sizes[self.anchors]
        themselves = 1.0 if self.within else (self.own >= 0).to(same.dtype)
        return same - themselves, len(self.references) - same

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """|A| = Σ_i n⁺_i n⁻_i."""
        return torch.dot(weighed(self.partners[0], self.anchor_weights), self.partners[1])

    @cached_property
    def n_positives(self) -> Tensor:  # type: ignore[override]
        """Σ_i n⁺_i."""
        return weighed(self.partners[0], self.anchor_weights).sum()

    def entries(self, rows: slice) -> Tensor:
        """1 at positives, 0 at negatives, −1 at own, of some anchors, (R, M)."""
        same = (self.anchors[rows, None] == self.references).to(torch.int8)
        return fill_own(same, self.own[rows], -1)

    def triplets(self) -> TripletTarget:
        """P̃_ijk = p_i/n⁺_i · v_k/Z_i: 1/|A|, but for weights and class marginals."""
        positives, negatives = self.partners
        number = positives * negatives
        masses, (weights, totals) = self._masses(number), self._references(number)
        near, far = divide_or_zero(masses, positives), divide_or_zero(masses, totals)
        contrast = GroupedPairs(self, near, -far, weights)
        received = contrast.columns[0], -contrast.columns[1]
        entropy = self._entropy(masses, divide_or_zero(near, totals), received[1], weights)
        return TripletTarget(entropy, contrast, (masses, *received))

    def per_anchor(self) -> GroupedPairs:
        """Same label, each pair weighing 1/n⁺_i of what its anchor weighs."""
        positives = self.partners[0]
        masses = self._masses((positives > 0).to(positives.dtype))
        return self._pairs(divide_or_zero(masses, positives))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Of one label or of two, for all anchors or for those that have both."""
        partners, others = self.partners if positive else self.partners[::-1]
        number = partners * (others > 0) if of_triplets else partners
        masses = self._masses(number)
        if positive:
            each = divide_or_zero(masses, partners)
            return TargetPairs(-xlogy(masses, each).sum(), self._pairs(each))
        weights, totals = self._references(number)
        each = divide_or_zero(masses, totals)
        pairs = GroupedPairs(self, torch.zeros_like(each), each, weights)
        return TargetPairs(self._entropy(masses, each, pairs.columns[1], weights), pairs)

    def _entropy(self, masses: Tensor, each: Tensor, received: Tensor, weights: Tensor) -> Tensor:
        """−Σ P̃ log P̃ of entries w_i v_k, from masses of the anchors and of the negatives."""
        entropy: Tensor = -xlogy(masses, each).sum()
        return entropy - xlogy(received, weights).sum() if self.classes else entropy  # else v is 1

    def _pairs(self, same: Tensor) -> GroupedPairs:
        """Pairs of one label, weighing so much for each anchor."""
        none = torch.zeros_like(same)
        return GroupedPairs(self, same, none, none.new_zeros(len(self.references)))

    def _masses(self, number: Tensor) -> Tensor:
        """p_i, proportional to this number; or the same for every class that has any, evenly."""
        if not self.classes:
            number = weighed(number, self.anchor_weights)
            return number / number.sum()
        taken = (number > 0).to(number.dtype)
        sizes = self.sums(self.anchors, taken)
        return divide_or_zero(taken, (torch.count_nonzero(sizes) * sizes)[self.anchors])

    def _references(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """v_k of each reference, (M,), and Z_i of each anchor.

        A class of references is negative for all k⁺ anchor classes but itself, if it is one: to
        receive as much as the others it weighs k⁺/(k⁺ − 1) (mathematics §11).
        """
        if not self.classes:
            return torch.ones_like(self.references, dtype=number.dtype), self.partners[1]
        sizes = self.sizes
        anchors = (self.sums(self.anchors, number) > 0) & (sizes > 0)
        others = (torch.count_nonzero(anchors) - 1).to(sizes.dtype)
        weights = 1 + divide_or_zero(anchors.to(sizes.dtype), others)
        weights = divide_or_zero(weights, sizes)
        sums = weights * sizes
        return weights[self.references], _difference(sums.sum(), sums)[self.anchors]


@dataclass(frozen=True)
class GroupedPairs:
    """P̃_ij = same_i where j has the label of i, other_i v_j elsewhere, 0 for j = own_i."""

    groups: Identities
    same: Tensor  # (N,), float64
    other: Tensor  # (N,)
    weights: Tensor  # v, (M,)

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d), by sums over groups."""
        groups, (near, same, other, _) = self.groups, self._factors(values.dtype)
        sums = groups.sums(groups.references, values)
        out = sums[groups.anchors].mul_(near[:, None])
        out.addr_(other, self._of_groups.to(values.dtype) @ sums)
        if not groups.apart:
            if not groups.within:
                values = values[groups.own.clamp(min=0)] * (groups.own >= 0)[:, None]
            out -= values * same[:, None]
        return out

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        groups, (near, same, other, weights) = self.groups, self._factors(values.dtype)
        out = groups.sums(groups.anchors, values * near[:, None])[groups.references]
        out.addr_(weights, other @ values)
        if not groups.apart:
            out -= self._to_own(values * same[:, None])
        return out

    @cached_property
    def _of_groups(self) -> Tensor:
        """Weight v of the references of each group, which is the same for all of them, (K,)."""
        groups = self.groups
        return self.weights.new_zeros(groups.number).index_copy_(0, groups.references, self.weights)

    def _factors(self, dtype: torch.dtype) -> list[Tensor]:
        """``same`` less what a group has as one of all, ``same``, ``other`` and ``weights``."""
        return [part.to(dtype) for part in (self._near, self.same, self.other, self.weights)]

    @cached_property
    def _near(self) -> Tensor:
        return self.same - self.other * self._of_groups[self.groups.anchors]

    def _to_own(self, values: Tensor) -> Tensor:
        """Values (N, …) of anchors, added up at the references that they are, (M, …)."""
        groups = self.groups
        if groups.within:
            return values
        out = values.new_zeros(len(groups.references) + 1, *values.shape[1:])
        return out.index_add_(0, groups.own % len(out), values)[:-1]  # −1 at the end

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        groups = self.groups
        sums = groups.sums(groups.references, self.weights)
        far = self.other * _difference(sums.sum(), sums)[groups.anchors]
        return self.same * groups.partners[0] + far, torch.add(*self.columns)

    @cached_property
    def columns(self) -> tuple[Tensor, Tensor]:
        """Column sums over pairs of one label and over pairs of two, (M,) each."""
        groups = self.groups
        received = groups.sums(groups.anchors, self.same)[groups.references]
        sums = groups.sums(groups.anchors, self.other)
        far = self.weights * _difference(sums.sum(), sums)[groups.references]
        return _difference(received, self._to_own(self.same)), far

    def scaled(self, factor: float | Tensor) -> GroupedPairs:
        """P̃ times a number."""
        return replace(self, same=self.same * factor, other=self.other * factor)

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

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.dense() != 0


def _difference(total: Tensor, part: Tensor) -> Tensor:
    """``total − part``, and exactly zero where only rounding is left.

    A mass that is zero must come out as zero; true masses are at least 1/N³ of the total.
    """
    left = total - part
    return left * (left.abs() > 8 * torch.finfo(left.dtype).eps * total.abs())
