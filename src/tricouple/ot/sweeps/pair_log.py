"""The pairwise plan in the log domain: slower, and right for any sharpness."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.numeric import Patch, ScoreGradient, wide_dtype
from tricouple.ot.sweeps.plan import GradientSink, Masses, Solution, Stage, Stages
from tricouple.ot.sweeps.similarities import Similarities


class DenseSink:
    """Adds whole matrices of score gradients."""

    def __init__(self, like: Tensor) -> None:
        self._sum = torch.zeros_like(like)

    def add(self, term: Tensor) -> None:
        """Add one N×M term."""
        self._sum += term

    def total(self) -> ScoreGradient:
        """The sum so far."""
        return [Patch(slice(0, len(self._sum)), self._sum)]


@dataclass(frozen=True)
class LogPairPlan:
    """``P_ij = exp(score_ij + f_i + g_j)``, rebuilt from the potentials at each use."""

    score: Tensor
    f: Tensor
    g: Tensor

    def dense(self) -> Tensor:
        """The plan as a matrix."""
        return (self.score + self.f[:, None]).add_(self.g).exp_()

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        return self.dense().sum(1 - axis)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        plan = self.dense()
        if axis == 0:
            pushed, scale = {1: plan.T @ weights}, weights[:, None]
        else:
            pushed, scale = {0: plan @ weights}, weights
        if isinstance(sink, DenseSink):
            sink.add(plan.mul_(scale))
        return pushed


class LogPair:
    """Entropic transport for ``score = sharpness · similarity`` by log-sum-exp."""

    def __init__(self, similarities: Similarities, sharpness: float, *, within: bool) -> None:
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        wide = similarities.widened(wide_dtype(similarities.like.device))
        self.score = wide.matrix() * sharpness
        if within:
            self.score.fill_diagonal_(-torch.inf)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.score.dtype

    def sink(self) -> DenseSink:
        """A collector for this kernel."""
        return DenseSink(self.score)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: rows, then columns."""
        log_rows, log_columns = (mass.log() for mass in masses.values)
        f, g = torch.zeros_like(log_rows), torch.zeros_like(log_columns)
        stages: list[Stage] = []
        done = 0
        for sweep in range(n_iters):
            row_sums = torch.logsumexp(self.score + g, 1)
            error = (torch.exp(f + row_sums) - log_rows.exp()).abs().sum()
            if tol is not None and sweep > 0 and float(error) <= tol:
                break
            f = subtract(log_rows, row_sums)
            stages.append(Stage(0, LogPairPlan(self.score, f, g)))
            g = subtract(log_columns, torch.logsumexp(self.score + f[:, None], 0))
            stages.append(Stage(1, LogPairPlan(self.score, f, g)))
            done += 1
        return Solution(
            self, torch.cat([f, g]), lambda: stages[-1].plan, Stages(self, masses, stages), done
        )


def subtract(log_mass: Tensor, log_sum: Tensor) -> Tensor:
    """``log_mass − log_sum``, and −∞ wherever the mass is zero, whatever the sum."""
    return torch.where(log_mass == -torch.inf, log_mass, log_mass - log_sum)
