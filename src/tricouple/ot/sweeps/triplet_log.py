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
from tricouple.ot.sweeps.log_domain import LogDomainTriplet, LogTripletPlan
from tricouple.ot.sweeps.pair_log import DenseSink
from tricouple.ot.sweeps.plan import GradientSink
from tricouple.ot.sweeps.quadrature import LinearTerms, Terms
from tricouple.ot.sweeps.similarities import Similarities

# Entries of a plan are at most 1; where j = k, which is left out, their logarithm may exceed this,
# and factors scaled to it would underflow elsewhere.
_STEEP = 100.0


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


class LogTriplet(LogDomainTriplet):
    """Entropic three-marginal transport for ``K_ijk = Σ_q exp(attract_q(x_ij) + repel_q(x_ik))``.

    Args:
        scores: x, shape (N, M).
        terms: The separable terms of the kernel.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, scores: Tensor, terms: Terms, *, within: bool) -> None:
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        super().__init__(scores.to(wide_dtype(scores.device)), within=within)
        self.terms = terms

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

    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³, shape (M, M): a matrix product for each term."""
        m = self.scores.shape[1]
        total = self.scores.new_zeros(m, m)
        for node in self.terms.nodes:
            near, far = self.attract(node) + plan.f, self.repel(node) + plan.g
            tops = [_finite(logs.amax(1, keepdim=True)) for logs in (near, far)]
            heights = plan.phi[:, None] + tops[0] + tops[1]
            steep = heights[:, 0] > _STEEP
            weights = torch.exp(heights.masked_fill(steep[:, None], -torch.inf))
            total += (torch.exp(near - tops[0]) * weights).T @ torch.exp(far - tops[1])
            for anchor in steep.nonzero()[:, 0].tolist():
                total += torch.exp((near[anchor] + plan.phi[anchor])[:, None] + far[anchor])
        return total.fill_diagonal_(0.0)

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals, a term at a time; those with P²³ go through anchors."""
        pushed = {o: torch.zeros_like(p) for o, p in enumerate((plan.phi, plan.f, plan.g))}
        phi = plan.phi[:, None]
        for node in self.terms.nodes:
            near, far = self.attract(node) + plan.f, self.repel(node) + plan.g
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
                sink.add(raised * self.terms.attract_slope(self.scores, node))
                sink.add(lowered * self.terms.repel_slope(self.scores, node))
        del pushed[axis]
        return pushed


def _log_sum(terms: Iterable[Tensor]) -> Tensor:
    """``log Σ exp`` of matrices that come one at a time."""
    return functools.reduce(torch.logaddexp, terms)


def careful_linear(similarities: Similarities, sharpness: float, *, within: bool) -> LogTriplet:
    """The coupling for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""
    wide = similarities.widened(wide_dtype(similarities.like.device))
    return LogTriplet(wide.matrix() * sharpness, LinearTerms(), within=within)
