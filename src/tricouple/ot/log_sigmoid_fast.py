"""The fast run of log-sigmoid triplets on the CPU: sweeps and adjoint on sums over nodes.

Row sums r⁺_q = Σ_j A_q(x_ij) b_j and r⁻_q = Σ_k B_q(x_ik) h_k have a node axis, Σ_q r⁺_q r⁻_q
stands for r⁺r⁻, and 2^{−m} is what j = k excludes (mathematics §2, §10). The factors of a node are
those of an earlier node, squared, and are used as they are made: nothing of size Q·N·M exists.

The smallest score of a row is never the larger one of a pair, and nodes that only j = k would need
there are left out: z_i = a b h Σ_q A_q B_q of that entry is excluded instead of 2^{−m} a b h. It is
next to nothing for one sample opposite to all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
from tricouple.ot import native
from tricouple.ot.forms import log_scaling
from tricouple.ot.quadrature import quantile
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.log_sigmoid import LogSigmoid
    from tricouple.ot.solver import Forces

WORST = 0.1  # share that must be left after a subtraction
LEVELS = 12  # factors of a chain: each squaring doubles the error of rounding
# Of each type: log of its smallest number, of what an underflow may lose of a row's mass, and the
# largest change of log b within a run.
_FLOOR = {torch.float32: 86.0, torch.float64: 706.0}
_MARGIN = {torch.float32: 24.0, torch.float64: 60.0}
_CHANGE = {torch.float32: 40.0, torch.float64: 300.0}
NEITHER, REPEL, ATTRACT = -1, 0, 1  # which kernel a pass takes sums of: none, B or A


@dataclass
class FastLogSigmoid:
    """Sweeps in float32 as long as they keep their digits, then in float64."""

    form: LogSigmoid

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[TermSweeps | None, bool]:
        """As many sweeps, at most ``most``, as keep their digits; whether no more are needed."""
        found: TermSweeps | None = None
        ended = False
        for dtype in (torch.float32, torch.float64):
            terms = Terms(self.form, dtype)
            if ended or terms.block == 0 or self.form.scores.dtype.itemsize > dtype.itemsize:
                continue
            left = most if found is None else most - found.number
            run = TermSweeps(terms, masses, start, later or found is not None, found)
            ended = run.go_on(left, tol)
            if len(run.states) > 1:
                found, start = run, run.potentials
        return found, ended


class Terms:
    """Passes over the factors of all nodes, in one floating-point type."""

    def __init__(self, form: LogSigmoid, dtype: torch.dtype) -> None:
        self.form, self.scores, self.nodes, self.dtype = form, form.scores, form.nodes, dtype
        rule, eps = form.rule, torch.finfo(dtype).eps
        # A slope weighs the tail beyond by its rate, so it needs more of it than a value.
        alive = quantile(rule.power, max(form.tolerance / 8000, eps / 64), upper=True)
        growth = rule.power * rule.step  # of log A from node to node
        spread = _FLOOR[dtype] - math.exp(alive) - _MARGIN[dtype]
        levels = int(math.log2(max(1.0, form.tolerance / 4 / eps))) + 1
        longest = min(int(spread // growth) + 1, rule.splits * min(levels, LEVELS))
        self.block = longest if spread >= 0 else 0  # nodes of a block
        factors = [math.exp(growth * node) for node in range(self.block)]
        ends = torch.tensor([self.block, alive, *factors], dtype=torch.float64, device="cpu")
        self.table = torch.cat([self.nodes.table, ends])
        # The smallest column that no underflow has changed.
        self.least = 1e5 * math.exp(-_MARGIN[dtype])
        # Digits that squares have, against those that are wanted.
        rounding = eps * 2 ** (-(-self.block // rule.splits))
        wanted = max(form.tolerance, torch.finfo(self.scores.dtype).eps)
        self.worst = min(WORST, max(1e-8, 10 * rounding / wanted))
        self.log_meet = -rule.power * math.log(2)
        self.at = self.scores.own.clamp(min=0)
        self.has = self.scores.own >= 0

    @cached_property
    def empty(self) -> Tensor:
        """Columns that are own or smallest in every row: there 2^{−m} excludes nothing."""
        n, m = self.scores.shape
        count = torch.zeros(m + 1, dtype=torch.float64, device="cpu")
        count[:m] = n - torch.bincount(self.nodes.lows, minlength=m)
        count[:m] -= torch.bincount(self.at, self.has.double(), minlength=m)
        if self.scores.group is not None:
            self.scores.group.sum_(count)
        return count[:m] == 0

    def run(
        self,
        near: int,
        far: int,
        phi: Tensor,
        f: Tensor,
        weights: Tensor | None = None,
        *,
        columns: Tensor | None = None,
        mode: int = 0,
        partner: Tensor | None = None,
        total: Tensor | None = None,
        given: Tensor | None = None,
        extra: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """``term_pass`` of c/log_sigmoid.h: row sums, or the given weights, and column sums.

        Args:
            near: The kernel of the row sums.
            far: The kernel of the column sums.
            phi: φ, (N,); set in mode 1.
            f: (M,).
            weights: (N, Q), in place of row sums.
            columns: Factors of the terms of a row sum, (M,); ones if None.
            mode: 1 to set φ += log(given/total), 2 for a factor given·total of ``extra``.
            partner: (N, Q): total_i += Σ_q partner_iq sums_iq.
            total: (N,).
            given: (N,).
            extra: (N, Q), added to the row sums.

        Returns:
            Shapes (N, Q) and (M,): sums over the rows of this process.
        """
        (n, m), nodes = self.scores.shape, self.nodes
        sums = f.new_zeros(n, nodes.width) if weights is None else weights
        out, size = f.new_zeros(m), m + -m % (128 // self.dtype.itemsize)
        for rows, tile in self.scores.tiles():
            threads = native.threads(tile.numel() * nodes.width)
            received = f.new_zeros(threads, m)
            work = f.new_empty(threads, 7 + nodes.width, size, dtype=self.dtype)
            arrays: list[Tensor | None] = [self.table, tile.to(self.dtype)]
            own = self.scores.own, nodes.counts, nodes.lists, nodes.tops, phi
            arrays += [*(x[rows] for x in own), f, columns]
            arrays += [None if x is None else x[rows] for x in (partner, total, given, extra, sums)]
            numbers = len(tile), m, nodes.width, near, far, mode, threads
            native.call("term_pass", work, *numbers, *arrays, received, work)
            out += received.sum(0)
        return sums, out

    def lowest(self, phi: Tensor, both: Tensor) -> Tensor:
        """z_i = a b h Σ_q A_q B_q of the smallest score, for both = log(b h); shape (N,)."""
        return (self.nodes.met + phi + both[self.nodes.lows]).exp()

    def taken(
        self, phi: Tensor, both: Tensor, z: Tensor, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """What j = k takes from each row, Σ_j a_i b_j h_j K_ijj w_j; and what it is taken from.

        The largest of all b h is kept apart: most rows have it for their smallest score.
        """
        lows, at, most = self.nodes.lows, self.at, int(both.argmax())
        rest = both.clone()
        rest[most] = -torch.inf
        high = rest.amax().clamp(min=-1e300)
        values = (rest - high).exp()
        peak = (phi + both[most] + self.log_meet).exp()
        scale, size = (phi + high + self.log_meet).exp(), values.sum()
        if w is not None:
            values, peak, z = values * w, peak * w[most], z * w[lows]
        sums = values.sum() - values[lows] - torch.where(self.has, values[at], 0.0)
        others = (lows == most) | (self.has & (at == most))
        return scale * sums + torch.where(others, 0.0, peak) + z, scale * size

    def outside(self, phi: Tensor, z: Tensor, w: Tensor | None = None) -> Tensor:
        """Sums for ``excluded``, (3, M), of the rows of this process.

        For each column Σ a_i (times w_i) of the rows where it is smallest, and of those where it is
        own; and Σ z_i of the rows where it is smallest.
        """
        a = phi.exp() if w is None else phi.exp() * w
        sums = a.new_zeros(3, self.scores.shape[1])
        sums[0].index_add_(0, self.nodes.lows, a)
        sums[1].index_add_(0, self.at, torch.where(self.has, a, 0.0))
        sums[2].index_add_(0, self.nodes.lows, z)
        return sums

    def excluded(self, sums: Tensor, both: Tensor) -> Tensor:
        """What j = k takes from each column, Σ_i a_i b_j h_j K_ijj; from sums over processes."""
        mine, own, z = sums.unbind()
        most = mine.abs().argmax()
        rest = mine.clone()
        rest[most] = 0.0
        others = mine.sum() - mine
        others[most] = rest.sum()
        others = torch.where(self.empty, 0.0, others - own)
        return others * (both + self.log_meet).clamp(max=700.0).exp() + z

    def summed(self, *arrays: Tensor) -> list[Tensor]:
        """Sums over processes, in one message."""
        if self.scores.group is None:
            return list(arrays)
        joined = self.scores.group.sum_(torch.cat([array.flatten() for array in arrays]))
        parts = joined.split([array.numel() for array in arrays])
        return [part.view_as(array) for part, array in zip(parts, arrays, strict=True)]

    def lost(self, mass: Tensor, left: Tensor, total: Tensor, largest: Tensor, z: Tensor) -> Tensor:
        """In how many sums too little is left after the subtraction, or no number.

        2^{−m} is what the nodes give for j = k to the tolerance alone; z is so to rounding.
        """
        kept = (left >= WORST * (total - z)) & (left >= self.worst * total)
        kept &= (left >= 1e-3 * largest) & (left < torch.inf)
        number: Tensor = ((mass > 0) & ~kept).sum().double()
        return number

    def columns(
        self, mass: Tensor, old: Tensor, both: Tensor, found: Tensor, sums: Tensor
    ) -> tuple[Tensor, bool]:
        """The potential that gives the columns their masses (marginals 2, 3); if it has digits."""
        left = found - self.excluded(sums, both)
        most = torch.where(self.empty, 0.0, sums[0].sum() * (both + self.log_meet).exp())
        lost = self.lost(mass, left, found, most, sums[2])
        lost += ((mass > 0) & ~(left >= self.least)).sum()
        return log_scaling(mass.log(), left.log() - old), float(lost) == 0


class _State(NamedTuple):
    """A sweep that was done: what its adjoint needs."""

    phi: Tensor
    f: Tensor
    g: Tensor
    near: Tensor  # e^φ r⁺_q, of φ and f of this sweep, (N, Q)
    far: Tensor  # r⁻_q of the g before, (N, Q); of the start: not used


class TermSweeps:
    """Some sweeps in one type, and those before them in another: a segment (``solver.Sweep``)."""

    def __init__(
        self,
        terms: Terms,
        masses: Vectors,
        start: Vectors,
        later: bool,
        before: TermSweeps | None,
    ) -> None:
        self.terms, self.masses, self.later, self.before = terms, masses, later, before
        phi, f, g = start
        near, _ = terms.run(ATTRACT, NEITHER, phi, f)
        self.states = [_State(phi, f, g, near, near)]  # the start, then one per sweep

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return list(self.states[-1][:3])

    @property
    def number(self) -> int:
        """How many sweeps they are."""
        return len(self.states) - 1 + (0 if self.before is None else self.before.number)

    def go_on(self, most: int, tol: float | None) -> bool:
        """As many sweeps as keep their digits; whether no more are needed."""
        for number in range(most):
            state, needed = self._sweep(tol if self.later or number > 0 else None)
            if state is None:
                return not needed
            self.states.append(state)
        return True

    def _sweep(self, tol: float | None) -> tuple[_State | None, bool]:
        """One sweep (§2 with nodes), None if it loses digits or is not needed; if it is needed."""
        terms, (p1, p2, p3) = self.terms, self.masses
        old, f0, g0, before, _ = self.states[-1]
        phi, both = old.clone(), f0 + g0
        z = terms.lowest(old, both)
        taken, largest = terms.taken(old, both, z)
        total = -taken
        far, columns = terms.run(  # marginals 1, 2
            REPEL, ATTRACT, phi, f0, columns=g0.exp(), mode=1, partner=before, total=total, given=p1
        )
        lost = terms.lost(p1, total, total + taken, largest, z)
        flags = torch.stack([lost, (total - p1).abs().sum()])
        sums = terms.outside(phi, terms.lowest(phi, both))
        columns, sums, flags = terms.summed(columns, sums, flags)
        if tol is not None and float(flags[1]) <= tol:  # marginal 2 of the plan before
            _, received = terms.run(NEITHER, ATTRACT, old, f0, far)
            received, outside = terms.summed(received, terms.outside(old, z))
            if float((received - terms.excluded(outside, both) - p2).abs().sum()) <= tol:
                return None, False
        if float(flags[0]) > 0 or not math.isfinite(float(flags[0])):
            return None, True
        f, good = terms.columns(p2, f0, both, columns, sums)
        change = torch.where(p2 > 0, f - self.states[0].f, 0.0)
        span, both = _CHANGE[terms.dtype], f + g0
        if not (good and float(change.amax() - change.amin()) <= span):
            return None, True
        near, columns = terms.run(ATTRACT, REPEL, phi, f)  # marginal 3
        lows = terms.outside(phi, terms.lowest(phi, both))[2]
        columns, sums[2] = terms.summed(columns, lows)
        g, good = terms.columns(p3, g0, both, columns * g0.exp(), sums)
        seen = torch.where(p3 > 0, g, g[p3 > 0].mean())
        good = good and float(seen.amax() - seen.amin()) <= 2 * span
        good = good and float(seen.abs().amax()) < 600
        return (_State(phi, f, g, near, far) if good else None), True

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Walk the updates backwards (mathematics §4, unrolled); factors of ∂L/∂A_q and ∂L/∂B_q."""
        terms, (p1, p2, p3), nodes = self.terms, self.masses, self.terms.nodes
        to_phi, to_f, to_g = cotangents
        factors = Factors(terms, *self.potentials[:2])
        extra: Tensor | None = None  # ∂L/∂r⁺_q e^{−φ}, from the sweep after
        for before, state in zip(self.states[-2::-1], self.states[:0:-1], strict=True):
            phi, f, g, near, far = state
            # Marginal 3 set g: through P¹³ to φ and through P²³ to f.
            w3, both = -divide_or_zero(to_g, p3), f + g
            z3, slope, right = terms.lowest(phi, both), torch.zeros_like(phi), g.exp() * w3
            moved, received = terms.run(
                REPEL, ATTRACT, phi, f, columns=right, partner=near, total=slope, extra=extra
            )
            to_phi = to_phi + slope - terms.taken(phi, both, z3, w3)[0]
            received, sums = terms.summed(received, terms.outside(phi, z3))
            to_f = to_f + received - w3 * terms.excluded(sums, both)
            factors.repel(near, right)
            factors.attract(moved, phi, f)
            # Marginal 2 set f, marginal 1 set φ: through P¹² and P²³ to g₀.
            f0, g0, w2 = before.f, before.g, -divide_or_zero(to_f, p2)
            both, both0 = f + g0, f0 + g0
            z1, z2 = terms.lowest(phi, both0), terms.lowest(phi, both)
            total = to_phi - terms.taken(phi, both, z2, w2)[0]
            shift = torch.where(p1 > 0, phi - before.phi, -torch.inf).exp()
            moved, received = terms.run(
                ATTRACT,
                REPEL,
                phi,
                f,
                columns=w2,
                mode=2,
                partner=far,
                total=total,
                given=-divide_or_zero(shift, p1),
                extra=before.near,
            )
            w1 = -divide_or_zero(total, p1)
            sums1, sums = terms.outside(phi, z1 * w1, w1), terms.outside(phi, z2)
            received, sums1, sums = terms.summed(received, sums1, sums)
            lost = terms.excluded(sums1, both0)
            to_g = g0.exp() * received - w2 * terms.excluded(sums, both) - lost
            to_f, to_phi = -lost, torch.zeros_like(phi)
            factors.attract(far, phi, f, w2)
            factors.repel(moved, g0.exp())
            extra = far * (w1 * shift)[:, None]
            lows = nodes.lows
            factors.lowest -= nodes.slopes * (w1 * z1 + w2[lows] * z2 + w3[lows] * z3)
        first = self.states[0]
        assert extra is not None
        factors.attract(extra, first.phi, first.f)
        if self.later:
            _, received = terms.run(NEITHER, ATTRACT, first.phi, first.f, extra)
            to_f = to_f + terms.summed(received)[0]
        factors.finish(forces)
        found = [to_phi, to_f, to_g]
        return found if self.before is None else self.before.adjoint(found, forces)


