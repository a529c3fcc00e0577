"""Plans with linear ψ by logarithms, a tile at a time: right for any sharpness.

The last rung of the ladder, of pairs and of triplets, stored and streamed; an accelerator with room
for whole matrices does without (``MatrixPair``, ``triplet_log``). Sweeps, plans and their adjoints
are sums that ``log_tiles`` knows how to take; nothing here has more than N numbers.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import Storage
from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import (
    Coupling,
    Goal,
    GradientSink,
    Masses,
    Plan,
    Received,
    Solution,
    Stage,
    Stages,
    finite,
    log_scaling,
)
from tricouple.ot.sweeps.kernels import Products, Similarities
from tricouple.ot.sweeps.log_tiles import Apart, LogTiles, Side, Term, Weights


def tiles_of(
    source: Similarities,
    digits: torch.dtype | None,
    *,
    within: bool,
    storage: Storage,
    shard: Shard | None,
) -> LogTiles:
    """Sums in Triton, where CUDA streams float32 and nobody is against it; else in tiles."""
    if (
        _on_cuda(source.like)
        and storage.streamed
        and shard is None
        and digits == torch.float32
        and isinstance(source, Products)
        and os.environ.get("TRICOUPLE_TRITON") != "0"
        and importlib.util.find_spec("triton")
    ):
        from tricouple.ot.sweeps import triton_sums

        if triton_sums.is_right():
            return triton_sums.TritonTiles(source, within=within, storage=storage)
    return LogTiles(source, within=within, storage=storage, shard=shard)


def _on_cuda(like: Tensor) -> bool:
    return like.device.type == "cuda" and torch.version.hip is None


class _LogCoupling(Coupling):
    """Kernels ``exp(±factor·s)``, known by their logarithms (``LogTiles``).

    The digits are those of the batch, if the similarities have more.
    """

    def __init__(
        self,
        source: Similarities,
        factor: float,
        *,
        within: bool,
        storage: Storage,
        shard: Shard | None = None,
        digits: torch.dtype | None = None,
    ) -> None:
        self.factor, self.within, self.shard = factor, within, shard
        self.tiles = tiles_of(source, digits, within=within, storage=storage, shard=shard)
        self.dtype = self.tiles.like.dtype

    def forces(self, terms: Sequence[Term]) -> ScoreGradient:
        """One pass over the tiles for all of them."""
        return self.tiles.gradient(terms)

    def release(self) -> None:
        """Give up the similarities until they are needed again."""
        self.tiles.release()

    def _solution(
        self,
        masses: Masses,
        potentials: Sequence[Tensor],
        stages: Sequence[Stage],
        last: Plan,
        goal: Goal,
    ) -> Solution:
        history = Stages(self, masses, stages)
        sweeps = goal.sweeps(len(stages) // len(potentials))
        return Solution(self, torch.cat(list(potentials)), lambda: last, history, sweeps)


class LogPair(_LogCoupling):
    """Entropic transport with kernel ``exp(factor·s)`` (mathematics §5)."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: rows, then columns."""
        log_rows, log_columns = (mass.log() for mass in masses.values)
        f, g = torch.zeros_like(log_rows), torch.zeros_like(log_columns)
        stages: list[Stage] = []
        goal = Goal(tol, masses, self.agreed)
        for sweep in range(n_iters):
            sums = self.tiles.rows(self.factor, g).total
            if sweep > 0 and goal.reached(partial(torch.exp, f + sums)):
                break
            f = goal.until(f, log_scaling(log_rows, sums))
            stages.append(Stage(0, LogPairPlan(self, f, g), goal.late))
            received = self.tiles.columns(Side(self.factor, f, g))
            g = goal.until(g, log_scaling(log_columns, received))
            stages.append(Stage(1, LogPairPlan(self, f, g), goal.late))
        return self._solution(masses, (f, g), stages, LogPairPlan(self, f, g), goal)


@dataclass(frozen=True)
class LogPairPlan:
    """``P_ij = exp(factor·s_ij + f_i + g_j)``."""

    coupling: LogPair
    f: Tensor
    g: Tensor

    def marginal(self, axis: int) -> Tensor:
        """Row or column sums."""
        tiles, factor = self.coupling.tiles, self.coupling.factor
        if axis == 0:
            return torch.exp(tiles.rows(factor, self.g).total + self.f)
        return torch.exp(tiles.columns(Side(factor, self.f, self.g)) + self.g)

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """``Pᵀ weights`` for axis 0, ``P weights`` for axis 1."""
        times = Weights(left=weights) if axis == 0 else Weights(right=weights)
        term = Term(1.0, Side(self.coupling.factor, self.f, self.g), times)
        if sink is not None:
            sink.add(term)
        return {1 - axis: self.coupling.tiles.sums(term)[1 - axis]}


