"""The fast run of log-sigmoid triplets on the CPU: sweeps and adjoint on sums over nodes.

Row sums r⁺_q = Σ_j A_q(x_ij) b_j and r⁻_q = Σ_k B_q(x_ik) h_k have a node axis, Σ_q r⁺_q r⁻_q
stands for r⁺r⁻, and 2^{−m} is what j = k excludes (mathematics §2, §10). The smallest score of a
row is never the larger one of a pair, and nodes that only j = k would need there are left out:
z_i = a b h Σ_q A_q B_q of that entry, next to nothing for one sample opposite to all others, is
excluded instead of 2^{−m} a b h.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
from tricouple.ot import native
from tricouple.ot.quadrature import quantile
from tricouple.ot.rows import Vectors, finite

if TYPE_CHECKING:
    from tricouple.ot.forms import Forces
    from tricouple.ot.log_sigmoid import LogSigmoid

Products = list[tuple[Tensor, Tensor]]
"""Terms of ∂L/∂A_q or ∂L/∂B_q: left (N, Q), right (M,)."""

WORST = 0.1  # share that must be left after a subtraction
LEVELS = {torch.float32: 12, torch.float64: 6}  # factors of a chain: each squaring doubles rounding
# Of each type: log of its smallest number, of what an underflow may lose of a row's mass, and the
# largest change of log b within a run.
_FLOOR = {torch.float32: 86.0, torch.float64: 706.0}
_MARGIN = {torch.float32: 24.0, torch.float64: 60.0}
_CHANGE = {torch.float32: 40.0, torch.float64: 300.0}


class Terms:
    """Products with the factors of all nodes, in one floating-point type, and their gradient."""

    def __init__(self, form: LogSigmoid, dtype: torch.dtype) -> None:
        self.form, self.scores, self.nodes, self.dtype = form, form.scores, form.nodes, dtype
        self.work = torch.empty(0, dtype=dtype, device="cpu")
        self.at, self.has = form.scores.own.clamp(min=0), form.scores.own >= 0
        self.share = form.rule.power * math.log(2)  # −log of what j = k excludes
        rule, eps = form.rule, torch.finfo(dtype).eps
        # A slope weighs the tail beyond by its rate, so it needs more of it than a value.
        alive = quantile(rule.power, max(form.tolerance / 8000, eps / 64), upper=True)
        growth = rule.power * rule.step  # of log A from node to node
        spread = _FLOOR[dtype] - math.exp(alive) - _MARGIN[dtype]
        levels = int(math.log2(max(1.0, form.tolerance / 4 / eps))) + 1
        chains = rule.splits * min(levels, LEVELS[dtype])  # nodes of a block, of B alone
        longest = min(int(spread // growth) + 1, chains)
        self.block = longest if spread >= 0 else 0  # of A
        factors = [math.exp(growth * node) for node in range(self.block)]
        numbers = self.block, alive, *factors
        ends = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        self.table = torch.cat([self.nodes.table, ends])
        # The smallest column that no underflow has changed.
        self.least = 1e5 * math.exp(-_MARGIN[dtype])
        # Digits that squares have, against those that are wanted.
        rounding = eps * 2 ** (-(-min(chains, self.nodes.width) // rule.splits))
        wanted = max(form.tolerance, torch.finfo(self.scores.dtype).eps)
        self.worst = min(WORST, max(1e-10, 10 * rounding / wanted))

    def through(
        self, attract: bool, phi: Tensor, f: Tensor, values: Tensor | None, *anchors: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """A pass over the rows of this process: row sums of a kernel, columns of the other.

        Sums, (N, Q), are those of A_q(x_ij) e^{φ_i + f_j} (attract) or of B_q(x_ij), times values
        (M,), or 1. They are the weights of the columns, (M,), but for what ``anchors`` change:
        partner, base, given, extra (``term_pass`` in c/log_sigmoid.h). Returns the weights,
        Σ_q partner · sums, (N,), and the columns.
        """
        (n, m), width = self.scores.shape, self.nodes.width
        sums, dots, out = f.new_zeros(n, width), f.new_zeros(n), f.new_zeros(m)
        for rows, tile in self.scores.tiles():
            threads = native.threads(tile.numel() * width)
            size = m + -m % (64 // self.dtype.itemsize)
            if self.work.numel() < threads * (7 + width) * size:
                self.work = self.work.new_empty(threads * (7 + width) * size)
            received = f.new_zeros(threads, m)
            own = self.scores.own, self.nodes.counts, self.nodes.lists, self.nodes.tops, phi
            mine = [None if x is None else x[rows] for x in (*anchors, *[None] * 4)[:4]]
            arrays = self.table, tile.to(self.dtype), *(x[rows] for x in own), f, values
            ends = sums[rows], received, mine[0], dots[rows], *mine[1:], self.work
            numbers = len(tile), m, width, int(attract), threads
            native.call("term_pass", self.work, *numbers, *arrays, *ends)
            out += received.sum(0)
        return sums, dots, out

    def excluded(
        self, both: Tensor, phi: Tensor, w0: Tensor | None = None, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What j = k takes, a_i b_j h_j K_ijj w0_i w_j for both = log(b h), of this process's rows.

        Columns of the two largest b h, which most rows may leave out, are added up by themselves,
        so that differences keep digits. Sums of rows, (N,), and of columns, (2, M), z apart; z.
        """
        most = both.topk(min(3, len(both)))
        top, high = most.indices[:2], finite(most.values[-1])
        at, has, lows, both_lows = self.at, self.has, self.nodes.lows, both[self.nodes.lows]
        here = (top != self.scores.own[:, None]) & (top != lows[:, None])
        a = (phi + (high - self.share)).exp_()
        apart = (phi[:, None] + (both[top] - self.share)).masked_fill_(~here, -torch.inf).exp_()
        z = (self.nodes.met + phi).add_(both_lows).exp_()
        u = (both - high).index_fill_(0, top, -torch.inf).exp_()
        if w0 is not None:
            apart, a, z = apart.mul_(w0[:, None]), a.mul_(w0), z.mul_(w0)
        if w is not None:
            apart, u, z = apart.mul_(w[top]), u.mul_(w), z.mul_(w[lows])
        rows = a * (u.sum() - u[lows] - u[at] * has) + apart.sum(1) + z
        none = both.new_zeros(2, len(both))
        none[0].index_add_(0, lows, a, alpha=-1).index_add_(0, at, a * has, alpha=-1)
        none[0].add_(a.sum()).mul_(u).index_add_(0, top, apart.sum(0))
        none[1].index_add_(0, lows, z)
        return rows, none, z

    def lost(
        self, mass: Tensor, total: Tensor, excluded: Tensor, z: Tensor, least: float = 0.0
    ) -> Tensor:
        """How many sums have lost digits.

        2^{−m} is what the nodes give for j = k to the tolerance alone; z is so to rounding. Where
        less than nothing seems to be excluded, no digit is left of it.
        """
        left = total - excluded
        kept = (left >= WORST * (total - z)) & (left >= self.worst * total) & (left < torch.inf)
        kept &= left <= total * (1 + 1e-9)
        return torch.sum((mass > 0) & ~(kept & (left >= least)))

    def solved(
        self, mass: Tensor, old: Tensor, total: Tensor, excluded: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The potential that gives columns their masses, and how many sums have lost digits."""
        outside = excluded.sum(0)
        left = torch.where(mass > 0, total - outside, 1.0)
        return old + mass.log() - left.log(), self.lost(
            mass, total, outside, excluded[1], self.least
        )

    def summed(self, *arrays: Tensor) -> list[Tensor]:
        """Sums over processes, in one message."""
        total = self.scores.shared(torch.cat([array.flatten() for array in arrays]))
        parts = total.split([array.numel() for array in arrays])
        return [part.view_as(array) for part, array in zip(parts, arrays, strict=True)]

    def differentiated(self, terms: Sequence[Products], last: Vectors, lowest: Tensor) -> None:
        """Keep ∂L/∂A_q = Σ_t left_tq right_t e^{φ + f}, φ and f the last, and ∂L/∂B_q.

        Kept are left of A and of B, (N, K, Q), and right, in tiles of a vector of columns.
        """
        self.phi, self.f, self.lowest = finite(last[0]), finite(last[1]), lowest * self.nodes.slopes
        self.left, self.right = [], []
        lanes, m = 64 // self.dtype.itemsize, self.scores.shape[1]
        for uses in terms:
            lefts, rights = zip(*uses, strict=True)
            left, right = torch.stack(lefts, 1), torch.stack(rights)
            size = right.abs().amax(1, keepdim=True).clamp(min=1e-300)
            padded = torch.nn.functional.pad((right / size).to(self.dtype), (0, -m % lanes))
            self.left.append(left.mul_(size))
            self.right.append(padded.unflatten(1, (-1, lanes)).transpose(0, 1).contiguous())

    def add_to(self, form: LogSigmoid, rows: slice, tile: Tensor, into: Tensor) -> None:
        """Some rows of ∂L/∂s."""
        nodes, m = self.nodes, tile.shape[1]
        (left_a, left_b), (right_a, right_b) = self.left, self.right
        ranks = left_a.shape[1], left_b.shape[1]
        threads = native.threads(tile.numel() * nodes.width)
        size = right_a.shape[0] * right_a.shape[2]
        work = right_a.new_empty(threads * (9 * size + 3 * sum(ranks)))
        found = into if into.dtype == self.dtype else torch.zeros_like(into, dtype=self.dtype)
        own = self.scores.own, nodes.counts, nodes.lists, nodes.tops, self.phi
        arrays = [self.table, tile.to(self.dtype), *(x[rows] for x in own), self.f]
        wide = self.f.new_empty(threads, m)
        arrays += [left_a[rows], left_b[rows], right_a, right_b, found, wide, work]
        native.call("term_slopes", work, len(tile), m, nodes.width, *ranks, threads, *arrays)
        low = (self.lowest[rows] * float(form.factor)).to(self.dtype)
        found.scatter_add_(1, nodes.lows[rows, None], low[:, None])
        if found is not into:
            into += found.to(into.dtype)


class TermSweeps:
    """Some sweeps in one type, a segment of a run as ``solver.Sweep`` is."""

    def __init__(self, terms: Terms, masses: Vectors, start: Vectors, later: bool) -> None:
        self.terms, self.masses, self.later = terms, masses, later
        near = terms.through(True, start[0], start[1], None)[0]
        # After each sweep φ, f, g, with e^φ r⁺_q of these, (N, Q), and r⁻_q of g before it.
        self.states: list[Vectors] = [[*start, near, near]]

    @property
    def number(self) -> int:
        """How many sweeps were done."""
        return len(self.states) - 1

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return self.states[-1][:3]

    def go_on(self, most: int, tol: float | None) -> bool:
        """As many sweeps as keep their digits; whether no more are needed."""
        for number in range(most):
            state, needed = self._sweep(tol if self.later or number > 0 else None)
            if state is None:
                return not needed
            self.states.append(state)
        return True

    def _sweep(self, tol: float | None) -> tuple[Vectors | None, bool]:
        """One sweep (§2 with nodes), None if it loses digits or is not needed; if it is needed."""
        terms, (p1, p2, p3) = self.terms, self.masses
        old, b, h, near, _ = self.states[-1]
        taken, outside, z = terms.excluded(b + h, old)
        phi = old.clone()  # marginal 1
        far, total, columns = terms.through(False, phi, b, h.exp(), near, taken, p1)
        error = (total - taken - p1).abs().sum()
        flags = torch.stack([terms.lost(p1, total, taken, z), error])
        columns, excluded, flags = terms.summed(columns, terms.excluded(b + h, phi)[1], flags)
        bad, error = flags.tolist()
        if tol is not None and error <= tol:  # marginal 2 of the plan before
            received = terms.through(False, old, b, h.exp())[2]
            received, outside = terms.summed(received, outside)
            if float((received - outside.sum(0) - p2).abs().sum()) <= tol:
                return None, False
        if bad != 0:
            return None, True
        f, lost = terms.solved(p2, b, columns, excluded)  # marginal 2
        change = torch.where(p2 > 0, f - self.states[0][1], 0.0)
        span = _CHANGE[terms.dtype]
        if float(lost) != 0 or not float(change.amax() - change.amin()) <= span:
            return None, True
        near, _, columns = terms.through(True, phi, f, None)
        columns, excluded = terms.summed(columns * h.exp(), terms.excluded(f + h, phi)[1])
        g, lost = terms.solved(p3, h, columns, excluded)  # marginal 3
        seen = torch.where(p3 > 0, g, g[p3 > 0].mean())
        good = float(lost) == 0 and float(seen.amax() - seen.amin()) <= 2 * span
        good = good and float(seen.abs().amax()) < 600
        return ([phi, f, g, near, far] if good else None), True

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Walk the updates backwards (mathematics §4, unrolled), two passes per sweep.

        Weights are w = −cotangent/p, as in ``solver.Sweep.adjoint``. The update of φ sends through
        the same columns of A as that of g a sweep before, and through those of B as that of f.
        """
        terms, (p1, p2, p3) = self.terms, self.masses
        to_phi, to_f, to_g = cotangents
        lowest = torch.zeros_like(to_phi)
        extra: Tensor | None = None
        of_a: Products = []
        of_b: Products = []
        end_phi, end_f = map(finite, self.potentials[:2])
        for before, state in zip(self.states[-2::-1], self.states[:0:-1], strict=True):
            (phi, f, g, near, far), (phi0, f0, g0, near0, _) = state, before
            rise, a = torch.where(p1 > 0, (phi - phi0).exp(), 0.0), (phi - end_phi).exp()[:, None]
            b = (f - end_f).exp()
            w2 = divide_or_zero(-to_g, p3)
            weighted = g.exp() * w2
            left, dots, columns = terms.through(False, phi, f, weighted, near, None, None, extra)
            rows, excluded, z2 = terms.excluded(f + g, phi, w=w2)
            columns, excluded = terms.summed(columns, excluded)
            to_phi, to_f = to_phi + dots - rows, to_f + columns - excluded.sum(0)
            of_a.append((left * a, b))
            of_b.append((near, weighted))
            w1 = divide_or_zero(-to_f, p2)
            of_a.append((far * a, w1 * b))
            rows, excluded, z1 = terms.excluded(f + g0, phi, w=w1)
            to_phi = to_phi - rows
            ratio = divide_or_zero(rise, p1)
            left, dots, columns = terms.through(True, phi, f, w1, far, to_phi, ratio, near0)
            w0 = divide_or_zero(-(to_phi + dots), p1)
            of_b.append((left, g0.exp()))
            _, last, z0 = terms.excluded(f0 + g0, phi, w0=w0)
            columns, excluded, last = terms.summed(columns, excluded, last)
            to_phi, to_f = torch.zeros_like(to_phi), -last.sum(0)
            to_g = g0.exp() * columns - excluded.sum(0) + to_f
            extra = far * (w0 * rise)[:, None]
            lowest -= z0 + z1 + z2
        assert extra is not None  # a run has sweeps
        of_a.append((extra * (phi0 - end_phi).exp()[:, None], (f0 - end_f).exp()))
        if self.later:  # something depends on the start
            nothing = torch.zeros_like(to_f), None, None, None, extra
            to_f = to_f + terms.scores.shared(terms.through(False, phi0, f0, *nothing)[2])
        terms.differentiated([of_a, of_b], self.potentials, lowest)
        into = forces.matrix()
        if into is None:
            forces.terms.append(terms)
        else:
            for block, tile in terms.scores.tiles():
                terms.add_to(terms.form, block, tile, into[block])
            terms.left.clear()  # as large as a matrix
        return [to_phi, to_f, to_g]