class Factors:
    """∂L/∂A_q = Σ_t left_tq right_t e^{φ_t + f_t}, relative to the last φ and f, and ∂L/∂B_q."""

    def __init__(self, terms: Terms, phi: Tensor, f: Tensor) -> None:
        self.terms = terms
        self.phi, self.f = (torch.where(x > -torch.inf, x, 0.0) for x in (phi, f))
        self.lowest = torch.zeros_like(phi)  # ∂L/∂x of the smallest scores, beyond the factors
        self.lefts: list[list[Tensor]] = [[], []]  # of A and of B: (N, Q)
        self.rights: list[list[Tensor]] = [[], []]  # (M,)

    def attract(self, left: Tensor, phi: Tensor, f: Tensor, w: Tensor | None = None) -> None:
        """A term of A."""
        right = (f - self.f).exp() if w is None else (f - self.f).exp() * w
        self._add(0, left * (phi - self.phi).exp()[:, None], right)

    def repel(self, left: Tensor, right: Tensor) -> None:
        """A term of B."""
        self._add(1, left, right)

    def _add(self, which: int, left: Tensor, right: Tensor) -> None:
        """The right vector is scaled to its largest entry."""
        size = right.abs().amax().clamp(min=1e-300)
        self.lefts[which].append(left * size)
        self.rights[which].append(right / size)

    def finish(self, forces: Forces) -> None:
        """Add to the matrix of forces, or stay with the form until its tiles are asked for."""
        into, terms = forces.matrix(), self.terms
        lanes, m = 128 // terms.dtype.itemsize, terms.scores.shape[1]
        self.left = [torch.stack(parts, 1) for parts in self.lefts]
        self.right = []
        for parts in self.rights:  # for every two vectors of columns all right vectors
            padded = torch.nn.functional.pad(torch.stack(parts).to(terms.dtype), (0, -m % lanes))
            self.right.append(padded.unflatten(1, (-1, lanes)).transpose(0, 1).contiguous())
        self.lefts[0].clear()
        self.lefts[1].clear()
        if into is None:
            terms.form.kept.append(self)
            return
        for rows, tile in terms.scores.tiles():
            self.add_to(rows, tile, into[rows])

    def add_to(self, rows: slice, tile: Tensor, into: Tensor) -> None:
        """Some rows of ∂L/∂s."""
        terms, nodes, m = self.terms, self.terms.nodes, tile.shape[1]
        (left_a, left_b), (right_a, right_b) = self.left, self.right
        ranks = left_a.shape[1], left_b.shape[1]
        threads = native.threads(tile.numel() * nodes.width)
        size = right_a.shape[0] * right_a.shape[2]
        work = right_a.new_empty(threads * (8 * size + 4 * sum(ranks)))
        found = into if into.dtype == terms.dtype else torch.zeros_like(into, dtype=terms.dtype)
        own = terms.scores.own, nodes.counts, nodes.lists, nodes.tops, self.phi
        arrays = [terms.table, tile.to(terms.dtype), *(x[rows] for x in own), self.f]
        wide = self.f.new_empty(threads, m)
        arrays += [left_a[rows], left_b[rows], right_a, right_b, found, wide, work]
        native.call("term_slopes", work, len(tile), m, nodes.width, *ranks, threads, *arrays)
        low = (self.lowest[rows] * float(terms.form.factor)).to(terms.dtype)
        found.scatter_add_(1, nodes.lows[rows, None], low[:, None])
        if found is not into:
            into += found.to(into.dtype)
