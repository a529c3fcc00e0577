"""Triplet plans by logarithms: slower, and right for any sharpness.

Sweeps for any kernel that can sum one partner out of a pair; then kernels of separable terms, where
everything is written with "all but one" sums, log Σ_{k≠j} exp(x_ik), so that nothing cancels
(mathematics §2, trust). Those are few operations on whole matrices: what an accelerator likes.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient, on_host, wide_dtype
from tricouple.ot.sweeps.contract import (
    Coupling,
    DenseSink,
    Goal,
    GradientSink,
    History,
    Masses,
    Received,
    Solution,
    Stage,
    Stages,
    log_scaling,
)

# Entries of a plan are at most 1; where j = k, which is left out, their logarithm may exceed this,
# and factors scaled to it would underflow elsewhere.
_STEEP = 100.0

# Entries of the matrices of several terms that an accelerator has at once.
_AT_ONCE = 1 << 25

# Logarithm of what is excluded: nothing beside any other number, and yet a number, so that
# differences of two of them are not NaN.
_NOTHING = {torch.float64: -1e300, torch.float32: -1e30}


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
    ) -> Received:
        """``Plan.push`` of a plan of this coupling."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep: anchors, positives, negatives."""
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        plans, goal = [LogTripletPlan(self, phi, f, g)], Goal(tol, masses, self.agreed)
        for sweep in range(n_iters):
            pairs = self.positive_pairs(g)  # log Σ_k K_ijk h_k, shape (N, M)
            row_sums = torch.logsumexp(pairs + f, 1)
            if tol is not None and sweep > 0:
                plan = (pairs + phi[:, None] + f).exp()
                if goal.reached(functools.partial(plan.sum, 1), functools.partial(plan.sum, 0)):
                    break
            # Marginals 1, 2 and 3 of mathematics §2, each set in turn.
            phi = goal.until(phi, self.scaling(log_a, row_sums))
            f = goal.until(f, self.scaling(log_b, torch.logsumexp(pairs.add_(phi[:, None]), 0)))
            pairs = self.negative_pairs(f).add_(phi[:, None])
            g = goal.until(g, self.scaling(log_h, torch.logsumexp(pairs, 0)))
            plans.append(LogTripletPlan(self, phi, f, g, goal.late))
        potentials = torch.cat([phi, f, g])
        history, sweeps = self.history(masses, plans), goal.sweeps(len(plans) - 1)
        return Solution(self, potentials, lambda: plans[-1], history, sweeps)

    def scaling(self, log_mass: Tensor, log_sum: Tensor) -> Tensor:
        """The potential that a mass asks for, where a sum may be empty."""
        return log_scaling(log_mass, log_sum)

    def history(self, masses: Masses, plans: Sequence[LogTripletPlan]) -> History:
        """Three updates a sweep, each with the plan right after it."""
        stages: list[Stage] = []
        for before, plan in pairwise(plans):
            late = plan.late
            stages.append(Stage(0, LogTripletPlan(self, plan.phi, before.f, before.g), late))
            stages.append(Stage(1, LogTripletPlan(self, plan.phi, plan.f, before.g), late))
            stages.append(Stage(2, plan, late))
        return Stages(self, masses, stages)


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

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """Products with the pair marginals, as the coupling does them best."""
        return self.coupling.push(self, axis, weights, sink)


Term = tuple[LogTripletPlan, int, Tensor]
"""A plan, an axis, and weights on it."""


