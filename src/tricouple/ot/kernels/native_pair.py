"""The pairwise sweeps of small batches, in the compiled module.

Arrays are stacks of vectors, one row for the start and one for each sweep; formulas and names are
those of ``pair_scaled``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tricouple.ot.kernels.balanced import BalancedKernel, kernel_gradient
from tricouple.ot.kernels.native import addresses, compiled, optional
from tricouple.ot.kernels.plan import Masses


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
            matrix.element_size(), n, m, n_iters, optional(tol), *addresses(*arrays)
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
        return kernel_gradient([(self.kernel.matrix, left.T, right)])
