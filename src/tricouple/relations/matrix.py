"""A relation that is given by a matrix of weights."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor
from torch.special import xlogy

from tricouple.numeric import divide_or_zero, fill_own, wide_dtype
from tricouple.relations.target import Relation, TargetPairs, TripletTarget

_ENTRIES = 1 << 20  # of a block of rows, in float64


@dataclass(frozen=True)
class PairMatrix(Relation):
    """W_ij > 0 is a positive of anchor i with that weight, 0 a negative; own_i is neither.

    Targets are ``P̃_ijk = a_i W_ij/Z`` on the negatives k of i, ``P̃¹²_ij = a_i W_ij/Z`` on pairs,
    and 1/Z on negative pairs, with weights a of the anchors (mathematics §1).

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

    def sides(self) -> tuple[Tensor, Tensor]:
        """W at positives and 1 at negatives, (N, M) each, float64."""
        wide = wide_dtype(self.own.device)
        near, far = self.matrix.to(wide, copy=True), (self.matrix == 0).to(wide)
        return fill_own(near, self.own, 0.0), fill_own(far, self.own, 0.0)

    @cached_property
    def sums(self) -> tuple[Tensor, ...]:
        """Of each anchor: Σ_j W_ij, the number of negatives, and Σ_j W_ij log W_ij."""
        found = []
        for rows in self.blocks():
            near, far = self.of_rows(rows).sides()
            found.append(torch.stack([near.sum(1), far.sum(1), xlogy(near, near).sum(1)]))
        return torch.cat(found, 1).unbind()

    def blocks(self) -> Iterator[slice]:
        """Some rows at a time."""
        n, m = self.matrix.shape
        step = max(1, _ENTRIES // m)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def of_rows(self, rows: slice) -> PairMatrix:
        """The same of some anchors, without weights of anchors."""
        return PairMatrix(self.matrix[rows], self.own[rows])

    @cached_property
    def n_triplets(self) -> Tensor:  # type: ignore[override]
        """Σ_i a_i n⁻_i Σ_j W_ij."""
        return torch.dot(self.weighed(self.sums[0]), self.sums[1])

    @cached_property
    def n_positives(self) -> Tensor:  # type: ignore[override]
        """Σ_i a_i Σ_j W_ij."""
        return self.weighed(self.sums[0]).sum()

    def triplets(self) -> TripletTarget:
        """P̃_ijk ∝ a_i W_ij on the negatives k of i."""
        near, far, _ = self.sums
        each = self._shares(torch.ones_like(near), near * far)
        contrast = MatrixPairs(self, each * far, -each * near)
        received = contrast.columns[0], -contrast.columns[1]
        return TripletTarget(self._entropy(each, far), contrast, (each * near * far, *received))

    def per_anchor(self) -> MatrixPairs:
        """P̃_ij = p_i W_ij/Σ_j W_ij, with p_i ∝ a_i."""
        near = self.sums[0]
        taken = (near > 0).to(near.dtype)
        masses = self._shares(taken, taken)
        return MatrixPairs(self, divide_or_zero(masses, near), torch.zeros_like(near))

    def on_pairs(self, *, positive: bool, of_triplets: bool) -> TargetPairs:
        """P̃_ij ∝ a_i W_ij on positive pairs, or a_i on negative ones."""
        near, far, _ = self.sums
        number, others = (near, far) if positive else (far, near)
        taken = (others > 0).to(near.dtype) if of_triplets else torch.ones_like(near)
        each, none = self._shares(taken, number), torch.zeros_like(near)
        if positive:
            return TargetPairs(self._entropy(each, taken), MatrixPairs(self, each, none))
        return TargetPairs(-(xlogy(each, each) * far).sum(), MatrixPairs(self, none, each))

    def _shares(self, taken: Tensor, numbers: Tensor) -> Tensor:
        """a_i/Z of the anchors that are taken, Z = Σ_i a_i · numbers_i."""
        masses = self.weighed(taken)
        return masses / torch.dot(masses, numbers)

    def _entropy(self, each: Tensor, copies: Tensor) -> Tensor:
        """−Σ P̃ log P̃ of entries each_i W_ij, so many times."""
        near, _, logs = self.sums
        entropy: Tensor = -(copies * (xlogy(each, each) * near + each * logs)).sum()
        return entropy


@dataclass(frozen=True)
class MatrixPairs:
    """P̃_ij = near_i W_ij at positives, far_i at negatives, 0 for j = own_i."""

    relation: PairMatrix
    near: Tensor  # (N,), float64
    far: Tensor  # (N,)

    def of_rows(self, rows: slice) -> MatrixPairs:
        """The same of some anchors."""
        return MatrixPairs(self.relation.of_rows(rows), self.near[rows], self.far[rows])

    def dense(self, rows: slice = slice(None)) -> Tensor:
        """The entries of some anchors, (R, M)."""
        part = self.of_rows(rows)
        near, far = part.relation.sides()
        return near.mul_(part.near[:, None]).addcmul_(far, part.far[:, None])

    def mask(self) -> Tensor:
        """The pairs that have mass, (N, M)."""
        return self.dense() != 0

    def times(self, values: Tensor) -> Tensor:
        """``Σ_j P̃_ij values_j``, (M, d) → (N, d)."""
        blocks = self.relation.blocks()
        return torch.cat([self.dense(rows).to(values.dtype) @ values for rows in blocks])

    def transposed_times(self, values: Tensor) -> Tensor:
        """``Σ_i P̃_ij values_i``, (N, d) → (M, d)."""
        out = values.new_zeros(self.relation.matrix.shape[1], values.shape[1])
        for rows in self.relation.blocks():
            out.addmm_(self.dense(rows).to(values.dtype).T, values[rows])
        return out

    def symmetric_times(self, values: Tensor) -> Tensor:
        """``Σ_j (P̃_ij + P̃_ji) values_j`` within one set."""
        return self.times(values) + self.transposed_times(values)

    @cached_property
    def columns(self) -> Tensor:
        """Column sums over positive and over negative pairs, (2, M)."""
        total = self.near.new_zeros(2, self.relation.matrix.shape[1])
        for rows in self.relation.blocks():
            part = self.of_rows(rows)
            near, far = part.relation.sides()
            total += torch.stack([part.near @ near, part.far @ far])
        return total

    @cached_property
    def marginals(self) -> tuple[Tensor, Tensor]:
        """Row sums, (N,), and column sums, (M,)."""
        near, far, _ = self.relation.sums
        return self.near * near + self.far * far, self.columns.sum(0)

    def negated(self) -> MatrixPairs:
        """−P̃."""
        return replace(self, near=-self.near, far=-self.far)
