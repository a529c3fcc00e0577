"""The relation of samples that share an identity: everything is a sum over groups.

All samples of one identity play the same part, so counts, weights and masses are numbers of the K
groups, and inner products with the similarities come from the groups' sums, O(N·d).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.distributed import Group, Team
from tricouple.numeric import divide_or_zero, logarithm, on_host, told, wide_dtype
from tricouple.relations.targets import Relation, TargetPairs, TripletTarget


@dataclass(frozen=True)
class Identities(Relation):
    """Positives share the anchor's identity, negatives do not.

    Args:
        anchors: Identity of each anchor, shape (N,).
        references: Identity of each reference, shape (M,).
        within: Whether anchors and references are the same samples, so that i = j is no pair.

    Example:
        >>> relation = Identities.within_one_set(torch.tensor([0, 0, 1]))
        >>> relation.n_triplets   # (0, 1, 2) and (1, 0, 2)
        2.0
    """

    anchors: Tensor
    references: Tensor
    within: bool

    @classmethod
    def within_one_set(cls, identities: Tensor) -> Identities:
        """Anchors and references are the same samples."""
        return cls(identities, identities, within=True)

    @functools.cached_property
    def _groups(self) -> tuple[Tensor, Tensor]:
        """The group, 0 … K−1, of each sample, and the number of samples in each group.

        Where K would have to be read from a device it is the number of samples, and some groups
        are empty.
        """
        samples = self.anchors if self.within else torch.cat([self.anchors, self.references])
        if not on_host(samples):
            ordered, places = samples.sort()
            begun = (ordered[1:] != ordered[:-1]).cumsum(0)
            codes = torch.zeros_like(places).scatter_(0, places[1:], begun)
            return codes, _counts(codes, len(codes), wide_dtype(codes.device))
        _, codes, counts = torch.unique(samples, return_inverse=True, return_counts=True)
        return codes, counts.to(wide_dtype(codes.device))

    @functools.cached_property
    def codes(self) -> tuple[Tensor, Tensor]:
        """The group of each anchor and of each reference."""
        codes = self._groups[0]
        n = len(self.anchors)
        return (codes, codes) if self.within else (codes[:n], codes[n:])

    @functools.cached_property
    def sizes(self) -> tuple[Tensor, Tensor]:
        """The number of anchors and of references in each group, shape (K,) each."""
        both = self._groups[1]
        if self.within:
            return both, both
        anchors = _counts(self.codes[0], len(both), both.dtype)
        return anchors, both - anchors

    def anchor_sums(self, values: Tensor) -> Tensor:
        """The sum of the anchors' values in each group, shape (K,)."""
        sums = values.new_zeros(len(self.sizes[0]))
        return sums.index_add_(0, self.codes[0], values)

    @functools.cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """Positives n⁺ and negatives n⁻ of an anchor of each group, shape (K,) each."""
        references = self.sizes[1]
        return references - int(self.within), len(self.references) - references

    @functools.cached_property
    def n_triplets(self) -> float | Tensor:
        """|A| = Σ_i n⁺_i n⁻_i."""
        positives, negatives = self.partners
        return told(self.sizes[0] @ (positives * negatives))

    @functools.cached_property
    def n_positives(self) -> float | Tensor:
        """Σ_i n⁺_i."""
        return told(self.sizes[0] @ self.partners[0])

    def triplets(self) -> TripletTarget:
        """P̃¹²_ij = W⁺_ij n⁻_i/|A| and P̃¹³_ik = W⁻_ik n⁺_i/|A| (mathematics §1)."""
        per_negative, per_positive = (count / self.n_triplets for count in self.partners)
        positives = GroupedPairs(self, same=per_positive)
        negatives = GroupedPairs(self, different=per_negative)
        contrast = GroupedPairs(self, same=per_positive, different=-per_negative)
        entropy, weight = logarithm(self.n_triplets), 1 / self.n_triplets
        marginals = (*positives.marginals, negatives.marginals[1])
        return TripletTarget(entropy, positives, negatives, contrast, marginals, weight)

    def per_anchor(self) -> GroupedPairs:
        """Same identity, a pair weighing 1/n⁺_i of what its anchor weighs."""
        positives = self.partners[0]
        anchors = self.sizes[0] @ (positives > 0).to(positives.dtype)
        return GroupedPairs(self, same=divide_or_zero(1 / anchors, positives))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Of one identity or of two, for all anchors or for those that have both."""
        partners, others = self.partners if positive else self.partners[::-1]
        kept = others > 0 if of_triplets else torch.ones_like(others, dtype=torch.bool)
        size = told((self.sizes[0] * kept) @ partners)
        weights = kept.to(partners.dtype) / size
        pairs = GroupedPairs(self, weights) if positive else GroupedPairs(self, different=weights)
        return TargetPairs(logarithm(size), pairs)


@dataclass(frozen=True)
class GroupedPairs:
    """P̃_ij = same_g where j has the identity of i, and different_g elsewhere, g the group of i."""

    relation: Identities  # the groups
    # Weight of a pair of one identity, by group, shape (K,); None for zero.
    same: Tensor | None = None
    # Weight of a pair of two identities, by the anchor's group; None for zero.
    different: Tensor | None = None

    @functools.cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """An anchor's weight times its partners, and what a reference receives from anchors."""
        positives, negatives = self.relation.partners
        anchor_sizes = self.relation.sizes[0]
        rows, columns = [], []
        if self.same is not None:
            rows.append(self.same * positives)
            columns.append(self.same * (anchor_sizes - int(self.relation.within)))
        if self.different is not None:
            rows.append(self.different * negatives)
            columns.append(all_but_own(self.different * anchor_sizes))
        anchor_codes, reference_codes = self.relation.codes
        return (
            functools.reduce(torch.add, rows).index_select(0, anchor_codes),
            functools.reduce(torch.add, columns).index_select(0, reference_codes),
        )

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """Sums over groups instead of pairs."""
        if self.relation.within:
            return _Form.apply(self._within, anchors)  # type: ignore[no-any-return, no-untyped-call]
        return _Form.apply(self._across, anchors, references)  # type: ignore[no-any-return, no-untyped-call]

    def _across(self, anchors: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_j P̃_ij references_j``, shape (N, d), and ``Σ_i P̃_ij anchors_i``, shape (M, d)."""
        anchor_codes, reference_codes = self.relation.codes
        by_anchor = self._sum(anchors, anchor_codes)
        by_reference = self._sum(references, reference_codes)
        rows, columns = [], []  # what each group receives from the other side, shape (K, d)
        if self.same is not None:
            weights = self.same[:, None]
            rows.append(weights * by_reference)
            columns.append(weights * by_anchor)
        if self.different is not None:
            weights = self.different[:, None]
            sent = weights * by_anchor
            rows.append(weights * (by_reference.sum(0) - by_reference))
            columns.append(sent.sum(0) - sent)
        return (
            functools.reduce(torch.add, rows).index_select(0, anchor_codes),
            functools.reduce(torch.add, columns).index_select(0, reference_codes),
        )

    def _within(self, samples: Tensor) -> tuple[Tensor]:
        """``Σ_j (P̃_ij + P̃_ji) samples_j``, without the pairs i = j."""
        codes = self.relation.codes[0]
        sums = self._sum(samples, codes)
        if self.different is None:
            assert self.same is not None
            received = (2 * self.same)[:, None] * sums
        else:
            # different_g (S − S_g) + Σ_{l≠g} different_l S_l, where S is the sum of all S_g
            own = self.different if self.same is None else self.different - self.same
            received = (-2 * own)[:, None] * sums
            received.addr_(self.different, sums.sum(0)).add_(self.different @ sums)
        total = received.index_select(0, codes)
        if self.same is not None:
            total.addcmul_(samples, self.same.index_select(0, codes)[:, None], value=-2)
        return (total,)

    def _sum(self, samples: Tensor, codes: Tensor) -> Tensor:
        """Sum of each group, shape (K, d)."""
        n_groups = len(self.relation.sizes[0])
        return samples.new_zeros(n_groups, samples.shape[1]).index_add_(0, codes, samples)

    def dense(self) -> Tensor:
        """The entries."""
        return self._entries(self.same, self.different)

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """Pairs that have weight, of some anchors."""
        same, different = (
            None if weights is None else weights != 0 for weights in (self.same, self.different)
        )
        return self._entries(same, different, rows)

    def _entries(
        self, same: Tensor | None, different: Tensor | None, rows: slice = slice(None)
    ) -> Tensor:
        anchor_codes, reference_codes = self.relation.codes
        anchor_codes = anchor_codes[rows]
        equal = anchor_codes[:, None] == reference_codes
        near, far = (
            equal.new_zeros(()) if weights is None else weights[anchor_codes, None]
            for weights in (same, different)
        )
        entries = torch.where(equal, near, far)
        if self.relation.within:
            entries.diagonal(rows.start or 0).fill_(0)
        return entries


class _Form(torch.autograd.Function):
    """A bilinear form of two arguments, or a quadratic one of one: partial sums are gradients."""

    @staticmethod
    def forward(
        ctx: Any, partial_sums: Callable[..., tuple[Tensor, ...]], *samples: Tensor
    ) -> Tensor:
        sums = partial_sums(*samples)
        ctx.save_for_backward(*samples, *sums)
        ctx.partial_sums = partial_sums
        return torch.dot(samples[0].flatten(), sums[0].flatten()) / (3 - len(samples))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        half = len(ctx.saved_tensors) // 2
        samples, sums = ctx.saved_tensors[:half], ctx.saved_tensors[half:]
        if torch.is_grad_enabled():  # a second derivative moves the sums too
            sums = ctx.partial_sums(*samples)
        return None, *(gradient * part for part in sums)


def _counts(codes: Tensor, n_groups: int, dtype: torch.dtype) -> Tensor:
    """The number of samples in each group, shape (K,)."""
    if on_host(codes):
        return torch.bincount(codes, minlength=n_groups).to(dtype)
    ones = torch.ones_like(codes, dtype=dtype)
    return ones.new_zeros(n_groups).index_add_(0, codes, ones)


def all_but_own(values: Tensor) -> Tensor:
    """``Σ_{l≠k} values_l`` for each k."""
    return difference(values.sum(), values)


def difference(total: Tensor, part: Tensor) -> Tensor:
    """``total − part``, and exactly zero where only rounding is left.

    A mass that is zero must come out as zero; true masses are at least 1/N³ of the total.
    """
    left = total - part
    return left * (left > 8 * torch.finfo(left.dtype).eps * total)


# --- several views as one labelled batch, and a labelled batch as two views ----------------------


def pair_views(*views: Tensor | Sequence[Tensor], group: Group = None) -> tuple[Tensor, Tensor]:
    """Stack views and number their instances, ready for any loss.

    Args:
        views: Two or more tensors of shape (N, d), or one list of them; row i of each is a view of
            instance i.
        group: Processes whose instances are numbered together, as in every loss: each goes on
            where the one before it ends.

    Returns:
        Embeddings, shape (views·N, d), and the instance of each row, shape (views·N,).

    Example:
        >>> embeddings, identities = pair_views(torch.zeros(2, 3), torch.ones(2, 3))
        >>> identities
        tensor([0, 1, 0, 1])
    """
    team = None if group is None else Team.of(group)
    several: Sequence[Tensor] = []
    first, problem = 0, None
    try:
        several = _checked_views(views, empty=team is not None)
    except (TypeError, ValueError) as error:
        if team is None:
            raise
        problem = str(error)
    if team is not None:
        first = team.before(len(several[0]) if several else 0, problem)
    identities = torch.arange(first, first + len(several[0]), device=several[0].device)
    return torch.cat(tuple(several)), identities.repeat(len(several))


def _checked_views(views: Sequence[Any], *, empty: bool) -> Sequence[Tensor]:
    several: Sequence[Any] = views
    if len(views) == 1 and isinstance(views[0], list | tuple):
        several = views[0]
    if len(several) < 2:
        raise ValueError(f"pair_views needs at least 2 views of each instance, got {len(several)}")
    first = several[0]
    for number, view in enumerate(several):
        checks.matrix(f"view {number}", view, empty=empty)
        if view.shape != first.shape:
            raise ValueError(
                f"view {number} has shape {tuple(view.shape)}, view 0 {tuple(first.shape)}: "
                "row i of every view must belong to instance i"
            )
    return several


def view_pairs(relation: Identities) -> tuple[Tensor, Tensor]:
    """Indices of the first and of the second view of each pair, shape (pairs,) each."""
    first, second, met = adjacent_views(relation)
    return first[met], second[met]


def adjacent_views(relation: Identities) -> tuple[Tensor, Tensor, Tensor]:
    """The same among more indices, and which of them are pairs: nobody counts the pairs."""
    anchors = relation.codes[0]
    n_groups = len(relation.sizes[0])
    # A place, group and number in one: a pair is two samples at one place, next to each other.
    if relation.within:
        places = anchors + n_groups * (_number_in_group(anchors, n_groups) // 2)
    else:
        places = torch.cat([c + n_groups * _number_in_group(c, n_groups) for c in relation.codes])
    places, order = places.sort(stable=True)
    met = places[1:] == places[:-1]
    first, second = order[:-1] * met, order[1:]
    return first, (second if relation.within else second - len(anchors)) * met, met


def _number_in_group(codes: Tensor, n_groups: int) -> Tensor:
    """How many samples of the same group come earlier in the batch, shape (N,)."""
    order = codes.argsort(stable=True)
    counts = codes.new_zeros(n_groups).index_add_(0, codes, torch.ones_like(codes))
    starts = counts.cumsum(0) - counts
    numbers = torch.arange(len(codes), device=codes.device) - starts[codes[order]]
    return torch.empty_like(codes).index_copy_(0, order, numbers)
