"""Triplet plans by logarithms: slower, and right for any sharpness.

Sweeps for any kernel that can sum one partner out of a pair; then kernels of separable terms, where
everything is written with "all but one" sums, log Σ_{k≠j} exp(x_ik), so that nothing cancels
(mathematics §2, trust).
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tricouple.numeric import on_host, wide_dtype
from tricouple.ot.sweeps.contract import (
    Coupling,
    DenseSink,
    Goal,
    GradientSink,
    Masses,
    Solution,
    Stage,
    Stages,
    log_scaling,
)

# Entries of a plan are at most 1; where j = k, which is left out, their logarithm may exceed this,
# and factors scaled to it would underflow elsewhere.
_STEEP = 100.0

# Entries of the matrices of several terms that an accelerator has at once.
_AT_ONCE = 1 << 24


class LogDomainTriplet(Coupling):
    """Entropic three-marginal transport by log-sum-exp: slower, and right for any sharpness.

    Args:
        scores: x, shape (N, M), wide dtype.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, scores: Tensor, *, within: bool) -> None:
        self.scores = scores
        self.dtype = scores.dtype
        self.within = within

    @abstractmethod
    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""

    @abstractmethod
    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""

    @abstractmethod
    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³, shape (M, M)."""

    def marginal(self, plan: LogTripletPlan, axis: int) -> Tensor:
        """Sums of P¹² or P¹³."""
        return plan.negatives().sum(0) if axis == 2 else plan.positives().sum(1 - axis)

    @abstractmethod
    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> dict[int, Tensor]:
        """``Plan.push`` of a plan of this coupling."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep: anchors, positives, negatives."""
        mass_a, mass_b, _ = masses.values
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        stages: list[Stage] = []
        goal = Goal(tol, self.agreed)
        for sweep in range(n_iters):
            pairs = self.positive_pairs(g)  # log Σ_k K_ijk h_k, shape (N, M)
            row_sums = torch.logsumexp(pairs + f, 1)
            if tol is not None and sweep > 0:
                plan = (pairs + phi[:, None] + f).exp()
                errors = torch.stack(
                    [(plan.sum(1) - mass_a).abs().sum(), (plan.sum(0) - mass_b).abs().sum()]
                )
                if goal.reached(errors.amax):
                    break
            # Marginals 1, 2 and 3 of mathematics §2, each set in turn.
            phi = goal.until(phi, log_scaling(log_a, row_sums))
            stages.append(Stage(0, LogTripletPlan(self, phi, f, g), goal.late))
            f = goal.until(f, log_scaling(log_b, torch.logsumexp(pairs + phi[:, None], 0)))
            stages.append(Stage(1, LogTripletPlan(self, phi, f, g), goal.late))
            pairs = self.negative_pairs(f)
            g = goal.until(g, log_scaling(log_h, torch.logsumexp(pairs + phi[:, None], 0)))
            stages.append(Stage(2, LogTripletPlan(self, phi, f, g), goal.late))
        potentials = torch.cat([phi, f, g])
        history, sweeps = Stages(self, masses, stages), goal.sweeps(len(stages) // 3)
        return Solution(self, potentials, lambda: stages[-1].plan, history, sweeps)


@dataclass(frozen=True)
class LogTripletPlan:
    """The plan at log-scalings φ (anchors), f (positives) and g (negatives)."""

    coupling: LogDomainTriplet
    phi: Tensor
    f: Tensor
    g: Tensor
    late: Tensor | None = None  # whether the sweep that led here came after the end

    def positives(self) -> Tensor:
        """P¹², shape (N, M)."""
        return (self.coupling.positive_pairs(self.g) + self.f + self.phi[:, None]).exp_()

    def negatives(self) -> Tensor:
        """P¹³, shape (N, M)."""
        return (self.coupling.negative_pairs(self.f) + self.g + self.phi[:, None]).exp_()

    def partners(self) -> Tensor:
        """P²³, shape (M, M)."""
        return self.coupling.partners(self)

    def marginal(self, axis: int) -> Tensor:
        """The plan's own marginal on an axis."""
        return self.coupling.marginal(self, axis)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals, as the coupling does them best."""
        return self.coupling.push(self, axis, weights, sink)


class Terms(Protocol):
    """A kernel as separable terms, ``Σ_q exp(attract_q(x) + repel_q(y))``, one for each node.

    Of several nodes at once, shape (q, 1, 1), factors have shape (q, N, M).
    """

    @property
    def nodes(self) -> tuple[float, ...]:
        """What tells the terms apart."""

    def attract(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of a term's factor in x."""

    def repel(self, y: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of a term's factor in y."""

    def attract_slope(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Derivative of ``attract``."""

    def repel_slope(self, y: Tensor, node: float | Tensor) -> Tensor:
        """Derivative of ``repel``."""


@dataclass(frozen=True)
class LinearTerms:
    """``K = exp(x − y)``, which is one separable term as it is, at node 0."""

    nodes: tuple[float, ...] = (0.0,)

    def attract(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of the factor in x."""
        return x + node

    def repel(self, y: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of the factor in y."""
        return node - y

    def attract_slope(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Derivative of ``attract``."""
        return torch.ones_like(x)

    def repel_slope(self, y: Tensor, node: float | Tensor) -> Tensor:
        """Derivative of ``repel``."""
        return -torch.ones_like(y)


@dataclass(frozen=True)
class AllButOne:
    """Sums over a row without one of its entries, for every entry: never a cancellation.

    At most one entry of a row can hold more than half of its sum. Leaving out any other is a
    harmless subtraction; leaving out that one is summed afresh.
    """

    log_sums: Tensor  # ``log Σ_{k≠j} exp(x_ik)``, shape (N, M), or (q, N, M) of several matrices
    shares: Tensor  # ``exp(x_ij) / Σ_k exp(x_ik)``
    largest: Tensor  # column of the largest entry of each row, shape (…, N, 1)
    rest: Tensor  # shares of the other entries among themselves, 0 at the largest

    @classmethod
    def of(cls, logs: Tensor) -> AllButOne:
        """Take the rows of a matrix of logarithms, or of several."""
        totals = _finite(torch.logsumexp(logs, -1, keepdim=True))
        shares = torch.exp(logs - totals)
        largest = logs.argmax(-1, keepdim=True)
        others = logs.scatter(-1, largest, -torch.inf)
        remaining = torch.logsumexp(others, -1, keepdim=True)
        log_sums = (totals + torch.log1p(-shares)).scatter(-1, largest, remaining)
        return cls(log_sums, shares, largest, torch.exp(others - _finite(remaining)))

    def mean(self, weights: Tensor) -> Tensor:
        """``Σ_{k≠j} weights_k exp(x_ik) / Σ_{k≠j} exp(x_ik)`` for every j, shape (N, M)."""
        totals = (self.shares @ weights)[..., None]
        means = (totals - weights * self.shares) / (1 - self.shares)
        return means.scatter(-1, self.largest, (self.rest @ weights)[..., None])


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
        """A collector for this coupling."""
        return DenseSink(self.scores)

    def attract(self, node: float | Tensor) -> Tensor:
        """Logarithms of one term's factor of the positives, (N, M); of several, (q, N, M)."""
        return self._excluded(self.terms.attract(self.scores, node))

    def repel(self, node: float | Tensor) -> Tensor:
        """Logarithms of one term's factor of the negatives, (N, M); of several, (q, N, M)."""
        return self._excluded(self.terms.repel(self.scores, node))

    def _excluded(self, logs: Tensor) -> Tensor:
        if not self.within:
            return logs
        return logs.masked_fill(
            torch.eye(logs.shape[-1], dtype=torch.bool, device=logs.device), -torch.inf
        )

    def _nodes(self) -> Iterator[float | Tensor]:
        """The nodes, as many at a time as an accelerator likes; on the host one."""
        nodes = self.terms.nodes
        if on_host(self.scores):
            yield from nodes
        else:
            ends, like = (nodes[0], nodes[-1], len(nodes)), self.scores
            all_nodes = torch.linspace(*ends, dtype=like.dtype, device=like.device)
            yield from all_nodes[:, None, None].split(max(1, _AT_ONCE // like.numel()))

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        return _log_sum(
            self.attract(node) + AllButOne.of(self.repel(node) + g).log_sums
            for node in self._nodes()
        )

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        return _log_sum(
            self.repel(node) + AllButOne.of(self.attract(node) + f).log_sums
            for node in self._nodes()
        )

    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³_jk = b_j h_k (E⁺ᵀ diag(a) E⁻)_jk, shape (M, M): a matrix product for each term."""
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
        for node in self._nodes():
            near, far = self.attract(node) + plan.f, self.repel(node) + plan.g
            negatives_of_pair, positives_of_pair = AllButOne.of(far), AllButOne.of(near)
            # P¹²_ij = a_i b_j E⁺_ij Σ_{k≠j} E⁻_ik h_k and P¹³_ik = a_i h_k E⁻_ik Σ_{j≠k} E⁺_ij b_j.
            raised = torch.exp(near + phi + negatives_of_pair.log_sums)
            lowered = torch.exp(far + phi + positives_of_pair.log_sums)
            if axis == 0:
                raised, lowered = raised * weights[:, None], lowered * weights[:, None]
            elif axis == 1:
                raised, lowered = raised * weights, lowered * positives_of_pair.mean(weights)
            else:
                raised, lowered = raised * negatives_of_pair.mean(weights), lowered * weights
            pushed[0] += _over_terms(raised if axis == 1 else lowered).sum(1)
            pushed[1] += _over_terms(raised).sum(0)
            pushed[2] += _over_terms(lowered).sum(0)
            if isinstance(sink, DenseSink):
                sink.add(_over_terms(raised * self.terms.attract_slope(self.scores, node)))
                sink.add(_over_terms(lowered * self.terms.repel_slope(self.scores, node)))
        del pushed[axis]
        return pushed


def _log_sum(terms: Iterable[Tensor]) -> Tensor:
    """``log Σ exp`` of matrices that come one at a time, or several."""
    matrices = (term if term.ndim == 2 else torch.logsumexp(term, 0) for term in terms)
    return functools.reduce(torch.logaddexp, matrices)


def _over_terms(values: Tensor) -> Tensor:
    """The sum of matrices, if they are several."""
    return values if values.ndim == 2 else values.sum(0)
