"""The triplet coupling of small batches with linear ψ, in the compiled module.

The same sweeps as ``triplet_scaled``, whose formulas and names these are: one call solves, one
differentiates. Arrays are stacks of vectors, one row for the start and one for each sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from tricouple.memory import empty_matrix
from tricouple.numeric import wide_dtype
from tricouple.ot.kernels.balanced import BalancedKernel, kernel_gradient, underflow_margin
from tricouple.ot.kernels.native import addresses, balance_into, compiled, optional
from tricouple.ot.kernels.plan import Masses, Solution
from tricouple.ot.kernels.triplet_plan import Partners, ScaledTripletPlan, ScaledTripletSink
from tricouple.ot.kernels.triplet_scaled import ScaledTriplet
from tricouple.ot.kernels.trust import CANCELLATION


class NativeTriplet:
    """Entropic three-marginal transport for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""

    def __init__(self, similarity: Tensor, sharpness: float, *, within: bool) -> None:
        n, m = similarity.shape
        self.sharpness, self.within = sharpness, within
        self.kernels = empty_matrix(similarity, 2, n, m)  # attract, repel
        self.tops = similarity.new_empty(2, n + m)
        for number, factor in enumerate((sharpness, -sharpness)):
            balance_into(similarity, factor, within, self.kernels[number], self.tops[number])
        self.kernels.exp_()

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.kernels.dtype

    @cached_property
    def scaled(self) -> ScaledTriplet:
        """The same kernels as seen by PyTorch."""
        n = self.kernels.shape[1]
        shifts = self.tops.to(wide_dtype(self.tops.device)) * -self.sharpness
        attract, repel = (
            BalancedKernel(matrix, shift[:n], shift[n:])
            for matrix, shift in zip(self.kernels, shifts, strict=True)
        )
        shift = attract.row_shift + repel.row_shift
        return ScaledTriplet(attract, repel, shift, within=self.within)

    def sink(self) -> ScaledTripletSink:
        """A collector for this kernel."""
        return self.scaled.sink()

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """All sweeps in one call; None when the result cannot be trusted."""
        _, n, m = self.kernels.shape
        run = NativeTripletHistory(self, n_iters)
        potentials = masses.marginals.new_empty(n + 2 * m)
        info = torch.finfo(self.dtype)
        limit = 1 / (underflow_margin(self.dtype) * max(n, m))
        options = (int(self.within), n_iters, optional(tol), self.sharpness)
        done = compiled.triplet_solve(
            info.bits // 8,
            n,
            m,
            *options,
            info.eps,
            CANCELLATION,
            limit,
            *addresses(self.kernels, self.tops, masses.marginals, *run.arrays, potentials),
            run.work.data_ptr(),
        )
        if done < 0:
            return None
        run.sweeps = done
        return Solution(self, potentials, run.plan, run, done)


class NativeTripletHistory:
    """Scalings and sums of every sweep, in one piece of memory.

    Args:
        kernel: The kernel.
        n_iters: How many sweeps there may be.
    """

    def __init__(self, kernel: NativeTriplet, n_iters: int) -> None:
        _, n, m = kernel.kernels.shape
        rows, columns = n * (n_iters + 1), m * (n_iters + 1)
        sizes = [2 * (n + 2 * m), n, m, rows, columns, columns, rows, rows]
        memory = kernel.kernels.new_empty(sum(sizes) + 2 * (n + m))
        *arrays, self.work = memory.split([*sizes, 2 * (n + m)])
        self.kernel = kernel
        self.arrays = arrays  # masses and inverses, exclusions, a, b, h, r⁺, r⁻
        self.sweeps = 0

    def plan(self) -> ScaledTripletPlan:
        """The plan after the last sweep."""
        _, n, m = self.kernel.kernels.shape
        sizes = (n, m, m, n, n)
        a, b, h, r_plus, r_minus = (
            array[self.sweeps * size : (self.sweeps + 1) * size]
            for array, size in zip(self.arrays[3:], sizes, strict=True)
        )
        scaled = self.kernel.scaled
        column = scaled.exclusion_column
        positives, negatives = Partners(b, r_plus, column * b), Partners(h, r_minus, column * h)
        return ScaledTripletPlan(scaled, scaled.anchors(a), positives, negatives)

    def adjoint(self, cotangents: Sequence[Tensor]) -> Tensor:
        """Terms that share a right factor are summed, so the rank is 2·sweeps + 1."""
        kernels = self.kernel.kernels
        _, n, m = kernels.shape
        rank, start = 2 * self.sweeps + 1, self.sweeps + 1
        left = kernels.new_zeros(2, rank, n)
        right = kernels.new_empty(2, rank, m)
        masses, row, column, a, b, h, r_plus, r_minus = self.arrays
        right[0, :start], right[1, :start] = b[: start * m].view(-1, m), h[: start * m].view(-1, m)
        gradients = torch.cat(list(cotangents))
        inverses = masses[n + 2 * m :]
        compiled.triplet_adjoint(
            kernels.element_size(),
            n,
            m,
            int(self.kernel.within),
            self.sweeps,
            *addresses(kernels[0], kernels[1], row, column),
            *addresses(inverses, inverses[n:], inverses[n + m :], a, b, h, r_plus, r_minus),
            *addresses(gradients, gradients[n:], gradients[n + m :]),
            *addresses(left[0], right[0, start:], left[1], right[1, start:], self.work),
        )
        left[1].neg_()  # attraction raises a score, repulsion lowers it
        return kernel_gradient(
            [(kernels[0], left[0].T, right[0]), (kernels[1], left[1].T, right[1])]
        )
