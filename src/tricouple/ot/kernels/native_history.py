"""Histories of sweeps that ran in the compiled module.

The arrays are stacks of vectors, one row for the start and one for each sweep; the formulas and
names are those of ``triplet_scaled`` and ``pair_scaled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.ot.kernels.balanced import BalancedKernel, kernel_gradient, underflow_margin
from tricouple.ot.kernels.native import addresses, compiled
from tricouple.ot.kernels.plan import Masses


@dataclass(frozen=True)
class NativeTripletHistory:
    """Scalings and sums of every sweep, stacked: row 0 is the start.

    Attributes:
        attract: Kernel of the positives, (N, M).
        repel: Kernel of the negatives, (N, M).
        exclusion: Row and column factors of ``attract · repel``.
        within: Whether anchors are the references.
        masses: Imposed marginals.
        a: Scalings of the anchors (row 0 is unused).
        b: Scalings of the positives.
        h: Scalings of the negatives.
        r_plus: Row sums of the positives.
        r_minus: Row sums of the negatives.
    """

    attract: BalancedKernel
    repel: BalancedKernel
    exclusion: tuple[Tensor, Tensor]
    within: bool
    masses: Masses
    a: Tensor
    b: Tensor
    h: Tensor
    r_plus: Tensor
    r_minus: Tensor

    @classmethod
    def sweep(
        cls,
        attract: BalancedKernel,
        repel: BalancedKernel,
        exclusion: tuple[Tensor, Tensor],
        within: bool,
        start: tuple[Tensor, Tensor],
        masses: Masses,
        n_iters: int,
        tol: float | None,
    ) -> NativeTripletHistory:
        """Run the sweeps from the given scalings of positives and negatives."""
        matrix = attract.matrix
        n, m = matrix.shape
        rows = matrix.new_empty(3, n_iters + 1, n)
        columns = matrix.new_empty(2, n_iters + 1, m)
        a, r_plus, r_minus = rows.unbind()
        b, h = columns.unbind()
        b[0], h[0], a[0] = start[0], start[1], masses.values[0]
        work = matrix.new_empty(2 * n + m)
        arrays = (matrix, repel.matrix, *exclusion, *masses.values, a, b, h, r_plus, r_minus, work)
        done = 1 + compiled.triplet_sweeps(
            matrix.element_size(), n, m, int(within), n_iters, _optional(tol), *addresses(*arrays)
        )
        parts = (part[:done] for part in (a, b, h, r_plus, r_minus))
        return cls(attract, repel, exclusion, within, masses, *parts)

    def trustworthy(self, cancellation: float) -> bool:
        """The same verdict as the PyTorch sweeps', see ``triplet_scaled``."""
        matrix = self.attract.matrix
        n, m = matrix.shape
        arrays = (*self.exclusion, *self.masses.inverses, self.a, self.b, self.h)
        lost = compiled.triplet_losses(
            matrix.element_size(),
            n,
            m,
            len(self.a) - 1,
            torch.finfo(matrix.dtype).eps,
            *addresses(*arrays, self.r_plus, self.r_minus),
        )
        limit = 1 / (underflow_margin(matrix.dtype) * max(n, m))
        return bool(lost[0] <= cancellation and lost[1] <= limit)

    def adjoint(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Terms that share a right factor are summed, so the rank is 2·sweeps + 1."""
        matrix = self.attract.matrix
        n, m = matrix.shape
        sweeps = len(self.a) - 1
        left = matrix.new_zeros(2, 2 * sweeps + 1, n)
        right = matrix.new_empty(2, 2 * sweeps + 1, m)
        right[0, : sweeps + 1], right[1, : sweeps + 1] = self.b, self.h
        gradients = [cotangent.clone() for cotangent in cotangents]
        inputs = (matrix, self.repel.matrix, *self.exclusion, *self.masses.inverses)
        history = (self.a, self.b, self.h, self.r_plus, self.r_minus)
        factors = (left[0], right[0, sweeps + 1 :], left[1], right[1, sweeps + 1 :])
        work = matrix.new_empty(2 * n + 2 * m)
        arrays = (*inputs, *history, *gradients, *factors, work)
        compiled.triplet_adjoint(
            matrix.element_size(), n, m, int(self.within), sweeps, *addresses(*arrays)
        )
        # Attraction raises a score, repulsion lowers it.
        left[1].neg_()
        return kernel_gradient(
            [(self.attract, left[0].T, right[0]), (self.repel, left[1].T, right[1])]
        )


@dataclass(frozen=True)
class NativePairHistory:
    """Scalings of every sweep, stacked: row 0 is the start.

    Attributes:
        kernel: The kernel, (N, M).
        masses: Imposed marginals.
        u: Scalings of the rows (row 0 is unused).
        v: Scalings of the columns.
        r: Row sums before each update of u.
    """

    kernel: BalancedKernel
    masses: Masses
    u: Tensor
    v: Tensor
    r: Tensor

    @classmethod
    def sweep(
        cls,
        kernel: BalancedKernel,
        start: Tensor,
        masses: Masses,
        n_iters: int,
        tol: float | None,
    ) -> NativePairHistory:
        """Run the sweeps from the given scalings of the columns."""
        matrix = kernel.matrix
        n, m = matrix.shape
        u, r = matrix.new_empty(2, n_iters + 1, n).unbind()
        v = matrix.new_empty(n_iters + 1, m)
        v[0] = start
        arrays = (matrix, *masses.values, u, v, r, matrix.new_empty(m))
        done = 1 + compiled.pair_sweeps(
            matrix.element_size(), n, m, n_iters, _optional(tol), *addresses(*arrays)
        )
        return cls(kernel, masses, u[:done], v[:done], r[:done])

    def adjoint(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Two rank-one terms a sweep."""
        matrix = self.kernel.matrix
        n, m = matrix.shape
        sweeps = len(self.u) - 1
        left, right = matrix.new_empty(2 * sweeps, n), matrix.new_empty(2 * sweeps, m)
        gradients = [cotangent.clone() for cotangent in cotangents]
        arrays = (matrix, *self.masses.inverses, self.u, self.v, *gradients, left, right)
        work = matrix.new_empty(max(n, m))
        compiled.pair_adjoint(matrix.element_size(), n, m, sweeps, *addresses(*arrays, work))
        return kernel_gradient([(self.kernel, left.T, right)])


def _optional(tol: float | None) -> float:
    """The C side takes a negative tolerance for "none"."""
    return -1.0 if tol is None else float(tol)