class Terms(Protocol):
    """A kernel as separable terms, ``Σ_q exp(attract_q(x) + repel_q(y))``, one for each node."""

    @property
    def nodes(self) -> Sequence[float] | Tensor:
        """What tells the terms apart."""

    def ends(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Logarithms of the factors in x and of those in y at some nodes, shape (2, q, N, M)."""

    def force(self, near: Tensor, far: Tensor, ends: Tensor) -> Tensor:
        """What masses of terms, near in x and far in y, shape (q, N, M), do to the scores."""


@dataclass(frozen=True)
class LinearTerms:
    """``K = exp(x − y)``, which is one separable term as it is, at node 0."""

    nodes: Sequence[float] = (0.0,)

    def ends(self, x: Tensor, nodes: Tensor) -> Tensor:
        """The scores, and their negatives."""
        return torch.stack([x + nodes, nodes - x])

    def force(self, near: Tensor, far: Tensor, ends: Tensor) -> Tensor:
        """Slopes are 1 and −1."""
        return (near - far)[0]


class AllButOne(NamedTuple):
    """Sums over a row without one of its entries, for every entry: never a cancellation.

    At most one entry of a row can hold more than half of its sum. Leaving out any other is a
    harmless subtraction; leaving out that one is summed afresh.
    """

    log_sums: Tensor  # A_j = ``log Σ_{k≠j} exp(x_ik)``, shape (…, N, M)
    largest: Tensor  # column of the largest entry of each row, shape (…, N, 1)
    rest: Tensor  # logarithm of the sum of the others, shape (…, N, 1)
    others: Tensor  # the entries, nothing at the largest

    @classmethod
    def of(cls, logs: Tensor) -> AllButOne:
        """Take the rows of some matrices of logarithms, which are used up."""
        shares = torch.softmax(logs, -1)
        top, largest = logs.max(-1, keepdim=True)
        others = logs.scatter_(-1, largest, _NOTHING[logs.dtype])
        rest = torch.logsumexp(others, -1, keepdim=True)
        log_sums = shares.neg_().log1p_().add_(torch.logaddexp(top, rest))
        return cls(log_sums.scatter_(-1, largest, rest), largest, rest, others)

    def slopes(self) -> Slopes:
        """Their derivatives, in units of the rest: nothing overflows but at the largest entry."""
        scale = torch.sub(self.rest, self.log_sums).exp_()
        return Slopes(scale, torch.softmax(self.others, -1), self.largest)


class Slopes(NamedTuple):
    """Derivatives of "all but one" sums, ``∂A_k/∂x_j = exp(x_j − A_k)`` for j ≠ k."""

    scale: Tensor  # ``exp(rest − A_k)``, at most 1
    shares: Tensor  # ``exp(x_j − rest)``, 0 at the largest entry
    largest: Tensor  # its column

    def __getitem__(self, place: int) -> Slopes:  # type: ignore[override]
        """Those of one of several families of matrices."""
        return Slopes(
            self.scale.select(0, place), self.shares.select(0, place), self.largest.select(0, place)
        )

    def pull(self, weights: Tensor, total: Tensor) -> Tensor:
        """``Σ_{k≠j} weights_k ∂A_k/∂x_j``, shape (…, N, M).

        The largest entry gets what the others leave, of the total of a row's weights, shape
        (…, N, 1): the derivatives of a sum add up to 1.
        """
        scaled = self.scale * weights
        found = (scaled.sum(-1, keepdim=True) - scaled).mul_(self.shares)
        return found.scatter_(-1, self.largest, total - found.sum(-1, keepdim=True))


Part = tuple[Tensor, Tensor, Callable[[], Slopes]]
"""Of some terms: ends, logarithms of the pairs' sums with their own factor, and slopes."""


@dataclass(frozen=True)
class Pairs:
    """``log Σ K_ijk exp(v)`` with the partner summed out, of all (i, j), or of all (i, k)."""

    coupling: LogTriplet
    own: int  # 0 for positives j, whose partners are negatives; 1 for negatives k
    v: Tensor  # log-scalings of the partners, shape (M,)
    whole: Part | None = None  # all terms, where there is room

    def _parts(self) -> Iterator[Part]:
        """Some terms at a time."""
        if self.whole is not None:
            yield self.whole
            return
        for ends in self.coupling.ends():
            sums = AllButOne.of(ends[1 - self.own] + self.v)
            yield ends, sums.log_sums + ends[self.own], sums.slopes

    @functools.cached_property
    def logs(self) -> Tensor:
        """Shape (N, M)."""
        totals = (
            logs[0] if len(logs) == 1 else torch.logsumexp(logs, 0) for _, logs, _ in self._parts()
        )
        return functools.reduce(torch.logaddexp, totals)

    def pull(self, weights: Tensor, total: Tensor, sink: GradientSink | None) -> Tensor:
        """What the partners' log-scalings get of a gradient, shape (M,); the scores' to the sink.

        The weights are the gradient with respect to the logarithms, shape (N, M), ``total`` the
        sums of its rows.
        """
        found: list[Tensor] = []
        for ends, logs, slopes in self._parts():
            own, of_rows = weights[None], total[:, None]
            if len(self.coupling.terms.nodes) > 1:  # every term has its share of its pair
                own = torch.exp(logs - self.logs).mul_(weights)
                of_rows = own.sum(-1, keepdim=True)
            partner = slopes().pull(own, of_rows)
            if sink is not None:
                masses = (own, partner) if self.own == 0 else (partner, own)
                sink.add(self.coupling.terms.force(*masses, ends))
            found.append(partner.sum((0, 1)))
        return functools.reduce(torch.add, found)


class LogTriplet(LogDomainTriplet):
    """The same for scores x and ``K_ijk = Σ_q exp(attract_q(x_ij) + repel_q(x_ik))``."""

    def __init__(self, scores: Tensor, terms: Terms, *, within: bool) -> None:
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        super().__init__(scores.to(wide_dtype(scores.device)), within=within)
        self.terms = terms
        few = max(1, _AT_ONCE // max(1, scores.numel()))
        self._few = 1 if on_host(scores) else few  # terms at a time
        self._ends: Tensor | None = None

    def scaling(self, log_mass: Tensor, log_sum: Tensor) -> Tensor:
        """No sum is empty: what is excluded is a number."""
        return log_mass - log_sum

    def sink(self) -> DenseSink:
        """A collector for this coupling."""
        return DenseSink(self.scores)

    def release(self) -> None:
        """Give up the factors until they are needed again."""
        self._ends = None

    def ends(self) -> Iterator[Tensor]:
        """Logarithms of factors of some terms at a time; nothing where an anchor meets itself."""
        if self._ends is not None:
            yield self._ends
            return
        like, nodes = self.scores, self.terms.nodes
        if not isinstance(nodes, Tensor):
            span = nodes[0], nodes[-1], len(nodes)
            nodes = torch.linspace(*span, dtype=like.dtype, device=like.device)
        for some in nodes[:, None, None].split(self._few):
            ends = self.terms.ends(like, some)
            if self.within:
                ends.diagonal(dim1=2, dim2=3).fill_(_NOTHING[ends.dtype])
            if len(nodes) <= self._few:
                self._ends = ends
            yield ends

    def both(self, f: Tensor, g: Tensor) -> tuple[Pairs, Pairs]:
        """Negatives with their positives summed out, and positives with their negatives."""
        if len(self.terms.nodes) > self._few // 2:
            return Pairs(self, 1, f), Pairs(self, 0, g)
        (ends,) = self.ends()
        sums = AllButOne.of(ends + torch.stack([f, g])[:, None, None])
        slopes = sums.slopes()
        logs = sums.log_sums.add_(ends.flip(0))
        negatives, positives = (
            Pairs(
                self, 1 - side, v, (ends, logs[side], functools.partial(slopes.__getitem__, side))
            )
            for side, v in enumerate((f, g))
        )
        return negatives, positives

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        return Pairs(self, 0, g).logs

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        return Pairs(self, 1, f).logs

    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³_jk = b_j h_k (E⁺ᵀ diag(a) E⁻)_jk, shape (M, M): a matrix product for each term."""
        m = self.scores.shape[1]
        total = self.scores.new_zeros(m, m)
        for ends in self.ends():
            for near, far in zip(ends[0] + plan.f, ends[1] + plan.g, strict=True):
                tops = near.amax(1, keepdim=True), far.amax(1, keepdim=True)
                heights = plan.phi[:, None] + tops[0] + tops[1]
                steep = heights[:, 0] > _STEEP
                weights = torch.exp(heights.masked_fill(steep[:, None], -torch.inf))
                total += (torch.exp(near - tops[0]) * weights).T @ torch.exp(far - tops[1])
                for anchor in steep.nonzero()[:, 0].tolist():
                    total += torch.exp((near[anchor] + plan.phi[anchor])[:, None] + far[anchor])
        return total.fill_diagonal_(0.0)

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> Received:
        """Products with the pair marginals; those with P²³ go through the anchors."""
        pairs = Pairs(self, 1, plan.f) if axis == 2 else Pairs(self, 0, plan.g)
        masses = (pairs.logs + (plan.g if axis == 2 else plan.f)).add_(plan.phi[:, None]).exp_()
        masses.mul_(weights[:, None] if axis == 0 else weights)
        of_rows = masses.sum(1)
        received = pairs.pull(masses, of_rows, sink)
        if axis == 0:
            return {1: masses.sum(0), 2: received}
        return {0: of_rows, 3 - axis: received}

    def history(self, masses: Masses, plans: Sequence[LogTripletPlan]) -> History:
        """Whole sweeps."""
        return LogSweeps(self, plans)


@dataclass(frozen=True)
class LogSweeps:
    """A history as the plans after each sweep, and before the first."""

    coupling: LogTriplet
    plans: Sequence[LogTripletPlan]

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards (mathematics §4, unrolled).

        An update is minus a log-sum over pairs, whose derivatives are the plan's conditional
        probabilities. Those of φ and f are over the same pairs: their gradients are one.
        """
        sink = self.coupling.sink()
        to_phi, to_f, to_g = (-part for part in cotangents)  # minus the gradients
        nothing = torch.zeros_like(to_phi), torch.zeros_like(to_f)
        for before, plan in reversed(list(pairwise(self.plans))):
            after, late = (to_phi, to_f, to_g), plan.late
            if late is not None:  # the sweep changed nothing
                to_phi, to_f, to_g = (part * ~late for part in after)
            negatives, positives = self.coupling.both(plan.f, before.g)
            phi = plan.phi[:, None]
            # Marginal 3: g = log h − log Σ_i exp(φ + pairs).
            chances = torch.softmax(negatives.logs + phi, 0)
            of_rows = chances @ to_g
            to_f = to_f - negatives.pull(chances.mul_(to_g), of_rows, sink)
            # Marginal 2: f = log b − log Σ_i exp(φ + pairs).
            of_rows = to_phi - of_rows
            chances = torch.softmax(positives.logs + phi, 0)
            to_phi = torch.addmv(of_rows, chances, to_f, alpha=-1)
            # Marginal 1: φ = log a − log Σ_j exp(f + pairs), whose gradient joins that of f: their
            # rows add up to what φ had before.
            first = torch.softmax(positives.logs + before.f, 1)
            weights = chances.mul_(to_f).addcmul_(first, to_phi[:, None])
            to_f = torch.addmv(nothing[1], first.T, to_phi, alpha=-1)
            to_phi, to_g = nothing[0], -positives.pull(weights, of_rows, sink)
            if late is not None:
                to_phi, to_f, to_g = (
                    part + passed * late
                    for part, passed in zip((to_phi, to_f, to_g), after, strict=True)
                )
        return sink.total()
