"""Identities whose pairs do not all weigh the same: class marginals, anchors among the references.

Every target here is ``P̃¹²_ij = p_i/n⁺_i`` on the positives and ``P̃¹³_ik = p_i v_k/Z_i`` on the
negatives of anchor i, with its mass p_i, weights v of the references and ``Z_i = Σ_k v_k`` over its
negatives; given the anchor, positive and negative are independent (mathematics §11).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero, told
from tricouple.relations.identities import Identities, all_but_own, difference
from tricouple.relations.targets import Relation, TargetPairs, TripletTarget


@dataclass(frozen=True)
class WeightedIdentities(Relation):
    """Positives share the anchor's identity, negatives do not; an anchor may be a reference.

    Example:
        >>> identities = Identities.within_one_set(torch.tensor([0, 0, 1, 1, 1]))
        >>> by_class(identities).triplets().marginals[0].round(decimals=3).tolist()
        [0.25, 0.25, 0.167, 0.167, 0.167]
    """

    identities: Identities
    own: Tensor  # the reference that is the anchor, −1 for none, shape (N,)
    classes: bool  # whether every class has the same mass, or every triplet (or pair)

    @functools.cached_property
    def partners(self) -> tuple[Tensor, Tensor]:
        """Positives n⁺ and negatives n⁻ of each anchor, shape (N,) each."""
        references = self.identities.sizes[1][self.identities.codes[0]]
        negatives = len(self.identities.references) - references
        return references - (self.own >= 0).to(references.dtype), negatives

    @functools.cached_property
    def n_triplets(self) -> float | Tensor:
        """|A| = Σ_i n⁺_i n⁻_i."""
        positives, negatives = self.partners
        return told(positives @ negatives)

    @functools.cached_property
    def n_positives(self) -> float | Tensor:
        """Σ_i n⁺_i."""
        return told(self.partners[0].sum())

    def triplets(self) -> TripletTarget:
        """P̃_ijk = p_i/n⁺_i · v_k/Z_i (mathematics §11)."""
        positives, negatives = self.partners
        counts = positives * negatives
        masses = self._masses(counts)
        references, totals = self._references(counts)
        near, far = divide_or_zero(masses, positives), divide_or_zero(masses, totals)
        raised = AnchorPairs(self, same=near)
        lowered = AnchorPairs(self, different=far, weights=references)
        contrast = AnchorPairs(self, same=near, different=-far, weights=references)
        marginals = (*raised.marginals, lowered.marginals[1])
        of_anchor = divide_or_zero(near, totals)
        entropy = -_xlogx(masses, of_anchor) - _xlogx(marginals[2], references)
        return TripletTarget(entropy, raised, lowered, contrast, marginals, of_anchor, references)

    def per_anchor(self) -> AnchorPairs:
        """Same identity, a pair weighing 1/n⁺_i of what its anchor weighs."""
        positives = self.partners[0]
        anchors = torch.count_nonzero(positives).to(positives.dtype)
        return AnchorPairs(self, same=divide_or_zero(1 / anchors, positives))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """Of one identity or of two, for all anchors or for those that have both."""
        partners, others = self.partners if positive else self.partners[::-1]
        counts = partners * (others > 0) if of_triplets else partners
        masses = self._masses(counts)
        if positive:
            weights = divide_or_zero(masses, partners)
            return TargetPairs(-_xlogx(masses, weights), AnchorPairs(self, same=weights))
        references, totals = self._references(counts)
        of_anchor = divide_or_zero(masses, totals)
        pairs = AnchorPairs(self, different=of_anchor, weights=references)
        entropy = -_xlogx(masses, of_anchor) - _xlogx(pairs.marginals[1], references)
        return TargetPairs(entropy, pairs)

    def _masses(self, counts: Tensor) -> Tensor:
        """p_i: as many as its triplets or pairs; or every class that has any the same, evenly."""
        if not self.classes:
            return counts / counts.sum()
        taken = (counts > 0).to(counts.dtype)
        sizes = self.identities.anchor_sums(taken)
        per_class = torch.count_nonzero(sizes) * sizes
        return divide_or_zero(taken, per_class[self.identities.codes[0]])

    def _references(self, counts: Tensor) -> tuple[Tensor, Tensor]:
        """v_k of each reference, and Z_i of each anchor.

        A class of references is negative for all k⁺ anchor classes but itself, if it is one: to
        receive as much as the others it weighs k⁺/(k⁺ − 1) (mathematics §11).
        """
        anchor_codes, codes = self.identities.codes
        sizes = self.identities.sizes[1]
        weights = torch.ones_like(sizes)
        if self.classes:
            anchors = (self.identities.anchor_sums(counts) > 0) & (sizes > 0)
            others = (torch.count_nonzero(anchors) - 1).to(sizes.dtype)
            weights = weights + divide_or_zero(anchors.to(sizes.dtype), others)
            weights = divide_or_zero(weights, sizes)
        return weights[codes], all_but_own(weights * sizes)[anchor_codes]


@dataclass(frozen=True)
class AnchorPairs:
    """P̃_ij = same_i where j has the identity of i, and different_i · weights_j elsewhere.

    The pair of an anchor with itself has none.
    """

    relation: WeightedIdentities
    same: Tensor | None = None  # shape (N,)
    different: Tensor | None = None  # shape (N,)
    weights: Tensor | None = None  # shape (M,), with ``different``

    @functools.cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row and column sums, from sums over groups."""
        identities = self.relation.identities
        anchor_codes, codes = identities.codes
        like = identities.sizes[0]
        rows, columns = like.new_zeros(len(anchor_codes)), like.new_zeros(len(codes))
        if self.same is not None:
            rows = rows + self.same * self.relation.partners[0]
            received = identities.anchor_sums(self.same)[codes]
            columns = columns + difference(received, self._own_sums(self.same))
        if self.different is not None and self.weights is not None:
            references = like.new_zeros(len(like)).index_add_(0, codes, self.weights)
            rows = rows + self.different * all_but_own(references)[anchor_codes]
            sent = all_but_own(identities.anchor_sums(self.different))
            columns = columns + self.weights * sent[codes]
        return rows, columns

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """Sums over groups instead of pairs."""
        identities, own = self.relation.identities, self.relation.own
        anchor_codes, codes = identities.codes
        groups = references.new_zeros(len(identities.sizes[0]), references.shape[1])
        received = torch.zeros_like(anchors)
        if self.same is not None:
            near = groups.index_add(0, codes, references)[anchor_codes]
            itself = references[own.clamp(min=0)] * (own >= 0)[:, None]
            received = received + self.same[:, None] * (near - itself)
        if self.different is not None and self.weights is not None:
            weighted = self.weights[:, None] * references
            far = weighted.sum(0) - groups.index_add(0, codes, weighted)
            received = received + self.different[:, None] * far[anchor_codes]
        return (anchors * received).sum()

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries, of some anchors."""
        anchor_codes, codes = self.relation.identities.codes
        equal = anchor_codes[rows, None] == codes
        zero = self.relation.partners[0].new_zeros(())
        near = zero if self.same is None else self.same[rows, None]
        far = zero
        if self.different is not None and self.weights is not None:
            far = self.different[rows, None] * self.weights
        entries = torch.where(equal, near, far)
        return exclude_own_(entries, self.relation.own[rows], 0.0)

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """Pairs that have weight, of some anchors."""
        return self.dense(rows) != 0

    def _own_sums(self, values: Tensor) -> Tensor:
        """For each reference the sum of the values of the anchors that it is, shape (M,)."""
        own = self.relation.own
        sums = values.new_zeros(len(self.relation.identities.references))
        return sums.index_add_(0, own.clamp(min=0), values * (own >= 0))


def exclude_own_(entries: Tensor, own: Tensor, value: float) -> Tensor:
    """Overwrite the entry of every row whose column is its own, −1 for none."""
    at = torch.arange(len(own), device=own.device), own.clamp(min=0)
    entries[at] = torch.where(own >= 0, value, entries[at])
    return entries


def by_class(relation: Relation) -> WeightedIdentities:
    """The relation with class marginals: every class the same mass on every axis."""
    if isinstance(relation, WeightedIdentities):
        return replace(relation, classes=True)
    if not isinstance(relation, Identities):
        raise ValueError(
            'marginals="classes" needs classes: pass labels; triplets and pairs of indices_tuple '
            'have none, use marginals="target"'
        )
    n, device = len(relation.anchors), relation.anchors.device
    own = torch.arange(n, device=device) if relation.within else torch.full((n,), -1, device=device)
    return WeightedIdentities(relation, own, classes=True)


def _xlogx(masses: Tensor, weights: Tensor) -> float | Tensor:
    """``Σ masses · log weights``, where no mass counts nothing."""
    return told(torch.special.xlogy(masses, weights).sum())
