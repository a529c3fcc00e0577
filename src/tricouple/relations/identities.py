"""The relation of samples that share an identity: everything is a sum over groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple import checks
from tricouple.groups import Group, Processes
from tricouple.numeric import divide_or_zero, on_host, wide_dtype
from tricouple.relations.target import (
    GroupedPairs,
    Groups,
    Relation,
    TargetPairs,
    TripletTarget,
    difference,
)


@dataclass(frozen=True)
class Identities(Relation):
    """Positives share the anchor's identity, negatives do not; an anchor does not meet itself.

    Every target is ``P̃¹²_ij = p_i/n⁺_i`` on the positives and ``P̃¹³_ik = p_i v_k/Z_i`` on the
    negatives of anchor i, with its mass p_i, weights v of the references and ``Z_i = Σ_k v_k`` over
    its negatives; given the anchor, positive and negative are independent (mathematics §1, §11).

    Example:
        >>> relation = Identities.within_one_set(torch.tensor([0, 0, 1]))
        >>> int(relation.n_triplets)   # (0, 1, 2) and (1, 0, 2)
        2
    """

    anchors: Tensor  # identity of each anchor, (N,)
    references: Tensor  # identity of each reference, (M,)
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    within: bool  # whether anchors and references are the same samples
    apart: bool = False  # whether no anchor is a reference
    classes: bool = False  # whether every class has the same mass, or every triplet (or pair)

    @classmethod
    def within_one_set(cls, identities: Tensor) -> Identities:
        """Anchors and references are the same samples."""
        own = torch.arange(len(identities), device=identities.device)
        return cls(identities, identities, own, within=True)

    @classmethod
    def across(cls, anchors: Tensor, references: Tensor, own: Tensor | None = None) -> Identities:
        """Two sets; anchors may be among the references."""
        apart = own is None
        if own is None:
            own = torch.full_like(anchors, -1, dtype=torch.long)
        return cls(anchors, references, own, within=False, apart=apart)

    def with_class_masses(self) -> Identities:
        """With class marginals (mathematics §11)."""
        return replace(self, classes=True)

    def mirrored(self) -> Identities:
        """With anchors for references, of two sets without common samples."""
        return replace(Identities.across(self.references, self.anchors), classes=self.classes)

    @cached_property
    def groups(self) -> Groups:
        """Identities numbered 0 … K−1.

        Where K would have to be read from a device it is the number of samples, and some groups
        are empty.
        """
        samples = self.anchors if self.within else torch.cat([self.anchors, self.references])
        if on_host(samples):
            values, codes = torch.unique(samples, return_inverse=True)
            number = len(values)
        else:
            ordered, places = samples.sort()
            begun = (ordered[1:] != ordered[:-1]).cumsum(0)
            codes = torch.zeros_like(places).scatter_(0, places[1:], begun)
            number = len(codes)
        n = len(self.anchors)
        pair = (codes, codes) if self.within else (codes[:n], codes[n:])
        return Groups(*pair, self.own, number, self.within, self.apart)

    @cached_property
    def sizes(self) -> Tensor:
        """The number of references in each group, (K,), float64."""
        ones = torch.ones_like(self.references, dtype=wide_dtype(self.references.device))
        return self.groups.reference_sums(ones)

    @cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """Positives n⁺ and negatives n⁻ of each anchor, (N,) each."""
        same = self.sizes[self.groups.anchors]
        themselves = 1.0 if self.within else (self.own >= 0).to(same.dtype)
        return same - themselves, len(self.references) - same

    @cached_property
    def n_triplets(self) -> Tensor:
        """|A| = Σ_i n⁺_i n⁻_i."""
        positives, negatives = self.partners
        return positives @ negatives

    @cached_property
    def n_positives(self) -> Tensor:
        """Σ_i n⁺_i."""
        return self.partners[0].sum()

    def triplets(self) -> TripletTarget:
        """P̃_ijk = p_i/n⁺_i · v_k/Z_i: 1/|A|, but for class marginals."""
        positives, negatives = self.partners
        masses = self._masses(positives * negatives)
        weights, totals = self._references(positives * negatives)
        near, far = divide_or_zero(masses, positives), divide_or_zero(masses, totals)
        contrast = GroupedPairs(self.groups, near, -far, weights)
        received = GroupedPairs(self.groups, near, far, weights).columns
        each = divide_or_zero(near, totals)
        entropy = -xlogy(masses, each).sum() - xlogy(received[1], weights).sum()
        return TripletTarget(entropy, contrast, (masses, *received), each, weights)

    def per_anchor(self) -> GroupedPairs:
        """Same label, each pair weighing 1/n⁺_i of what its anchor weighs."""
        positives = self.partners[0]
        anchors = torch.count_nonzero(positives).to(positives.dtype)
        return self._pairs(divide_or_zero(1 / anchors, positives))

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
        pairs = GroupedPairs(self.groups, torch.zeros_like(each), each, weights)
        entropy = -xlogy(masses, each).sum() - xlogy(pairs.columns[1], weights).sum()
        return TargetPairs(entropy, pairs)

    def _pairs(self, same: Tensor) -> GroupedPairs:
        """Pairs of one label, weighing so much for each anchor."""
        none = torch.zeros_like(same)
        return GroupedPairs(self.groups, same, none, none.new_zeros(len(self.references)))

    def _masses(self, number: Tensor) -> Tensor:
        """p_i: as many as its triplets or pairs; or every class that has any the same, evenly."""
        if not self.classes:
            return number / number.sum()
        taken = (number > 0).to(number.dtype)
        sizes = self.groups.anchor_sums(taken)
        return divide_or_zero(taken, (torch.count_nonzero(sizes) * sizes)[self.groups.anchors])

    def _references(self, number: Tensor) -> tuple[Tensor, Tensor]:
        """v_k of each reference, (M,), and Z_i of each anchor.

        A class of references is negative for all k⁺ anchor classes but itself, if it is one: to
        receive as much as the others it weighs k⁺/(k⁺ − 1) (mathematics §11).
        """
        if not self.classes:
            return torch.ones_like(self.references, dtype=number.dtype), self.partners[1]
        groups, sizes = self.groups, self.sizes
        anchors = (groups.anchor_sums(number) > 0) & (sizes > 0)
        others = (torch.count_nonzero(anchors) - 1).to(sizes.dtype)
        weights = 1 + divide_or_zero(anchors.to(sizes.dtype), others)
        weights = divide_or_zero(weights, sizes)
        sums = weights * sizes
        return weights[groups.references], difference(sums.sum(), sums)[groups.anchors]


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
    team = None if group is None else Processes.of(group)
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


def adjacent_views(relation: Identities) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the first and of the second view of pairs, and which of them are pairs."""
    groups = relation.groups
    # A place, group and number in one: a pair is two samples at one place, next to each other.
    if relation.within:
        places = groups.anchors + groups.number * (_number_in_group(groups.anchors) // 2)
    else:
        both = groups.anchors, groups.references
        places = torch.cat([c + groups.number * _number_in_group(c) for c in both])
    places, order = places.sort(stable=True)
    met = places[1:] == places[:-1]
    first, second = order[:-1] * met, order[1:]
    return first, (second if relation.within else second - len(groups.anchors)) * met, met


def _number_in_group(codes: Tensor) -> Tensor:
    """How many samples of the same group come earlier in the batch, shape (N,)."""
    ordered, order = codes.sort(stable=True)
    numbers = torch.arange(len(codes), device=codes.device) - torch.searchsorted(ordered, ordered)
    return torch.empty_like(codes).index_copy_(0, order, numbers)
