"""Triplet plans in the log domain: slower, and right for any sharpness.

Everything is written with "all but one" sums, log Σ_{k≠j} exp(x_ik), so that nothing cancels.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels.pair_log import DenseSink, subtract
from tricouple.ot.kernels.plan import GradientSink, Masses, Solution, Stage, Stages
from tricouple.ot.kernels.quadrature import LinearTerms, Terms


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
    """Entropic three-marginal transport for ``K_ijk = Σ_q exp(attract_q(x_ij) + repel_q(x_ik))``.

    Args:
        scores: x, shape (N, M).
        terms: The separable terms of the kernel.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, scores: Tensor, terms: Terms, *, within: bool) -> None:
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        self.scores = scores.to(wide_dtype(scores.device))
        self.terms = terms
        self.within = within

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.scores.dtype

    def sink(self) -> DenseSink:
        """A collector for this kernel."""
        return DenseSink(self.scores)

    def attract(self, node: float) -> Tensor:
        """Logarithms of one term's factor of the positives, (N, M)."""
        return self._excluded(self.terms.attract(self.scores, node))

    def repel(self, node: float) -> Tensor:
        """Logarithms of one term's factor of the negatives, (N, M)."""
        return self._excluded(self.terms.repel(self.scores, node))

    def _excluded(self, logs: Tensor) -> Tensor:
        if not self.within:
            return logs
        return logs.masked_fill(
            torch.eye(len(logs), dtype=torch.bool, device=logs.device), -torch.inf
        )

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        return _log_sum(
            self.attract(node) + AllButOne.of(self.repel(node) + g).log_sums
            for node in self.terms.nodes
        )

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        return _log_sum(
            self.repel(node) + AllButOne.of(self.attract(node) + f).log_sums
            for node in self.terms.nodes
        )

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

    kernel: LogTriplet
    phi: Tensor
    f: Tensor
    g: Tensor

    def positives(self) -> Tensor:
        """P¹², shape (N, M)."""
        return (self.kernel.positive_pairs(self.g) + self.f + self.phi[:, None]).exp_()

    def negatives(self) -> Tensor:
        """P¹³, shape (N, M)."""
        return (self.kernel.negative_pairs(self.f) + self.g + self.phi[:, None]).exp_()

    def marginal(self, axis: int) -> Tensor:
        """Sums of P¹² or P¹³."""
        return self.negatives().sum(0) if axis == 2 else self.positives().sum(1 - axis)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals, a term at a time; those with P²³ go through anchors."""
        pushed = {other: torch.zeros_like(self._potential(other)) for other in range(3)}
        kernel, phi = self.kernel, self.phi[:, None]
        for node in kernel.terms.nodes:
            near, far = kernel.attract(node) + self.f, kernel.repel(node) + self.g
            negatives_of_pair, positives_of_pair = AllButOne.of(far), AllButOne.of(near)
            raised = torch.exp(near + phi + negatives_of_pair.log_sums)
            lowered = torch.exp(far + phi + positives_of_pair.log_sums)
            if axis == 0:
                raised, lowered = raised * weights[:, None], lowered * weights[:, None]
            elif axis == 1:
                raised, lowered = raised * weights, lowered * positives_of_pair.mean(weights)
            else:
                raised, lowered = raised * negatives_of_pair.mean(weights), lowered * weights
            pushed[0] += (raised if axis == 1 else lowered).sum(1)
            pushed[1] += raised.sum(0)
            pushed[2] += lowered.sum(0)
            if isinstance(sink, DenseSink):
                sink.add(raised * kernel.terms.attract_slope(kernel.scores, node))
                sink.add(lowered * kernel.terms.repel_slope(kernel.scores, node))
        del pushed[axis]
        return pushed

    def _potential(self, axis: int) -> Tensor:
        return (self.phi, self.f, self.g)[axis]


def _log_sum(terms: Iterable[Tensor]) -> Tensor:
    """``log Σ exp`` of matrices that come one at a time."""
    return functools.reduce(torch.logaddexp, terms)


def careful_linear(similarity: Tensor, sharpness: float, *, within: bool) -> LogTriplet:
    """The coupling for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""
    return LogTriplet(
        similarity.to(wide_dtype(similarity.device)) * sharpness, LinearTerms(), within=within
    )
