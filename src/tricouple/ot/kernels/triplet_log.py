"""The triplet plan for linear ψ in the log domain: slower, and right for any sharpness.

Everything is written with "all but one" sums, log Σ_{k≠j} exp(x_ik), so that nothing cancels:
the pair marginals of the plan are

    log P¹²_ij = φ_i + f_j + score_ij + log Σ_{k≠j} exp(g_k − score_ik)
    log P¹³_ik = φ_i + g_k − score_ik + log Σ_{j≠k} exp(f_j + score_ij)

with φ, f, g the log-scalings of anchors, positives and negatives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels.pair_log import DenseSink, subtract
from tricouple.ot.kernels.plan import GradientSink, Masses, Solution, Stage, Stages


@dataclass(frozen=True)
class AllButOne:
    """Sums over a row without one of its entries, for every entry: never a cancellation.

    At most one entry of a row can hold more than half of its sum. Leaving out any other is a
    harmless subtraction; leaving out that one is summed afresh.

    Attributes:
        log_sums: ``log Σ_{k≠j} exp(x_ik)``, shape (N, M).
        shares: ``exp(x_ij) / Σ_k exp(x_ik)``.
        largest: Column of the largest entry of each row, shape (N, 1).
        rest: Shares of the other entries among themselves, 0 at the largest.
    """

    log_sums: Tensor
    shares: Tensor
    largest: Tensor
    rest: Tensor

    @classmethod
    def of(cls, logs: Tensor) -> AllButOne:
        """Take the rows of a matrix of logarithms."""
        totals = _finite(torch.logsumexp(logs, 1, keepdim=True))
        shares = torch.exp(logs - totals)
        largest = logs.argmax(1, keepdim=True)
        others = logs.scatter(1, largest, -torch.inf)
        remaining = torch.logsumexp(others, 1, keepdim=True)
        log_sums = (totals + torch.log1p(-shares)).scatter(1, largest, remaining)
        return cls(log_sums, shares, largest, torch.exp(others - _finite(remaining)))

    def mean(self, weights: Tensor) -> Tensor:
        """``Σ_{k≠j} weights_k exp(x_ik) / Σ_{k≠j} exp(x_ik)`` for every j, shape (N, M)."""
        totals = (self.shares @ weights)[:, None]
        means = (totals - weights * self.shares) / (1 - self.shares)
        return means.scatter(1, self.largest, (self.rest @ weights)[:, None])


def _finite(logs: Tensor) -> Tensor:
    """Empty sums: keep differences with them −∞ instead of NaN."""
    return torch.where(logs == -torch.inf, 0.0, logs)


class LogTriplet:
    """Entropic three-marginal transport for ``C_ijk = −(s_ij − s_ik)/τ`` by log-sum-exp.

    Args:
        similarity: Shape (N, M).
        sharpness: c = 1/(τε).
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, similarity: Tensor, sharpness: float, *, within: bool) -> None:
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        self.attract = similarity.to(wide_dtype(similarity.device)) * sharpness
        self.repel = -self.attract
        if within:
            self.attract.fill_diagonal_(-torch.inf)
            self.repel.fill_diagonal_(-torch.inf)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.attract.dtype

    def sink(self) -> DenseSink:
        """A collector for this kernel."""
        return DenseSink(self.attract)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: anchors, positives, negatives."""
        mass_a, mass_b, _ = masses.values
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        stages: list[Stage] = []
        done = 0
        for sweep in range(n_iters):
            pairs = self.attract + AllButOne.of(self.repel + g).log_sums
            row_sums = torch.logsumexp(pairs + f, 1)
            if tol is not None and sweep > 0:
                plan = (pairs + phi[:, None] + f).exp()
                errors = (plan.sum(1) - mass_a, plan.sum(0) - mass_b)
                if max(float(error.abs().sum()) for error in errors) <= tol:
                    break
            phi = subtract(log_a, row_sums)
            stages.append(Stage(0, LogTripletPlan(self, phi, f, g)))
            f = subtract(log_b, torch.logsumexp(pairs + phi[:, None], 0))
            stages.append(Stage(1, LogTripletPlan(self, phi, f, g)))
            pairs = self.repel + AllButOne.of(self.attract + f).log_sums
            g = subtract(log_h, torch.logsumexp(pairs + phi[:, None], 0))
            stages.append(Stage(2, LogTripletPlan(self, phi, f, g)))
            done += 1
        return Solution(
            self, torch.cat([phi, f, g]), stages[-1].plan, Stages(self, masses, stages), done
        )


@dataclass(frozen=True)
class LogTripletPlan:
    """The plan at log-scalings φ (anchors), f (positives) and g (negatives)."""

    kernel: LogTriplet
    phi: Tensor
    f: Tensor
    g: Tensor

    def positives(self) -> tuple[Tensor, AllButOne]:
        """P¹² and the sums over negatives that it is made of."""
        partners = AllButOne.of(self.kernel.repel + self.g)
        logs = self.kernel.attract + self.f + self.phi[:, None] + partners.log_sums
        return logs.exp_(), partners

    def negatives(self) -> tuple[Tensor, AllButOne]:
        """P¹³ and the sums over positives that it is made of."""
        partners = AllButOne.of(self.kernel.attract + self.f)
        logs = self.kernel.repel + self.g + self.phi[:, None] + partners.log_sums
        return logs.exp_(), partners

    def marginal(self, axis: int) -> Tensor:
        """Sums of P¹² or P¹³."""
        if axis == 2:
            return self.negatives()[0].sum(0)
        return self.positives()[0].sum(1 - axis)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals; those with P²³ go through the anchors."""
        positives, negatives_of_pair = self.positives()
        negatives, positives_of_pair = self.negatives()
        if axis == 0:
            pushed = {1: positives.T @ weights, 2: negatives.T @ weights}
            raised, lowered = positives * weights[:, None], negatives * weights[:, None]
        elif axis == 1:
            raised = positives * weights
            lowered = negatives * positives_of_pair.mean(weights)
            pushed = {0: raised.sum(1), 2: lowered.sum(0)}
        else:
            raised = positives * negatives_of_pair.mean(weights)
            lowered = negatives * weights
            pushed = {0: lowered.sum(1), 1: raised.sum(0)}
        if isinstance(sink, DenseSink):
            sink.add(raised - lowered)
        return pushed
