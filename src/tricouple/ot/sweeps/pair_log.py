"""Plans of pairs by logarithms, in few operations on one matrix: what an accelerator likes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import (
    Coupling,
    DenseSink,
    Goal,
    GradientSink,
    Masses,
    Solution,
)


class MatrixPair(Coupling):
    """Entropic transport with kernel ``exp(x)`` (mathematics §5).

    Args:
        scores: x, shape (N, M), wide dtype.
        within: Anchors are the references: the diagonal is excluded.
    """

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
        plans, goal = [MatrixPairPlan(self, f, g)], Goal(tol, self.agreed)
        for sweep in range(n_iters):
            sums = torch.logsumexp(self.scores + g, 1)
            if sweep > 0 and goal.reached(partial(_error, f, sums, masses.values[0])):
                break
            f = goal.until(f, torch.where(absent[0], -torch.inf, log_rows - sums))
            received = torch.logsumexp(self.scores + f[:, None], 0)
            g = goal.until(g, torch.where(absent[1], -torch.inf, log_columns - received))
            plans.append(MatrixPairPlan(self, f, g, goal.late))
        history, sweeps = PairSweeps(self, masses, plans), goal.sweeps(len(plans) - 1)
        return Solution(self, torch.cat([f, g]), lambda: plans[-1], history, sweeps)


def _error(f: Tensor, log_sums: Tensor, mass: Tensor) -> Tensor:
    """The L1 error of the rows' marginal."""
    return ((f + log_sums).exp() - mass).abs().sum()


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

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        pairs = self.masses().mul_(weights[:, None] if axis == 0 else weights)
        if isinstance(sink, DenseSink):
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
