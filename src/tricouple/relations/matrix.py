"""A relation as a matrix: weights of pairs that a user gives, or pairs that a miner finds."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, fill_own, weighed, wide_dtype
from tricouple.relations.target import PairsByRows, Relation, TargetPairs, TripletTarget


@dataclass(frozen=True)
class PairMatrix(Relation):
    """W_ij > 0 is a positive of anchor i with that weight, 0 a negative; −1 and own_i are neither.

    As the user gives it, or a miner's pairs, all positives of an anchor with all negatives of it.
    Targets are ``a_i W_ij/Z`` on triplets (i, j, k) and on pairs (i, j), and ``a_i/Z`` on pairs
    (i, k), with weights a of the anchors (mathematics §1).

    Example:
        >>> relation = PairMatrix(torch.tensor([[9.0, 0.5, 0.0]]), torch.tensor([0]))
        >>> float(relation.n_triplets)   # (0, 1, 2), with weight ½
        0.5
    """

    matrix: Tensor  # W, (N, M), of any real dtype
    own: Tensor  # the reference that each anchor is, −1 for none, (N,)
    anchor_weights: Tensor | None = None

    def mirrored(self) -> PairMatrix:
        """With anchors for references, of two sets without common samples."""
        own = self.own.new_full((self.matrix.shape[1],), -1)
        return PairMatrix(self.matrix.T, own, self.anchor_weights)

    @cached_property
    def sums(self) -> Tensor:
        """Σ_j W_ij and the number of negatives of each anchor, (2, N)."""
        ones = torch.ones_like(self.own, dtype=wide_dtype(self.own.device))
        return MatrixPairs(self.matrix, self.own, ones, ones).sums[0]

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """Σ_i a_i n⁻_i Σ_j W_ij."""
        return weighed(self.sums.prod(0), self.anchor_weights).sum()

    @cached_property
    def n_positives(self) -> Tensor:  # type: ignore[override]
        """Σ_i a_i Σ_j W_ij."""
        return weighed(self.sums[0], self.anchor_weights).sum()

    def entries(self, rows: slice) -> Tensor:
        """W of some anchors, and −1 at own, (R, M)."""
        part = self.matrix[rows]
        part = part.to(torch.int8) if part.dtype == torch.bool else part.clone()
        return fill_own(part, self.own[rows], -1)

    def triplets(self) -> TripletTarget:
        """P̃_ijk ∝ a_i W_ij on the negatives k of i."""
        near, far = self.sums
        each = self._shares(torch.ones_like(near), near * far)
        contrast = MatrixPairs(self.matrix, self.own, each * far, -each * near)
        (masses, _), (second, third) = contrast.sums
        attracting = replace(contrast, far=torch.zeros_like(far))
        entropy = attracting.entropy() + xlogy(masses, far).sum()  # P̃_ijk is P̃¹²_ij/n⁻_i
        return TripletTarget(entropy, contrast, (masses, second, -third))

    def per_anchor(self) -> MatrixPairs:
        """P̃_ij = p_i W_ij/Σ_j W_ij, with p_i ∝ a_i."""
        near = self.sums[0]
        taken = (near > 0).to(near.dtype)
        each = divide_or_zero(self._shares(taken, taken), near)
        return MatrixPairs(self.matrix, self.own, each, torch.zeros_like(each))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """P̃_ij ∝ a_i W_ij on positive pairs, or a_i on negative ones."""
        number, others = self.sums if positive else self.sums.flip(0)
        taken = (others > 0).to(others.dtype) if of_triplets else torch.ones_like(others)
        each, none = self._shares(taken, number), torch.zeros_like(number)
        ends = (each, none) if positive else (none, each)
        pairs = MatrixPairs(self.matrix, self.own, *ends)
        return TargetPairs(pairs.entropy(), pairs)

    def _shares(self, taken: Tensor, numbers: Tensor) -> Tensor:
        """a_i/Z of the anchors that are taken, Z = Σ_i a_i · numbers_i."""
        masses = weighed(taken, self.anchor_weights)
        return masses / torch.dot(masses, numbers)


@dataclass(frozen=True)
class MatrixPairs(PairsByRows):
    """P̃_ij = near_i W_ij at positives, far_i at negatives, 0 for j = own_i."""

    matrix: Tensor  # W, (N, M)
    own: Tensor  # (N,)
    near: Tensor  # (N,), float64
    far: Tensor  # (N,)

    @property
    def shape(self) -> torch.Size:  # type: ignore[override]
        """(N, M)."""
        return self.matrix.shape

    def scaled(self, factor: float | Tensor) -> MatrixPairs:
        """P̃ times a number."""
        return replace(self, near=self.near * factor, far=self.far * factor)

    def of_rows(self, rows: slice) -> MatrixPairs:
        """The same of some anchors."""
        parts = self.matrix, self.own, self.near, self.far
        return MatrixPairs(*(part[rows] for part in parts))

    def sides(self) -> Tensor:
        """Entries of positives and of negatives, (2, N, M)."""
        near = self.matrix.to(self.near.dtype).clamp(min=0) * self.near[:, None]
        far = (self.matrix == 0) * self.far[:, None]
        return torch.stack([fill_own(side, self.own, 0.0) for side in (near, far)])

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        return self.of_rows(rows).sides().sum(0)

    @cached_property
    def sums(self) -> tuple[Tensor, Tensor]:
        """Row sums, (2, N), and column sums, (2, M), of positives and of negatives."""
        parts = (self.of_rows(rows).sides() for rows in self.blocks())
        rows, columns = zip(*((part.sum(2), part.sum(1)) for part in parts), strict=True)
        return torch.cat(rows, 1), torch.stack(columns).sum(0)
