"""The pairwise plan in the scaling domain: two matrix-vector products a sweep."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels import native
from tricouple.ot.kernels.balanced import (
    BalancedKernel,
    KernelTerm,
    balance,
    kernel_gradient,
    underflow_margin,
)
from tricouple.ot.kernels.native_pair import NativePairHistory
from tricouple.ot.kernels.plan import GradientSink, History, Masses, Solution, Stage, Stages


class ScaledPairSink:
    """Sums of rank-one terms times the kernel: ``Σ_t x_t y_tᵀ ∘ matrix``."""

    def __init__(self, kernel: BalancedKernel) -> None:
        self._kernel = kernel
        self._left: list[Tensor] = []
        self._right: list[Tensor] = []

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add ``left rightᵀ ∘ matrix``."""
        self._left.append(left)
        self._right.append(right)

    def term(self) -> KernelTerm:
        """The kernel and all factors, (N, T) and (T, M)."""
        return self._kernel.matrix, torch.stack(self._left, 1), torch.stack(self._right)

    def total(self) -> Tensor:
        """One matrix product for all terms."""
        return kernel_gradient([self.term()])


class ScaledPairPlan(NamedTuple):
    """``P_ij = u_i v_j matrix_ij``."""

    kernel: BalancedKernel
    u: Tensor
    v: Tensor

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        if axis == 0:
            return self.u * self.kernel.rows(self.v)
        return self.v * self.kernel.columns(self.u)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        if axis == 0:
            left, right = self.u * weights, self.v
            pushed = {1: self.v * self.kernel.columns(left)}
        else:
            left, right = self.u, self.v * weights
            pushed = {0: self.u * self.kernel.rows(right)}
        if isinstance(sink, ScaledPairSink):
            sink.add(left, right)
        return pushed


class ScaledPair:
    """Entropic transport for ``score = sharpness · similarity`` by matrix scaling."""

    def __init__(self, similarity: Tensor, sharpness: float, *, within: bool) -> None:
        self.kernel = balance(similarity, sharpness, within=within)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.kernel.matrix.dtype

    def sink(self) -> ScaledPairSink:
        """A collector for this kernel."""
        return ScaledPairSink(self.kernel)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        kernel, dtype = self.kernel, self.kernel.matrix.dtype
        start = torch.exp(-kernel.column_shift).to(dtype)  # log-scalings start at zero
        history: History
        if native.suits(kernel.matrix):
            history = NativePairHistory.sweep(kernel, start, masses, n_iters, tol)
            u, v, r = history.u[1:], history.v, history.r[: len(history.u) - 1]
        else:
            history, u, v, r = self._sweep(start, masses, n_iters, tol)
        if not _trustworthy(u, v, r, masses.values[1]):
            return None
        logs = torch.cat([u[-1], v[-1]]).to(wide_dtype(start.device)).log_()
        potentials = logs + torch.cat([kernel.row_shift, kernel.column_shift])
        plan = ScaledPairPlan(kernel, u[-1], v[-1])
        return Solution(self, potentials, lambda: plan, history, len(u))

    def _sweep(
        self, v: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> tuple[Stages, Tensor, Tensor, Tensor]:
        """The stages, and the stacked u, v and row sums of all sweeps (v with its start)."""
        rows, columns = masses.values
        stages: list[Stage] = []
        u = rows  # replaced before it is used
        all_u: list[Tensor] = []
        all_v, all_r = [v], []
        for sweep in range(n_iters):
            r = self.kernel.rows(v)
            if tol is not None and sweep > 0 and float((u * r - rows).abs().sum()) <= tol:
                break
            u = rows / r
            stages.append(Stage(0, ScaledPairPlan(self.kernel, u, v)))
            v = columns / self.kernel.columns(u)
            stages.append(Stage(1, ScaledPairPlan(self.kernel, u, v)))
            all_u.append(u)
            all_v.append(v)
            all_r.append(r)
        return (
            Stages(self, masses, stages),
            torch.stack(all_u),
            torch.stack(all_v),
            torch.stack(all_r),
        )


def _trustworthy(u: Tensor, v: Tensor, r: Tensor, columns: Tensor) -> bool:
    """Whether every sum was far enough above underflow, in all sweeps at once.

    An entry of the kernel below the smallest normal number is lost; with weights of at most
    max(v) all lost entries of a row add up to less than M · tiny · max(v).
    """
    floor = underflow_margin(u.dtype) * max(u.shape[1], v.shape[1])
    used = v[:-1].amax(1, keepdim=True)
    row_sums = (r >= floor * used).all()
    # columns / v are the column sums; written as a product, samples without mass pass.
    column_sums = (v[1:] * (floor * u.amax(1, keepdim=True)) <= columns).all()
    finite = torch.isfinite(u).all() & torch.isfinite(v).all()
    return bool(row_sums & column_sums & finite)
