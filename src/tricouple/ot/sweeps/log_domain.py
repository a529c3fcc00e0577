"""Three-marginal sweeps on logarithms, for any kernel that can sum one partner out of a pair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.ot.sweeps.pair_log import subtract
from tricouple.ot.sweeps.plan import GradientSink, Masses, Solution, Stage, Stages


class LogDomainTriplet(ABC):
    """Entropic three-marginal transport by log-sum-exp: slower, and right for any sharpness.

    Args:
        scores: x, shape (N, M), wide dtype.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, scores: Tensor, *, within: bool) -> None:
        self.scores = scores
        self.within = within

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.scores.dtype

    @abstractmethod
    def sink(self) -> GradientSink:
        """A collector for this kernel."""

    @abstractmethod
    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""

    @abstractmethod
    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""

    @abstractmethod
    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³, shape (M, M)."""

    @abstractmethod
    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> dict[int, Tensor]:
        """``Plan.push`` of a plan of this kernel."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: anchors, positives, negatives."""
        mass_a, mass_b, _ = masses.values
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        stages: list[Stage] = []
        done = 0
        for sweep in range(n_iters):
            pairs = self.positive_pairs(g)
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
            pairs = self.negative_pairs(f)
            g = subtract(log_h, torch.logsumexp(pairs + phi[:, None], 0))
            stages.append(Stage(2, LogTripletPlan(self, phi, f, g)))
            done += 1
        potentials = torch.cat([phi, f, g])
        return Solution(
            self, potentials, lambda: stages[-1].plan, Stages(self, masses, stages), done
        )


@dataclass(frozen=True)
class LogTripletPlan:
    """The plan at log-scalings φ (anchors), f (positives) and g (negatives)."""

    kernel: LogDomainTriplet
    phi: Tensor
    f: Tensor
    g: Tensor

    def positives(self) -> Tensor:
        """P¹², shape (N, M)."""
        return (self.kernel.positive_pairs(self.g) + self.f + self.phi[:, None]).exp_()

    def negatives(self) -> Tensor:
        """P¹³, shape (N, M)."""
        return (self.kernel.negative_pairs(self.f) + self.g + self.phi[:, None]).exp_()

    def partners(self) -> Tensor:
        """P²³, shape (M, M)."""
        return self.kernel.partners(self)

    def marginal(self, axis: int) -> Tensor:
        """Sums of P¹² or P¹³."""
        return self.negatives().sum(0) if axis == 2 else self.positives().sum(1 - axis)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals, as the kernel does them best."""
        return self.kernel.push(self, axis, weights, sink)
