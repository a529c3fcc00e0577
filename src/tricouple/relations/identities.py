"""Target couplings of a relation, and the relation of samples that share a label.

Of labels everything is a sum over groups.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import blocks, divide_or_zero, fill_own, on_host, wide_dtype

_ENTRIES = 1 << 20  # of rows of P̃ that are computed together


@dataclass(frozen=True)
class PairTarget:
    """P̃_ij = same_i W_ij at positives, other_i at negatives, (N, M), some rows at a time."""

    relation: Any  # a Relation, which has the positives and negatives
    same: Tensor  # (N,), float64
    other: Tensor  # (N,)

    def scaled(self, factor: float | Tensor) -> Self:
        """P̃ times a number."""
        return replace(self, same=self.same * factor, other=self.other * factor)

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors."""
        if rows.stop - rows.start == len(self.same):
            return self  # with what it has computed
        part = self.relation.of_rows(rows)
        return replace(self, relation=part, same=self.same[rows], other=self.other[rows])

    @cached_property
    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""
        near, far = self.relation.halves
        return torch.addcmul(near * self.same[:, None], far, self.other[:, None])

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        return self.of_rows(slice(*rows.indices(len(self.same)))).entries

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.entries != 0

    def products(self, references: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_j P̃_ij references_j``, (N, d), and ``Σ_i P̃_ij anchors_i``, (M, d)."""
        moved, received = [], torch.zeros_like(references)
        for rows in self.relation.blocks():
            entries = self.dense(rows).to(references.dtype)
            moved.append(entries @ references)
            received.addmm_(entries.T, anchors[rows])
        return torch.cat(moved), received

    @cached_property
    def columns(self) -> Tensor:
        """Column sums over positives and over negatives, (2, M)."""
        columns = self.same.new_zeros(2, self.relation.shape[1])
        for part in map(self.of_rows, self.relation.blocks()):
            near, far = part.relation.halves
            columns += torch.stack([part.same @ near, part.other @ far])
        return columns


class TargetPairs(NamedTuple):
    """The target coupling of positive or of negative pairs."""

    entropy: Tensor  # −Σ P̃ log P̃: log of the number of pairs where all weigh the same
    pairs: PairTarget
    masses: Tensor  # of the anchors, (N,)

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Masses of anchors, (N,), and of references, (M,)."""
        return self.masses, self.pairs.columns.sum(0)


class TripletTarget(NamedTuple):
    """The target coupling of triplets, seen through its pair marginals."""

    entropy: Tensor  # −Σ P̃ log P̃: log|A| where all triplets weigh the same
    contrast: PairTarget  # P̃¹² − P̃¹³, whose inner product with s is the mean margin
    masses: Tensor  # of the anchors, (N,)

    @property
    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masses as anchor, as positive and as negative."""
        near, far = self.contrast.columns
        return self.masses, near, -far

    def weights(self, rows: slice = slice(None)) -> tuple[Tensor, Tensor]:
        """P̃¹²_ij and P̃¹³_ik/p_i of some anchors i, (R, M) each.

        Their products are P̃, where triplets are all products of pairs.
        """
        entries = self.contrast.dense(rows)
        negatives = (-entries).clamp_(min=0)
        return entries.clamp(min=0), divide_or_zero(negatives, self.masses[rows, None])


class Relation:
    """The admissible triplets of a batch and their projections on pairs.

    Every target is ``P̃¹²_ij = p_i W_ij/n⁺_i`` on the positives and ``P̃¹³_ik = p_i v_k/Z_i`` on the
    negatives of anchor i, with its mass p_i, weights W of pairs and v of references,
    ``n⁺_i = Σ_j W_ij`` and ``Z_i = Σ_k v_k`` over its negatives; given the anchor, positive and
    negative are independent (mathematics §1, §11).
    """

    shape: tuple[int, int]  # (N, M)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | float  # factors of the anchors' masses in all targets, (N,)

    @cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """n⁺ and the number n⁻ of negatives of each anchor, (N,) each."""
        ones = torch.ones_like(self.own, dtype=wide_dtype(self.own.device))
        parts = map(PairTarget(self, ones, ones).of_rows, self.blocks())
        sums = [[half.sum(1) for half in part.relation.halves] for part in parts]
        near, far = zip(*sums, strict=True)
        return torch.cat(near), torch.cat(far)

    @cached_property
    def totals(self) -> tuple[Tensor, Tensor]:
        """Σ_i a_i n⁺_i and Σ_i a_i n⁺_i n⁻_i: 0 without positives, or without triplets."""
        positives, negatives = self.partners
        positives = positives * self.anchor_weights
        return positives.sum(), torch.dot(positives, negatives)

    def blocks(self) -> Iterator[slice]:
        """Some anchors at a time."""
        n, m = self.shape
        return blocks(n, _ENTRIES // m)

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors, in targets that have their masses."""
        raise NotImplementedError

    def entries(self) -> Tensor:
        """W > 0 at positives, 0 at negatives, else −1, (N, M)."""
        raise NotImplementedError

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """W at positives, and 1 at negatives, (N, M) each, float64."""
        wide = self.entries().to(wide_dtype(self.own.device))
        return wide.clamp(min=0), (wide == 0).to(wide.dtype)

    def pairs(self, same: Tensor, other: Tensor, weights: Tensor | None = None) -> PairTarget:
        """P̃_ij = same_i W_ij at positives, other_i v_j at negatives; v is 1 where it is None."""
        return PairTarget(self, same, other)

    def mean_log(self, pairs: Any) -> Tensor | float:
        """Σ |P̃_ij| log W_ij over the positives, and Σ |P̃_ij| log v_j over the negatives."""
        return 0.0

    def masses(self, number: Tensor) -> Tensor:
        """p_i, proportional to these numbers, (N,), times the anchors' weights."""
        number = number * self.anchor_weights
        return number / number.sum()

    def references_of(self, number: Tensor) -> tuple[Tensor | None, Tensor]:
        """v_k of each reference, (M,), None for 1, and Z_i of each anchor."""
        return None, self.partners[1]

    def triplets(self) -> TripletTarget:
        """P̃_ijk = p_i W_ij/n⁺_i · v_k/Z_i, on A; W_ij/|A|, but for class marginals."""
        positives, negatives = self.partners
        number = positives * negatives
        masses, (weights, totals) = self.masses(number), self.references_of(number)
        near, far = divide_or_zero(masses, positives), divide_or_zero(masses, totals)
        contrast = self.pairs(near, -far, weights)
        entropy = self._entropy(masses, divide_or_zero(near, totals), contrast)
        return TripletTarget(entropy, contrast, masses)

    def per_anchor(self) -> tuple[Tensor, PairTarget]:
        """Masses p_i ∝ a_i of the anchors that have a positive, and p_i W_ij/n⁺_i."""
        positives, _ = self.partners
        masses = self.masses((positives > 0).to(positives.dtype))
        each = divide_or_zero(masses, positives)
        return masses, self.pairs(each, torch.zeros_like(each))

    def positives(self, *, of_triplets: bool = False) -> TargetPairs:
        """∝ W on all positive pairs, or on A⁺, the (anchor, positive) pairs of A."""
        positives, negatives = self.partners
        masses = self.masses(positives * (negatives > 0) if of_triplets else positives)
        each = divide_or_zero(masses, positives)
        pairs = self.pairs(each, torch.zeros_like(each))
        return TargetPairs(self._entropy(masses, each, pairs), pairs, masses)

    def negatives(self, *, of_triplets: bool = False) -> TargetPairs:
        """Uniform on all negative pairs, or on A⁻, the (anchor, negative) pairs of A."""
        positives, negatives = self.partners
        number = negatives * (positives > 0) if of_triplets else negatives
        masses, (weights, totals) = self.masses(number), self.references_of(number)
        each = divide_or_zero(masses, totals)
        pairs = self.pairs(torch.zeros_like(each), each, weights)
        return TargetPairs(self._entropy(masses, each, pairs), pairs, masses)

    def _entropy(self, masses: Tensor, each: Tensor, pairs: PairTarget) -> Tensor:
        """−Σ P̃ log P̃ of entries each_i · W_ij · v_k with these sums of rows."""
        entropy: Tensor = -xlogy(masses, each).sum() - self.mean_log(pairs)
        return entropy

    def with_marginals(self, marginals: str) -> Self:
        """For ``"classes"`` with class marginals: every class the same mass (mathematics §11)."""
        if marginals != "classes":
            return self
        if isinstance(self, Identities) and not isinstance(self.anchor_weights, Tensor):
            return replace(self, classes=True)
        raise ValueError(
            'marginals="classes" needs classes: pass labels without weights; triplets, pairs and '
            'matrices of pairs have none, use marginals="target"'
        )


@dataclass(frozen=True)
class Identities(Relation):
    """Positives share the anchor's label, negatives do not; the anchor itself is neither."""

    anchors: Tensor  # group of each anchor, 0 … K−1, (N,)
    references: Tensor  # group of each reference, (M,)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    number: int  # K
    within: bool  # whether anchor i is reference i, for all
    apart: bool  # whether no anchor is a reference
    classes: bool = False  # whether every class has the same mass, or every triplet (or pair)
    anchor_weights: Tensor | float = 1.0

    @classmethod
    def of(
        cls, anchors: Tensor, references: Tensor | None = None, own: Tensor | None = None
    ) -> Self:
        """From labels of one set, or of two; some anchors may be among the references.

        On a device K is not read: it is the number of samples, and some groups are empty.
        """
        n, within = len(anchors), references is None
        samples = anchors if references is None else torch.cat([anchors, references])
        ordered, places = samples.sort()
        begun = (ordered[1:] != ordered[:-1]).cumsum(0)
        codes = torch.zeros_like(places).scatter_(0, places[1:], begun)
        number = int(codes.max()) + 1 if on_host(codes) else len(codes)
        apart = own is None and not within
        if own is None:
            own = torch.arange(n, device=codes.device) if within else torch.full_like(codes[:n], -1)
        return cls(codes[:n], codes if within else codes[n:], own, number, within, apart)

    def mirrored(self) -> Self:
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

    @property
    def shape(self) -> tuple[int, int]:  # type: ignore[override]
        """(N, M)."""
        return len(self.anchors), len(self.references)

    @cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """Positives n⁺ and negatives n⁻ of each anchor, (N,) each."""
        same = self.sizes[self.anchors]
        themselves = 1.0 if self.within else (self.own >= 0).to(same.dtype)
        return same - themselves, len(self.references) - same

    def pairs(self, same: Tensor, other: Tensor, weights: Tensor | None = None) -> "GroupedPairs":
        """By sums over groups."""
        weights = same.new_ones(self.number) if weights is None else weights
        return GroupedPairs(self, same, other, weights)

    def of_rows(self, rows: slice) -> Self:
        """The same of some anchors, in targets that have their masses."""
        return replace(self, anchors=self.anchors[rows], own=self.own[rows], within=False)

    def entries(self) -> Tensor:
        """1 at positives, 0 at negatives, −1 at own, (N, M)."""
        same = (self.anchors[:, None] == self.references).to(torch.int8)
        return fill_own(same, self.own, -1)

    def mean_log(self, pairs: Any) -> Tensor | float:
        """W is 1, and without class marginals so is v."""
        if not self.classes:
            return 0.0
        found: Tensor = xlogy(pairs.columns[1].abs(), pairs.weights[self.references]).sum()
        return found

    def masses(self, number: Tensor) -> Tensor:
        """p_i as given; or the same for every class that has any, evenly."""
        if not self.classes:
            return super().masses(number)
        taken = (number > 0).to(number.dtype)
        sizes = self.sums(self.anchors, taken)
        return divide_or_zero(taken, (torch.count_nonzero(sizes) * sizes)[self.anchors])

    def references_of(self, number: Tensor) -> tuple[Tensor | None, Tensor]:
        """Weights v of the references of each group, (K,), and Z_i of each anchor.

        A class of references is negative for all k⁺ anchor classes but itself, if it is one: to
        receive as much as the others it weighs k⁺/(k⁺ − 1) (mathematics §11).
        """
        if not self.classes:
            return super().references_of(number)
        sizes = self.sizes
        anchors = (self.sums(self.anchors, number) > 0) & (sizes > 0)
        others = (torch.count_nonzero(anchors) - 1).to(sizes.dtype)
        weights = 1 + divide_or_zero(anchors.to(sizes.dtype), others)
        weights = divide_or_zero(weights, sizes)
        sums = weights * sizes
        return weights, _difference(sums.sum(), sums)[self.anchors]


@dataclass(frozen=True)
class GroupedPairs(PairTarget):
    """P̃_ij = same_i where j has the label of i, other_i v_j elsewhere, 0 for j = own_i."""

    relation: Identities
    weights: Tensor  # v of the references of each group, (K,)

    def products(self, references: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
        """By sums over groups; ``near`` is ``same`` less what a group has as one of all."""
        groups = self.relation
        near = self.same - self.other * self.weights[groups.anchors]
        factors = (near, self.same, self.other, self.weights)
        near, same, other, weights = (part.to(references.dtype) for part in factors)
        sums = groups.sums(groups.references, references)
        moved = sums[groups.anchors].mul_(near[:, None]).addr_(other, weights @ sums)
        received = groups.sums(groups.anchors, anchors * near[:, None])[groups.references]
        received.addr_(weights[groups.references], other @ anchors)
        if not groups.apart:
            own = references
            if not groups.within:
                own = references[groups.own.clamp(min=0)] * (groups.own >= 0)[:, None]
            moved -= own * same[:, None]
            received -= self._to_own(anchors * same[:, None])
        return moved, received

    def _to_own(self, values: Tensor) -> Tensor:
        """Values (N, …) of anchors, added up at the references that they are, (M, …)."""
        groups = self.relation
        if groups.within:
            return values
        out = values.new_zeros(len(groups.references) + 1, *values.shape[1:])
        return out.index_add_(0, groups.own % len(out), values)[:-1]  # −1 at the end

    @cached_property
    def columns(self) -> Tensor:
        """Column sums over pairs of one label and over pairs of two, (2, M)."""
        groups = self.relation
        received = groups.sums(groups.anchors, self.same)[groups.references]
        sums = groups.sums(groups.anchors, self.other)
        far = (self.weights * _difference(sums.sum(), sums))[groups.references]
        return torch.stack([_difference(received, self._to_own(self.same)), far])

    @cached_property
    def entries(self) -> Tensor:
        """All of P̃, (N, M)."""
        groups = self.relation
        equal = groups.anchors[:, None] == groups.references
        far = self.other[:, None] * self.weights[groups.references]
        return fill_own(torch.where(equal, self.same[:, None], far), groups.own, 0.0)


def _difference(total: Tensor, part: Tensor) -> Tensor:
    """``total − part``, and exactly zero where only rounding is left.

    A mass that is zero must come out as zero; true masses are at least 1/N³ of the total.
    """
    left = total - part
    return left * (left.abs() > 8 * torch.finfo(left.dtype).eps * total.abs())
