"""What losses need from a target coupling: marginals and inner products, never its entries.

And the same of samples that stand elsewhere, for anchors among the references. Put the reference
that is anchor i at place i, and an anchor without mass beside every other one: then "i does not
meet itself" is an empty diagonal, which every coupling knows from one set (mathematics §1). It
costs the memory and time of one set of all references.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor


class PairTarget(Protocol):
    """A target coupling of (anchor, reference) pairs, P̃_ij."""

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums over references, shape (N,), and column sums over anchors, shape (M,)."""

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """``Σ_ij P̃_ij ⟨anchors_i, references_j⟩``, differentiable in both."""

    def dense(self) -> Tensor:
        """P̃ as an N×M matrix, for losses that need it entry by entry."""

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """The support of P̃, or some rows of it, as a boolean matrix: for what needs its entries."""


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
    # P̃¹² − P̃¹³, whose inner product with the similarities is the mean margin.
    contrast: PairTarget
    # Masses of the samples as anchor, as positive and as negative.
    marginals: tuple[Tensor, Tensor, Tensor]
    anchor_weights: Tensor | float  # w, shape (N,), or 1/|A| for all
    negative_weights: Tensor | float = 1.0  # v, shape (M,)

    def weights(
        self, rows: slice = slice(None), dtype: torch.dtype | None = None
    ) -> tuple[Tensor, Tensor]:
        """Two matrices whose product is P̃, where triplets are all products of pairs.

        w_i at the positives of some anchors i, and v_k at their negatives, shape (rows, M) each, in
        the wide dtype unless another is asked for.
        """
        kind, of_anchor = dtype or self.marginals[0].dtype, self.anchor_weights
        if isinstance(of_anchor, Tensor) and of_anchor.ndim:
            of_anchor = of_anchor[rows, None]
        positives, negatives = self.positives.mask(rows), self.negatives.mask(rows)
        return positives.to(kind).mul_(of_anchor), negatives.to(kind).mul_(self.negative_weights)


class Relation(ABC):
    """The admissible triplets of a batch and their projections on pairs."""

    @property
    @abstractmethod
    def n_triplets(self) -> float | Tensor:
        """|A|; a float, since it grows as N³, or what a device knows of it."""

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


# --- anchors among the references, as a relation within one set -----------------------------------


@dataclass(frozen=True)
class Places:
    """Where anchors and references stand: anchors first, in their order.

    Example:
        >>> Places.of(torch.tensor([2, 0]), 4).of_references.tolist()
        [1, 2, 0, 3]
    """

    of_references: Tensor  # shape (M,)
    n_anchors: int

    @classmethod
    def of(cls, own: Tensor, n_references: int) -> Places:
        """From the reference that each anchor is."""
        ranks = torch.arange(len(own), n_references + len(own), device=own.device)
        ranks[own] = torch.arange(len(own), device=own.device)
        return cls(ranks.argsort().argsort(), len(own))

    @property
    def size(self) -> int:
        """Of all places."""
        return len(self.of_references)

    def embed(self, anchors: Tensor, references: Tensor) -> tuple[Tensor, Tensor]:
        """Both sets in their places; the vectors of references stand for anchors without mass."""
        placed = references[self.of_references.argsort()]
        return torch.cat([anchors, placed[self.n_anchors :].detach()]), placed

    def anchor_masses(self, values: Tensor) -> Tensor:
        """Values of the anchors in their places, 0 in the others."""
        return torch.cat([values, values.new_zeros(self.size - self.n_anchors)])

    def reference_masses(self, values: Tensor) -> Tensor:
        """Values of the references in their places, 0 in the others."""
        return values.new_zeros(self.size).index_copy(0, self.of_references, values)

    def uniform(self, n_axes: int, like: Tensor) -> Tensor:
        """Uniform masses of anchors and of references, of all axes in one vector."""
        anchors = self.anchor_masses(like.new_full((self.n_anchors,), 1 / self.n_anchors))
        references = like.new_full((self.size,), 1 / self.size)
        return torch.cat([anchors, *[references] * (n_axes - 1)])


@dataclass(frozen=True)
class PlacedPairs:
    """A pair target whose samples stand elsewhere."""

    pairs: PairTarget
    places: Places

    @property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row and column sums."""
        rows, columns = self.pairs.marginals
        return self.places.anchor_masses(rows), self.places.reference_masses(columns)

    def inner(self, anchors: Tensor, references: Tensor) -> Tensor:
        """That of the samples which have mass."""
        places = self.places
        return self.pairs.inner(anchors[: places.n_anchors], references[places.of_references])

    def dense(self) -> Tensor:
        """The entries."""
        return self._placed(self.pairs.dense())

    def mask(self, rows: slice = slice(None)) -> Tensor:
        """Pairs that have weight, of some anchors."""
        return self._placed(self.pairs.mask())[rows]

    def _placed(self, entries: Tensor) -> Tensor:
        size = self.places.size
        placed = entries.new_zeros(size, size)
        placed[: self.places.n_anchors, self.places.of_references] = entries
        return placed


@dataclass(frozen=True)
class PlacedRelation(Relation):
    """A relation whose samples stand elsewhere."""

    relation: Relation
    places: Places

    @property
    def n_triplets(self) -> float | Tensor:
        """|A|."""
        return self.relation.n_triplets

    @property
    def n_positives(self) -> float | Tensor:
        """The number of positive pairs."""
        return self.relation.n_positives

    def triplets(self) -> TripletTarget:
        """P̃ in its places."""
        target, places = self.relation.triplets(), self.places
        positives, negatives = (
            PlacedPairs(pairs, places) for pairs in (target.positives, target.negatives)
        )
        of_anchor, of_negative = target.anchor_weights, target.negative_weights
        if isinstance(of_anchor, Tensor) and of_anchor.ndim:
            of_anchor = places.anchor_masses(of_anchor)
        if isinstance(of_negative, Tensor):
            of_negative = places.reference_masses(of_negative)
        return replace(
            target,
            positives=positives,
            negatives=negatives,
            contrast=PlacedPairs(target.contrast, places),
            marginals=(*positives.marginals, negatives.marginals[1]),
            anchor_weights=of_anchor,
            negative_weights=of_negative,
        )

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """In their places."""
        target = self.relation.on_pairs(positive=positive, of_triplets=of_triplets)
        return TargetPairs(target.entropy, PlacedPairs(target.pairs, self.places))

    def per_anchor(self) -> PlacedPairs:
        """In their places."""
        return PlacedPairs(self.relation.per_anchor(), self.places)
