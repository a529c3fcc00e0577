"""The triplet coupling of small batches with linear ψ, in the compiled module.

The same sweeps as ``triplet_scaled``, whose formulas and names these are: one call solves, one
differentiates. Arrays are stacks of vectors, one row for the start and one for each sweep.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.linear_kernels import LinearKernels
from tricouple.ot.sweeps.native import addresses, compiled, optional
from tricouple.ot.sweeps.plan import Masses, Solution
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.tiles import Factors, underflow_margin
from tricouple.ot.sweeps.triplet_plan import ATTRACT, REPEL, ScaledTripletPlan, ScaledTripletSink
from tricouple.ot.sweeps.triplet_scaled import ScaledTriplet, of_linear
from tricouple.ot.sweeps.trust import CANCELLATION


class NativeTriplet:
    """Entropic three-marginal transport for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""

    def __init__(self, similarities: Similarities, sharpness: float, *, within: bool) -> None:
        self.sharpness, self.within = sharpness, within
        self.kernels = LinearKernels(similarities, [sharpness, -sharpness], within=within)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.kernels.like.dtype

    @cached_property
    def scaled(self) -> ScaledTriplet:
        """The same coupling as seen by PyTorch."""
        return of_linear(self.kernels, within=self.within)

    def release(self) -> None:
        """Give up the kernels' matrices until they are needed again."""
        self.kernels.release()

    def sink(self) -> ScaledTripletSink:
        """A collector for this kernel."""
        return self.scaled.sink()

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """All sweeps in one call; None when the result cannot be trusted."""
        n, m = self.kernels.shape
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
            # The second kernel lies behind the first, and so do their tops.
            *addresses(self.kernels.whole(ATTRACT), self.kernels.tops[ATTRACT][0]),
            *addresses(masses.marginals, *run.arrays, potentials),
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
        n, m = kernel.kernels.shape
        rows, columns = n * (n_iters + 1), m * (n_iters + 1)
        sizes = [2 * (n + 2 * m), n, m, rows, columns, columns, rows, rows]
        memory = kernel.kernels.like.new_empty(sum(sizes) + 2 * (n + m))
        *arrays, self.work = memory.split([*sizes, 2 * (n + m)])
        self.kernel = kernel
        self.arrays = arrays  # masses and inverses, exclusions, a, b, h, r⁺, r⁻
        self.sweeps = 0

    def plan(self) -> ScaledTripletPlan:
        """The plan after the last sweep."""
        n, m = self.kernel.kernels.shape
        sizes = (n, m, m, n, n)
        a, b, h, r_plus, r_minus = (
            array[self.sweeps * size : (self.sweeps + 1) * size]
            for array, size in zip(self.arrays[3:], sizes, strict=True)
        )
        scaled = self.kernel.scaled
        return ScaledTripletPlan(scaled, scaled.anchors(a), b, h, r_plus[None], r_minus[None])

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Terms that share a right factor are summed, so the rank is 2·sweeps + 1."""
        kernels = self.kernel.kernels
        n, m = kernels.shape
        rank, start = 2 * self.sweeps + 1, self.sweeps + 1
        left = kernels.like.new_zeros(2, rank, n)
        right = kernels.like.new_empty(2, rank, m)
        masses, row, column, a, b, h, r_plus, r_minus = self.arrays
        right[0, :start], right[1, :start] = b[: start * m].view(-1, m), h[: start * m].view(-1, m)
        gradients = torch.cat(list(cotangents))
        inverses = masses[n + 2 * m :]
        compiled.triplet_adjoint(
            kernels.like.element_size(),
            n,
            m,
            int(self.kernel.within),
            self.sweeps,
            *addresses(kernels.whole(ATTRACT), kernels.whole(REPEL), row, column),
            *addresses(inverses, inverses[n:], inverses[n + m :], a, b, h, r_plus, r_minus),
            *addresses(gradients, gradients[n:], gradients[n + m :]),
            *addresses(left[0], right[0, start:], left[1], right[1, start:], self.work),
        )
        return kernels.score_gradient(
            [Factors(side[:, None], weights) for side, weights in zip(left, right, strict=True)]
        )