class LogLinearTriplet(_LogCoupling):
    """Entropic three-marginal transport with linear ψ: kernels ``exp(±factor·s)``."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution:
        """Sweep: anchors, positives, negatives (mathematics §2)."""
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        stages: list[Stage] = []
        goal = Goal(tol, masses, self.agreed)
        plan = LogLinearPlan(self, phi, f, g, *self.tiles.both_rows(self.factor, f, g))
        for sweep in range(n_iters):
            sums = plan.log_sums()
            found = partial(torch.exp, plan.phi + sums), partial(plan.marginal, 1)
            if sweep > 0 and goal.reached(*found):
                break
            # Marginals 1, 2 and 3 of mathematics §2, each set in turn.
            plan = replace(plan, phi=goal.until(plan.phi, log_scaling(log_a, sums)))
            stages.append(Stage(0, plan, goal.late))
            f = goal.until(plan.f, log_scaling(log_b, self.tiles.columns(plan.attract)))
            plan = replace(plan, f=f, plus=self.tiles.rows(self.factor, f))
            stages.append(Stage(1, plan, goal.late))
            g = goal.until(plan.g, log_scaling(log_h, self.tiles.columns(plan.repel)))
            plan = replace(plan, g=g, minus=self.tiles.rows(-self.factor, g))
            stages.append(Stage(2, plan, goal.late))
        return self._solution(masses, (plan.phi, plan.f, plan.g), stages, plan, goal)


@dataclass(frozen=True)
class LogLinearPlan:
    """The plan at log-scalings φ (anchors), f (positives) and g (negatives)."""

    coupling: LogLinearTriplet  # the coupling
    phi: Tensor  # φ, shape (N,)
    f: Tensor  # shape (M,)
    g: Tensor  # shape (M,)
    plus: Apart  # r⁺ = E⁺ b
    minus: Apart  # r⁻ = E⁻ h

    @cached_property
    def attract(self) -> Side:
        """P¹²_ij = a_i b_j E⁺_ij Σ_{k≠j} E⁻_ik h_k."""
        factor = self.coupling.factor
        return Side(factor, self.phi, self.f, self.minus, self.g, self.plus.index)

    @cached_property
    def repel(self) -> Side:
        """P¹³_ik = a_i h_k E⁻_ik Σ_{j≠k} E⁺_ij b_j."""
        factor = -self.coupling.factor
        return Side(factor, self.phi, self.g, self.plus, self.f, self.minus.index)

    def log_sums(self) -> Tensor:
        """``log Σ_{j≠k} E⁺_ij b_j E⁻_ik h_k`` of every anchor, the bracket of marginal 1.

        With k* the largest term of r⁻: ``(r⁺ − E⁺_ik* b_k*) r⁻ − Σ_{j≠k*} b_j h_j``, which loses
        at most half, plus ``E⁺_ik* b_k*`` times the rest of r⁻.
        """
        plus, minus, both = self.plus, self.minus, self.f + self.g
        # E⁺ E⁻ = 1: the scores are known where r⁻ has its largest term.
        near = torch.where(minus.top > -torch.inf, both[minus.index] - minus.top, -torch.inf)
        others = torch.where(plus.index == minus.index, plus.rest, _less(plus.total, near))
        all_pairs = others + minus.total
        taken = _all_but_two(both, minus.index, within=self.coupling.within)
        return torch.logaddexp(_less(all_pairs, taken), near + minus.rest)

    def marginal(self, axis: int) -> Tensor:
        """Marginals 1, 2 and 3 of mathematics §2."""
        if axis == 0:
            return torch.exp(self.phi + self.log_sums())
        own, side = (self.f, self.attract) if axis == 1 else (self.g, self.repel)
        return torch.exp(own + self.coupling.tiles.columns(side))

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """Products with P¹², P¹³, P²³; those with P²³ go through the anchors, as means."""
        tiles, factor = self.coupling.tiles, self.coupling.factor
        if axis == 0:
            attract = repel = Weights(left=weights, apart=weights, row=weights)
        else:
            own = Weights(right=weights, column=weights)
            sums = self.plus if axis == 1 else self.minus
            sign, v = (1, self.f) if axis == 1 else (-1, self.g)
            rest = tiles.means(sign * factor, v, sums, weights)
            other = Weights(left=sums.mean(weights, rest), apart=rest, column=weights)
            attract, repel = (own, other) if axis == 1 else (other, own)
        near, far = Term(1.0, self.attract, attract), Term(-1.0, self.repel, repel)
        if sink is not None:
            sink.add(near)
            sink.add(far)
        pushed: Received = {}
        if axis == 0:
            (_, pushed[1]), (_, pushed[2]) = tiles.both_sums(near, far)
        else:
            pushed[0], pushed[3 - axis] = tiles.sums(far if axis == 1 else near)
        return pushed


def _less(logs: Tensor, part: Tensor) -> Tensor:
    """``log(e^logs − e^part)`` for a part of at most about a half."""
    return torch.where(part > -torch.inf, logs + torch.log1p(-torch.exp(part - logs)), logs)


def _all_but_two(logs: Tensor, index: Tensor, *, within: bool) -> Tensor:
    """``log Σ_j exp(logs_j)`` for every anchor, without its index and, within one set, itself.

    One of the three largest is always among the others: leaving out smaller ones loses nothing.
    """
    tops, places = logs.topk(min(3, len(logs)))
    lowest = finite(tops[-1])
    small = torch.exp(logs - lowest).index_fill(0, places, 0.0)
    left = small.sum() - small[index]
    gone = index[:, None] == places
    if within:
        left = left - small
        gone = gone | (torch.arange(len(logs), device=logs.device)[:, None] == places)
    large = torch.logsumexp(tops.masked_fill(gone, -torch.inf), 1)
    return torch.logaddexp(large, lowest + left.clamp_min(0.0).log())
