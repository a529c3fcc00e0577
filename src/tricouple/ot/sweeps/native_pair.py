"""The pairwise sweeps of small batches, in the compiled module."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.linear_kernels import LinearKernels
from tricouple.ot.sweeps.native import addresses, compiled, optional
from tricouple.ot.sweeps.pair_history import ScaledPairHistory
from tricouple.ot.sweeps.plan import Masses
from tricouple.ot.sweeps.tiles import Factors


class NativePairHistory(ScaledPairHistory):
    """The same history; each direction is one call."""

    kernels: LinearKernels

    @classmethod
    def sweep(
        cls,
        kernels: LinearKernels,
        start: Tensor,
        masses: Masses,
        n_iters: int,
        tol: float | None,
    ) -> NativePairHistory:
        """Run the sweeps from the given scalings of the columns."""
        matrix = kernels.whole(0)
        n, m = matrix.shape
        # Row 0 belongs to the start, where there is no u.
        u, r = matrix.new_empty(2, n_iters + 1, n).unbind()
        v = matrix.new_empty(n_iters + 1, m)
        v[0] = start
        arrays = (matrix, *masses.values, u, v, r, matrix.new_empty(m))
        done = compiled.pair_sweeps(
            matrix.element_size(), n, m, n_iters, optional(tol), *addresses(*arrays)
        )
        return cls(kernels, masses, u[1 : done + 1], v[: done + 1], r[:done])

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Two rank-one terms a sweep."""
        matrix = self.kernels.whole(0)
        n, m = matrix.shape
        sweeps = len(self.u)
        left, right = matrix.new_empty(2 * sweeps, n), matrix.new_empty(2 * sweeps, m)
        gradients = [cotangent.clone() for cotangent in cotangents]
        work = matrix.new_empty(max(n, m))
        first = self.u.data_ptr() - n * matrix.element_size()  # the start's row, before the view
        compiled.pair_adjoint(
            matrix.element_size(),
            n,
            m,
            sweeps,
            *addresses(matrix, *self.masses.inverses),
            first,
            *addresses(self.v, *gradients, left, right, work),
        )
        return self.kernels.score_gradient([Factors(left[:, None], right)])
