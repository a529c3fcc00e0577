"""Triplet plans with a hinge for ψ, exactly and by sorting (mathematics §9).

In units of ε the margin of a triplet is t = x_ij − x_ik, x = c·s, and its kernel

    K = e^{δt} · min(1, e^{t − γ}),

γ the margin of the hinge and δ its slope beyond. With the scores of an anchor in ascending order
the negatives that a positive satisfies, t > γ, come first: a sum over negatives is a sum over
those, whose kernel is e^{δt}, and one over the others but the positive itself, whose kernel is
e^{(1+δ)t − γ}. Both are products of a number of j and running sums over k: O(N) an anchor once it
is sorted. All terms are positive, and nothing is ever subtracted. A sum over positives is the same
with the signs of the scores, and so their order, reversed.

Here in logarithms and in PyTorch alone, a few anchors at a time, for any sharpness and any device;
``hinge_native`` is faster where it applies.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import pad

from tricouple.distributed import Shard
from tricouple.memory import CACHED
from tricouple.numeric import Patch, ScoreGradient, on_host, row_blocks, wide_dtype
from tricouple.ot.sweeps.contract import (
    Goal,
    GradientSink,
    History,
    Masses,
    Received,
    Solution,
    log_scaling,
    log_total,
    marginal_of,
)
from tricouple.ot.sweeps.kernels import Similarities
from tricouple.ot.sweeps.triplet_log import LogDomainTriplet, LogTripletPlan, Term
from tricouple.shaping import Hinge

# Matrices of the size of a block that its sums need at once.
_WORKSPACE = 16


class HingeTriplet(LogDomainTriplet):
    """Entropic three-marginal transport with a hinge, by running sums of logarithms.

    Args:
        source: s, shape (N, M).
        factor: c = 1/(τε), so that x = c·s.
        hinge: ψ/ε as a function of t/ε.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        tile_entries: Numbers in a tile of scores.
        shard: Processes, each of which has its own anchors; what is summed over them is sent.
    """

    def __init__(
        self,
        source: Similarities,
        factor: float,
        hinge: Hinge,
        within: bool,
        *,
        tile_entries: int = CACHED,
        shard: Shard | None = None,
    ) -> None:
        self.source, self.factor, self.hinge = source, factor, hinge
        self.within, self.tile_entries, self.shard = within, tile_entries, shard
        self.dtype = wide_dtype(source.like.device)
        self.like = source.like.new_empty(0, dtype=self.dtype)
        # Scores as positives and as negatives see them, where an accelerator has all of them.
        self._kept_rows: SortedRows | None = None
        n = source.shape[0]
        self.anchors = slice(0, n) if shard is None else shard.rows  # this process's

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep: anchors, positives, negatives; vectors alone are kept."""
        log_a, log_b, log_h = (mass.log() for mass in masses.values)
        phi, f, g = (torch.zeros_like(log) for log in (log_a, log_b, log_h))
        before = LogTripletPlan(self, phi, f, g)
        plans, goal = [before], Goal(tol, masses, self.agreed)
        for sweep in range(n_iters):
            row_sums, phi, columns = self.scale_anchors(log_a, f, g)  # marginal 1
            found = partial(marginal_of, before.phi, row_sums), partial(before.marginal, 1)
            if sweep > 0 and goal.reached(*found):
                break
            phi = goal.until(before.phi, phi)
            f = goal.until(f, log_scaling(log_b, columns))  # marginal 2
            g = goal.until(g, log_scaling(log_h, self.negative_sums(phi, f)))  # marginal 3
            before = LogTripletPlan(self, phi, f, g, goal.late)
            plans.append(before)
        potentials = torch.cat([before.phi, before.f, before.g])
        history, sweeps = self.history(masses, plans), goal.sweeps(len(plans) - 1)
        return Solution(self, potentials, lambda: plans[-1], history, sweeps)

    def history(self, masses: Masses, plans: Sequence[LogTripletPlan]) -> History:
        """Whole sweeps, where all anchors are at hand; else updates."""
        return (
            HingeSweeps(self, masses, plans) if self._at_once() else super().history(masses, plans)
        )

    def scale_anchors(self, log_mass: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """``log Σ_jk e^{f+g} K`` of each anchor, the φ that it asks for, ``log Σ_ik e^{φ+g} K``."""
        sums, columns = torch.zeros_like(log_mass), torch.full_like(f, -torch.inf)
        phi = torch.zeros_like(log_mass)
        for block, rows in self._rows():
            pairs = rows.log_sums(g)[0]
            sums[block] = torch.logsumexp(pairs + f, 1)
            phi[block] = log_scaling(log_mass[block], sums[block])
            columns = torch.logaddexp(columns, torch.logsumexp(pairs + phi[block, None], 0))
        sums, phi = self.total(torch.stack([sums, phi]))
        return sums, phi, log_total(columns, self.shard)

    def negative_sums(self, phi: Tensor, f: Tensor) -> Tensor:
        """``log Σ_ij e^{φ+f} K`` of each negative."""
        columns = torch.full_like(f, -torch.inf)
        for block, rows in self._rows(-1):
            pairs = rows.log_sums(f)[0] + phi[block, None]
            columns = torch.logaddexp(columns, torch.logsumexp(pairs, 0))
        return log_total(columns, self.shard)

    def total(self, part: Tensor) -> Tensor:
        """The sum of what each process has, in place; anchors of others are 0 in its vectors."""
        return part if self.shard is None else self.shard.sum_(part)

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        return torch.cat([rows.log_sums(g)[0] for _, rows in self._rows()])

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        return torch.cat([rows.log_sums(f)[0] for _, rows in self._rows(-1)])

    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³, shape (M, M), anchor by anchor."""
        total = self.like.new_zeros(len(plan.f), len(plan.f))
        for anchor, x in enumerate(self.source.widened().matrix() * self.factor):
            logs = self.hinge(x[:, None] - x).neg_().add_(plan.f[:, None]).add_(plan.g)
            masses = logs.add_(plan.phi[anchor]).exp_()
            if self.within:
                masses[anchor], masses[:, anchor] = 0.0, 0.0
            total += masses
        return total.fill_diagonal_(0.0)

    def costs(self, weights: Weights) -> Tensor:
        """``Σ_ijk plus_ij minus_ik ψ(x_ij − x_ik)/ε``."""
        parts = [rows.costs(*weights(block, self.dtype))[0] for block, rows in self._rows()]
        return self.total(sum(parts, self.like.new_zeros(())))

    def with_costs(
        self, gradient: ScoreGradient, weights: Weights, scale: Tensor
    ) -> Iterator[Patch]:
        """A gradient and that of ``scale · costs``: they nearly cancel, so they are added first."""
        for patch in gradient:
            for block, rows in self._rows(1, [patch.rows]):
                force = rows.costs(*weights(block, self.dtype))[1]
                yield Patch(block, patch.values + scale * force)

    def marginal(self, plan: LogTripletPlan, axis: int) -> Tensor:
        """What comes from another axis with all of its mass."""
        other = 1 if axis == 0 else 0
        return self.push(plan, other, torch.ones_like((plan.phi, plan.f)[other]), None)[axis]

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> Received:
        """Products with the pair marginals; the gradient waits until all of it is asked for."""
        pushed = {o: torch.zeros_like(p) for o, p in enumerate((plan.phi, plan.f, plan.g))}
        for block, raised, lowered in self._weighted(plan, axis, weights):
            pushed[0][block] = (raised[0] if axis == 1 else lowered[0]).sum(1)
            pushed[1] += raised[0].sum(0)
            pushed[2] += lowered[0].sum(0)
        del pushed[axis]
        if sink is not None:
            sink.add((plan, axis, weights))
        received = self.total(torch.cat(list(pushed.values())))
        return dict(zip(pushed, received.split([len(p) for p in pushed.values()]), strict=True))

    def forces(self, terms: Sequence[Term]) -> ScoreGradient:
        """``∂/∂x Σ weights · marginal_axis`` of the terms' plans, summed."""
        for block in self._blocks():
            total = self.like.new_zeros(block.stop - block.start, self.source.shape[1])
            for plan, axis, weights in terms:
                for _, raised, lowered in self._weighted(plan, axis, weights, [block]):
                    total += raised[1].add_(raised[0], alpha=self.hinge.slope)
                    total -= lowered[1].add_(lowered[0], alpha=self.hinge.slope)
            yield Patch(block, total)

    def release(self) -> None:
        """Give up what is sorted until it is needed again."""
        self._kept_rows = None

    def _at_once(self) -> bool:
        return not on_host(self.source.like) and self._blocks() == [slice(0, self.source.shape[0])]

    def _weighted(
        self,
        plan: LogTripletPlan,
        axis: int,
        weights: Tensor,
        blocks: Sequence[slice] | None = None,
    ) -> Iterator[tuple[slice, list[Tensor], list[Tensor]]]:
        """P¹² and P¹³ with weights on an axis, and those parts of them that fall with t."""
        for block in self._blocks() if blocks is None else blocks:
            (_, near), (_, far) = (next(self._rows(sign, [block])) for sign in (1, -1))
            phi = plan.phi[block, None]
            raised = near.masses(phi + plan.f, plan.g, weights if axis == 2 else None)
            lowered = far.masses(phi + plan.g, plan.f, weights if axis == 1 else None)
            outer = weights[block, None] if axis == 0 else weights
            for part in (*(raised if axis != 2 else ()), *(lowered if axis != 1 else ())):
                part.mul_(outer)
            yield block, raised, lowered

    def _blocks(self) -> list[slice]:
        return self.blocks(max(1, self.tile_entries // _WORKSPACE))

    def blocks(self, entries: int) -> list[slice]:
        """This process's anchors, some at a time."""
        first, last = self.anchors.start, self.anchors.stop
        blocks = row_blocks(last - first, self.source.shape[1], entries)
        return [slice(first + block.start, first + block.stop) for block in blocks]

    def _rows(
        self, sign: int = 1, blocks: Sequence[slice] | None = None
    ) -> Iterator[tuple[slice, SortedRows]]:
        """Sorted scores of some anchors, as positives (+1) or as negatives (−1) see them."""
        source, m = self.source.widened(), self.source.shape[1]
        if self._at_once():
            yield slice(0, self.source.shape[0]), self.both()[0 if sign > 0 else 1]
            return
        for block in self._blocks() if blocks is None else blocks:
            room = self.like.new_empty(block.stop - block.start, m)
            scores = source.tile(block, room) * (sign * self.factor)
            yield block, SortedRows.of(scores, block.start if self.within else None, self.hinge)

    def both(self) -> SortedRows:
        """All anchors as positives and as negatives see them, one after the other."""
        if self._kept_rows is None:
            scores = self.source.widened().matrix() * self.factor
            first = 0 if self.within else None
            self._kept_rows = SortedRows.of(torch.stack([scores, -scores]), first, self.hinge)
        return self._kept_rows


Weights = Callable[[slice, torch.dtype], tuple[Tensor, Tensor]]
"""Of the pairs of some anchors with positives and with negatives, shape (rows, M) each."""


@dataclass(frozen=True)
class HingeSweeps:
    """A history as the plans after each sweep, and before the first: of whole matrices."""

    coupling: HingeTriplet
    masses: Masses
    plans: Sequence[LogTripletPlan]

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards (mathematics §4, unrolled; §9).

        Pairs of a sweep's plans with weights on one end, or on both, and what of them falls with t,
        come together, shape (2, N, M).
        """
        rows, slope = self.coupling.both(), self.coupling.hinge.slope
        total = torch.zeros_like(rows.x[0])
        to_phi, to_f, to_g = (-part for part in cotangents)  # minus the gradients
        of_a, of_b, of_h = self.masses.inverses
        for before, plan in reversed(list(pairwise(self.plans))):
            after, late = (to_phi, to_f, to_g), plan.late
            if late is not None:  # the sweep changed nothing
                to_phi, to_f, to_g = (part * ~late for part in after)
            logs = rows.log_sums(torch.stack([before.g, plan.f])[:, None])
            positives, negatives = logs.add_(plan.phi[:, None]).unbind(1)
            # Marginal 3: P¹³ with weights on k, and what P¹² gets of them.
            to_g = to_g * of_h
            lowered = (negatives + plan.g).exp_().mul_(to_g)
            raised = self._signed(rows[0], plan.g + _signed_logs(to_g)[:, None], plan.phi, plan.f)
            to_phi, to_f = to_phi - lowered[0].sum(1), (to_f - raised[0].sum(0)) * of_b
            forces = raised.sub_(lowered)
            # Marginals 2 and 1: P¹² with weights on j, and of the plan before on i.
            second, first = (positives + plan.f).exp_().mul_(to_f), (positives + before.f).exp_()
            to_phi = (to_phi - second[0].sum(1)) * of_a
            first.mul_(to_phi[:, None])
            near = plan.f + _signed_logs(to_f)[:, None]
            near = torch.logaddexp(near, before.f + _signed_logs(to_phi)[:, :, None])
            lowered = self._signed(rows[1], near, plan.phi, before.g)
            to_phi, to_f, to_g = torch.zeros_like(to_phi), -first[0].sum(0), -lowered[0].sum(0)
            forces.add_(second).add_(first).sub_(lowered)
            total.add_(forces[1]).add_(forces[0], alpha=slope)
            if late is not None:
                to_phi, to_f, to_g = (
                    part + passed * late
                    for part, passed in zip((to_phi, to_f, to_g), after, strict=True)
                )
        return [Patch(slice(0, len(total)), total)]

    def _signed(self, rows: SortedRows, logs: Tensor, phi: Tensor, own: Tensor) -> Tensor:
        """Masses of pairs, from logarithms of what is positive and negative of their partners."""
        more, less = (rows.log_sums(logs) + own).add_(phi[:, None]).exp_().unbind(1)
        return more - less


def _signed_logs(weights: Tensor) -> Tensor:
    """Logarithms of the positive and of the negative part, shape (2, …)."""
    return torch.stack([weights, -weights]).clamp_min_(0.0).log_()


@dataclass(frozen=True)
class SortedRows:
    """Scores of some anchors in ascending order; of several kinds, with a dimension before."""

    x: Tensor  # the scores, shape (rows, M)
    order: Tensor  # the columns that they came from
    bound: Tensor  # for each score the number of scores that are smaller by more than γ
    own: Tensor | None  # where an anchor meets itself, which is no pair; None across two sets
    hinge: Hinge  # ψ/ε as a function of t/ε

    @classmethod
    def of(cls, scores: Tensor, first: int | None, hinge: Hinge) -> SortedRows:
        """Sort; within one set ``first`` is the sample of the first row."""
        x, order = torch.sort(scores, -1)
        bound = torch.searchsorted(x, x - hinge.margin)
        own = None
        if first is not None:
            samples = torch.arange(first, first + x.shape[-2], device=x.device)
            own = order == samples[:, None]
        return cls(x, order, bound, own, hinge)

    def __getitem__(self, kind: int) -> SortedRows:
        """One of several kinds."""
        own = None if self.own is None else self.own[kind]
        return SortedRows(self.x[kind], self.order[kind], self.bound[kind], own, self.hinge)

    def log_sums(self, logs: Tensor) -> Tensor:
        """``log Σ_{k≠j} K(x_j − x_k) e^{logs_k}`` in the order of columns; what of it falls with t.

        Args:
            logs: Shape (M,), or (…, rows, M), where rows or all may be 1.

        Returns:
            Shape (2, …, rows, M).
        """
        shape = torch.broadcast_shapes(logs.shape, self.x.shape)
        order, bound = self.order.expand(shape), self.bound.expand(shape)
        values = self._without_own(logs.expand(shape).gather(-1, order))
        slope, falls = self.hinge.slope, 1 + self.hinge.slope
        satisfied = torch.logcumsumexp(torch.sub(values, self.x, alpha=slope), -1)
        satisfied = pad(satisfied, (1, 0), value=-torch.inf).gather(-1, bound)
        others = _all_but_own(torch.sub(values, self.x, alpha=falls), bound)
        falling = others.add_(self.x, alpha=falls).sub_(self.hinge.margin)
        total = torch.logaddexp(satisfied.add_(self.x, alpha=slope), falling)
        both = self._without_own(torch.stack([total, falling]))
        return torch.empty_like(both).scatter_(-1, order.expand_as(both), both)

    def masses(self, base: Tensor, logs: Tensor, weights: Tensor | None) -> list[Tensor]:
        """``e^base · Σ_{k≠j} K e^{logs_k} weights_k``, weights of any sign; what falls with t."""
        if weights is None:
            return list((self.log_sums(logs) + base).exp_())
        positive = self.masses(base, logs + weights.clamp_min(0.0).log(), None)
        negative = self.masses(base, logs + weights.neg().clamp_min_(0.0).log(), None)
        return [more.sub_(less) for more, less in zip(positive, negative, strict=True)]

    def costs(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_jk plus_j minus_k ψ(x_j − x_k)`` over all rows, and its gradient."""
        x, margin, slope = self.x, self.hinge.margin, self.hinge.slope
        plus, minus = plus.gather(1, self.order), minus.gather(1, self.order)
        # Σ_{k ≥ r} minus_k and minus_k x_k; Σ_{j < r} plus_j.
        far, moment = (pad(part.flip(1).cumsum(1).flip(1), (0, 1)) for part in (minus, minus * x))
        near = pad(plus.cumsum(1), (1, 0))
        unmet, end = far.gather(1, self.bound), torch.searchsorted(x, x + margin, right=True)
        total = (margin - x) * unmet + moment.gather(1, self.bound)
        total -= slope * (x * far[:, :1] - moment[:, :1])
        gradient = minus * (near.gather(1, end) + slope * near[:, -1:])
        gradient -= plus * (unmet + slope * far[:, :1])
        return (plus * total).sum(), torch.empty_like(x).scatter_(1, self.order, gradient)

    def _without_own(self, logs: Tensor) -> Tensor:
        return logs if self.own is None else logs.masked_fill(self.own, -torch.inf)


def _all_but_own(logs: Tensor, bound: Tensor) -> Tensor:
    """``log Σ_{k ≥ bound_r, k ≠ r} exp(logs_k)`` for every entry r of a row, without cancellation.

    Leaving out an entry that is at most half of its sum is harmless. Those that are more are summed
    afresh. Of two of them, q < r, entry q is not in the sum of r: as r is in that of q, each would
    have to be the larger. So their windows [bound_r, r) are disjoint, and one pass fills them all.
    """
    after = pad(torch.logcumsumexp(logs.flip(-1), -1).flip(-1), (0, 1), value=-torch.inf)
    total = after.gather(-1, bound)
    shares = torch.exp(logs - total.nan_to_num(torch.nan, neginf=0.0))
    rest = shares.clamp_max_(1.0).neg_().log1p_().add_(total)
    heavy = logs > total - math.log(2)
    if on_host(heavy) and not bool(heavy.any()):
        return rest
    m = logs.shape[-1]
    place = torch.arange(m, device=logs.device)
    following = torch.where(heavy, place, m).flip(-1).cummin(-1).values.flip(-1)
    following = pad(following[..., 1:], (0, 1), value=m)  # the next heavy entry
    starts = pad(bound, (0, 1), value=m).gather(-1, following)
    slot = torch.where(starts <= place, following, m)
    top = torch.full_like(after, -torch.inf).scatter_reduce_(-1, slot, logs, "amax")
    top = top.nan_to_num_(torch.nan, neginf=0.0)
    sums = torch.zeros_like(top).scatter_add_(-1, slot, torch.exp(logs - top.gather(-1, slot)))
    window = (sums.log_().add_(top))[..., :m]
    return torch.where(heavy, torch.logaddexp(window, after[..., 1:]), rest)
