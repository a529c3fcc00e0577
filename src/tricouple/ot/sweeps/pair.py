"""Plans of pairs (mathematics §5): by scaling, and by logarithms of scalings.

Scaling takes a pass over the kernel each sweep, stored or not; logarithms take few operations on
one matrix, which an accelerator likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient, wide_dtype
from tricouple.ot.sweeps.contract import (
    Coupling,
    DenseSink,
    Goal,
    GradientSink,
    Masses,
    Received,
    Solution,
    marginal_of,
)
from tricouple.ot.sweeps.kernels import Factors, Kernels, ScaledCoupling, underflow_limit


class ScaledPair(ScaledCoupling):
    """Entropic transport by scaling one kernel."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        (shift,) = self.kernels.column_shifts
        start = torch.exp(-shift).to(self.dtype)  # log-scalings at zero
        history = self._sweep(start, masses, n_iters, tol)
        u, v = history.u, history.v
        if not self.agreed(_trustworthy(u, v, history.r, masses.values[1])):
            return None
        logs = torch.cat([u[-1], v[-1]]).to(wide_dtype(start.device)).log_()
        potentials = logs + torch.cat([self.kernels.row_shift, shift])
        plan = ScaledPairPlan(self.kernels, u[-1], v[-1])
        return Solution(self, potentials, lambda: plan, history, len(u))

    def _sweep(
        self, v: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> ScaledPairHistory:
        """Rows, ``u = p¹ / E v``, then columns, ``v = p² / Eᵀ u``."""
        rows, columns = masses.values
        all_u: list[Tensor] = []
        all_v, all_r = [v], []
        for sweep in range(n_iters):
            u, r = torch.empty_like(rows), torch.empty_like(rows)
            sums = self.kernels.through(0, 0, v, partial(_scale, rows, u, r))
            # The sweep went on in the same pass; if there was no need, it is forgotten.
            if tol is not None and sweep > 0 and self.agreed(_error(all_u[-1], r, rows) <= tol):
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
    """Whether every sum was far enough above underflow, in all sweeps at once."""
    floor = 1 / underflow_limit(u.dtype, (u.shape[1], v.shape[1]))
    used = v[:-1].amax(1, keepdim=True)
    enough = (r >= floor * used).all()
    # columns / v are the column sums; written as a product, samples without mass pass.
    enough_columns = (v[1:] * (floor * u.amax(1, keepdim=True)) <= columns).all()
    finite = torch.isfinite(u).all() & torch.isfinite(v).all()
    return bool(enough & enough_columns & finite)


class ScaledPairPlan(NamedTuple):
    """``P_ij = u_i v_j kernel_ij``."""

    kernels: Kernels
    u: Tensor
    v: Tensor

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        if axis == 0:
            return self.u * self.kernels.row_sums(0, self.v)[0]
        return self.v * self.kernels.column_sums(0, self.u[None])

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        if axis == 0:
            left, right = self.u * weights, self.v
            pushed = {1: self.v * self.kernels.column_sums(0, left[None])}
        else:
            left, right = self.u, self.v * weights
            pushed = {0: self.u * self.kernels.row_sums(0, right)[0]}
        if sink is not None:
            sink.add(([left[None]], [right]))
        return pushed


@dataclass(frozen=True)
class ScaledPairHistory:
    """Scalings of every sweep, stacked."""

    kernels: Kernels  # the kernel
    masses: Masses  # imposed marginals
    u: Tensor  # scalings of the rows after each sweep, shape (T, N)
    v: Tensor  # scalings of the columns, with those of the start, shape (T + 1, M)
    r: Tensor  # row sums before each update of u, shape (T, N)

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards, one pass over the kernel each (see ``Stages.adjoint``)."""
        grad_u, grad_v = cotangents
        per_v = self.masses.inverses[1]
        to_v, weights_v = torch.empty_like(self.u), torch.empty_like(self.v[1:])
        for t in reversed(range(len(self.u))):
            # Columns set v: −∂L/∂log v ∘ v / p², through the plan to u.
            torch.mul(self.v[t + 1], grad_v * -per_v, out=weights_v[t])
            # Rows set u: through the plan to v of the sweep before.
            to_anchors = partial(self._weigh, self.u[t], grad_u, to_v[t])
            if t == 0:
                to_anchors(slice(None), self.kernels.row_sums(0, weights_v[t]))
            else:
                grad_v = self.v[t] * self.kernels.through(0, 0, weights_v[t], to_anchors)
                grad_u = torch.zeros_like(grad_u)
        left, right = torch.cat([to_v, self.u]), torch.cat([self.v[:-1], weights_v])
        return self.kernels.score_gradient([Factors(left[:, None], right)])

    def _weigh(self, u: Tensor, grad_u: Tensor, out: Tensor, rows: slice, sums: Tensor) -> Tensor:
        """Weights of the rows, from what the columns sent them."""
        gradient = torch.addcmul(grad_u[rows], u[rows], sums[0])
        return torch.mul(u[rows], gradient * -self.masses.inverses[0][rows], out=out[rows])[None]


# --- by logarithms --------------------------------------------------------------------------------


class MatrixPair(Coupling):
    """Entropic transport with kernel ``exp(x)``, but for the diagonal within one set."""

    def __init__(self, scores: Tensor, *, within: bool) -> None:
        self.scores = scores.fill_diagonal_(-torch.inf) if within else scores
        self.dtype = scores.dtype

    def sink(self) -> DenseSink:
        """A collector for this coupling."""
        return DenseSink(self.scores)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: rows, then columns."""
        log_rows, log_columns = (mass.log() for mass in masses.values)
        absent = [log == -torch.inf for log in (log_rows, log_columns)]
        f, g = torch.zeros_like(log_rows), torch.zeros_like(log_columns)
        plans, goal = [MatrixPairPlan(self, f, g)], Goal(tol, masses, self.agreed)
        for sweep in range(n_iters):
            sums = torch.logsumexp(self.scores + g, 1)
            if sweep > 0 and goal.reached(partial(marginal_of, f, sums)):
                break
            f = goal.until(f, torch.where(absent[0], -torch.inf, log_rows - sums))
            received = torch.logsumexp(self.scores + f[:, None], 0)
            g = goal.until(g, torch.where(absent[1], -torch.inf, log_columns - received))
            plans.append(MatrixPairPlan(self, f, g, goal.late))
        history, sweeps = PairSweeps(self, masses, plans), goal.sweeps(len(plans) - 1)
        return Solution(self, torch.cat([f, g]), lambda: plans[-1], history, sweeps)


@dataclass(frozen=True)
class MatrixPairPlan:
    """``P_ij = exp(x_ij + f_i + g_j)``."""

    coupling: MatrixPair
    f: Tensor
    g: Tensor
    late: Tensor | None = None  # whether the sweep that led here came after the end

    def masses(self) -> Tensor:
        """P, shape (N, M)."""
        return (self.coupling.scores + self.g).add_(self.f[:, None]).exp_()

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        return self.masses().sum(1 - axis)

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        pairs = self.masses().mul_(weights[:, None] if axis == 0 else weights)
        if sink is not None:
            sink.add(pairs)
        return {1 - axis: pairs.sum(axis)}


@dataclass(frozen=True)
class PairSweeps:
    """A history as the plans after each sweep, and before the first."""

    coupling: MatrixPair
    masses: Masses
    plans: Sequence[MatrixPairPlan]

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards (mathematics §4, unrolled).

        An update is minus a log-sum, whose derivatives are the plan's conditional probabilities.
        """
        sink = self.coupling.sink()
        to_f, to_g = (-part for part in cotangents)  # minus the gradients
        nothing = [torch.zeros_like(part) for part in cotangents]
        for before, plan in reversed(list(pairwise(self.plans))):
            after, late = (to_f, to_g), plan.late
            if late is not None:  # the sweep changed nothing
                to_f, to_g = (part * ~late for part in after)
            # g = log(columns) − log Σ_i exp(x + f), then f = log(rows) − log Σ_j exp(x + g).
            pairs = self.coupling.scores + plan.f[:, None]
            second, to_g = (pairs + plan.g).exp_(), to_g * self.masses.inverses[1]
            to_f = torch.addmv(to_f, second, to_g, alpha=-1) * self.masses.inverses[0]
            first = pairs.add_(before.g).exp_()
            sink.add(second.mul_(to_g).addcmul_(first, to_f[:, None]))
            to_f, to_g = nothing[0], torch.addmv(nothing[1], first.T, to_f, alpha=-1)
            if late is not None:
                to_f, to_g = after[0] * late, to_g + after[1] * late
        return sink.total()
