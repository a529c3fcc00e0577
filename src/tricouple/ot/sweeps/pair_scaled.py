"""The pairwise plan in the scaling domain: one pass over the kernel a sweep."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.memory import IN_MATRICES, MemoryPlan
from tricouple.numeric import ScoreGradient, wide_dtype
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.balanced import BalancedKernels, balanced_kernels
from tricouple.ot.sweeps.linear_kernels import LinearKernels
from tricouple.ot.sweeps.native_pair import NativePairHistory
from tricouple.ot.sweeps.pair_history import ScaledPairHistory
from tricouple.ot.sweeps.plan import GradientSink, Masses, Solution
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.tiles import Factors, underflow_margin


class ScaledPairSink:
    """Sums of rank-one terms times a kernel: ``Σ_t x_t y_tᵀ ∘ kernel``."""

    def __init__(self, kernels: BalancedKernels) -> None:
        self._kernels = kernels
        self._left: list[Tensor] = []
        self._right: list[Tensor] = []

    def add(self, left: Tensor, right: Tensor) -> None:
        """Add ``left rightᵀ ∘ kernel``."""
        self._left.append(left)
        self._right.append(right)

    def total(self) -> ScoreGradient:
        """One matrix product for all terms."""
        left, right = torch.stack(self._left), torch.stack(self._right)
        return self._kernels.score_gradient([Factors(left[:, None], right)])


class ScaledPairPlan(NamedTuple):
    """``P_ij = u_i v_j kernel_ij``."""

    kernels: BalancedKernels
    u: Tensor
    v: Tensor

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        if axis == 0:
            return self.u * self.kernels.row_sums(0, self.v)[0]
        return self.v * self.kernels.column_sums(0, self.u[None])

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        if axis == 0:
            left, right = self.u * weights, self.v
            pushed = {1: self.v * self.kernels.column_sums(0, left[None])}
        else:
            left, right = self.u, self.v * weights
            pushed = {0: self.u * self.kernels.row_sums(0, right)[0]}
        if isinstance(sink, ScaledPairSink):
            sink.add(left, right)
        return pushed


class ScaledPair:
    """Entropic transport for ``score = sharpness · similarity`` by matrix scaling.

    Args:
        similarities: Shape (N, M).
        sharpness: The factor; negative for anti-transport.
        within: Exclude the diagonal.
        memory: Whether the kernel is stored, or recomputed a tile at a time.
        halved: Whether half a matrix will do (see ``balanced_kernels``).
    """

    def __init__(
        self,
        similarities: Similarities,
        sharpness: float,
        *,
        within: bool,
        memory: MemoryPlan = IN_MATRICES,
        halved: bool = True,
    ) -> None:
        self.kernels = balanced_kernels(
            similarities, [sharpness], within=within, memory=memory, halved=halved
        )

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.kernels.like.dtype

    def release(self) -> None:
        """Give up the kernels' matrices until they are needed again."""
        self.kernels.release()

    def sink(self) -> ScaledPairSink:
        """A collector for this kernel."""
        return ScaledPairSink(self.kernels)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        start = torch.exp(-self.kernels.column_shifts[0]).to(self.dtype)  # log-scalings at zero
        history: ScaledPairHistory
        kernels = self.kernels
        if isinstance(kernels, LinearKernels) and kernels.stored and native.suits(kernels):
            history = NativePairHistory.sweep(kernels, start, masses, n_iters, tol)
        else:
            history = self._sweep(start, masses, n_iters, tol)
        u, v = history.u, history.v
        if not _trustworthy(u, v, history.r, masses.values[1]):
            return None
        logs = torch.cat([u[-1], v[-1]]).to(wide_dtype(start.device)).log_()
        potentials = logs + torch.cat([self.kernels.row_shifts[0], self.kernels.column_shifts[0]])
        plan = ScaledPairPlan(self.kernels, u[-1], v[-1])
        return Solution(self, potentials, lambda: plan, history, len(u))

    def _sweep(
        self, v: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> ScaledPairHistory:
        rows, columns = masses.values
        all_u: list[Tensor] = []
        all_v, all_r = [v], []
        for sweep in range(n_iters):
            u, r = torch.empty_like(rows), torch.empty_like(rows)
            sums = self.kernels.through(0, 0, v, partial(_scale, rows, u, r))
            # The sweep went on in the same pass; if there was no need, it is forgotten.
            if tol is not None and sweep > 0 and _error(all_u[-1], r, rows) <= tol:
                break
            v = columns / sums
            all_u.append(u)
            all_v.append(v)
            all_r.append(r)
        scalings = (torch.stack(kind) for kind in (all_u, all_v, all_r))
        return ScaledPairHistory(self.kernels, masses, *scalings)


def _scale(masses: Tensor, u: Tensor, r: Tensor, rows: slice, sums: Tensor) -> Tensor:
    """Scalings that give some rows their masses, which is noted, as are the sums."""
    r[rows] = sums[0]
    return torch.div(masses[rows], sums[0], out=u[rows])[None]


def _error(u: Tensor, r: Tensor, rows: Tensor) -> float:
    """The L1 error of the row marginal."""
    return float((u * r - rows).abs().sum())


def _trustworthy(u: Tensor, v: Tensor, r: Tensor, columns: Tensor) -> bool:
    """Whether every sum was far enough above underflow, in all sweeps at once.

    An entry of the kernel below the smallest normal number is lost; with weights of at most
    max(v) all lost entries of a row add up to less than M · tiny · max(v).
    """
    floor = underflow_margin(u.dtype) * max(u.shape[1], v.shape[1])
    used = v[:-1].amax(1, keepdim=True)
    enough = (r >= floor * used).all()
    # columns / v are the column sums; written as a product, samples without mass pass.
    enough_columns = (v[1:] * (floor * u.amax(1, keepdim=True)) <= columns).all()
    finite = torch.isfinite(u).all() & torch.isfinite(v).all()
    return bool(enough & enough_columns & finite)
