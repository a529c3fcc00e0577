"""The fast run of log-sigmoid triplets on the CPU: sweeps and adjoint on sums over nodes.

Row sums r⁺_q = Σ_j A_q(x_ij) b_j and r⁻_q = Σ_k B_q(x_ik) h_k have a node axis, Σ_q r⁺_q r⁻_q
stands for r⁺r⁻, and 2^{−m} is what j = k excludes (mathematics §2, §10). The smallest score of a
row is never the larger one of a pair, and nodes that only j = k would need there are left out:
z_i = a b h Σ_q A_q B_q of that entry, next to nothing for one sample opposite to all others, is
excluded instead of 2^{−m} a b h.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tricouple.ot import native
from tricouple.ot.quadrature import quantile
from tricouple.ot.rows import Vectors, finite

if TYPE_CHECKING:
    from tricouple.ot.forms import Forces
    from tricouple.ot.log_sigmoid import LogSigmoid

WORST = 0.1  # share that must be left after a subtraction
LEVELS = 12  # factors of a chain: each squaring doubles the error of rounding
# Of each type: log of its smallest number, of what an underflow may lose of a row's mass, and the
# largest change of log b within a run.
_FLOOR = {torch.float32: 86.0, torch.float64: 706.0}
_MARGIN = {torch.float32: 24.0, torch.float64: 60.0}
_CHANGE = {torch.float32: 40.0, torch.float64: 300.0}


class Terms:
    """Products with the factors of all nodes, in one floating-point type, and their gradient."""

    def __init__(self, form: LogSigmoid, dtype: torch.dtype) -> None:
        self.form, self.scores, self.nodes, self.dtype = form, form.scores, form.nodes, dtype
        self.met = self.nodes.met.clone().requires_grad_()
        # Terms of ∂L/∂A_q or ∂L/∂B_q: A or not, φ and f, left (N, Q), right (M,).
        self.used: list[tuple[bool, Tensor, Tensor, Tensor, Tensor]] = []
        rule, eps = form.rule, torch.finfo(dtype).eps
        # A slope weighs the tail beyond by its rate, so it needs more of it than a value.
        alive = quantile(rule.power, max(form.tolerance / 8000, eps / 64), upper=True)
        growth = rule.power * rule.step  # of log A from node to node
        spread = _FLOOR[dtype] - math.exp(alive) - _MARGIN[dtype]
        levels = int(math.log2(max(1.0, form.tolerance / 4 / eps))) + 1
        chains = rule.splits * min(levels, LEVELS)  # nodes of a block, of B alone
        longest = min(int(spread // growth) + 1, chains)
        self.block = longest if spread >= 0 else 0  # of A
        factors = [math.exp(growth * node) for node in range(self.block)]
        numbers = chains, self.block, alive, *factors
        ends = torch.tensor(numbers, dtype=torch.float64, device="cpu")
        self.table = torch.cat([self.nodes.table, ends])
        # The smallest column that no underflow has changed.
        self.least = 1e5 * math.exp(-_MARGIN[dtype])
        # Digits that squares have, against those that are wanted.
        rounding = eps * 2 ** (-(-min(chains, self.nodes.width) // rule.splits))
        wanted = max(form.tolerance, torch.finfo(self.scores.dtype).eps)
        self.worst = min(WORST, max(1e-8, 10 * rounding / wanted))

    def times(self, attract: bool, phi: Tensor, f: Tensor, values: Tensor) -> Tensor:
        """``Σ_j K_ijq values_j``, (N, Q), or of values (N, Q) ``Σ_iq values_iq K_ijq``, (M,).

        K is A_q(x_ij) e^{φ_i + f_j} (attract) or B_q(x_ij), of the rows of this process.
        """
        (n, m), nodes, columns = self.scores.shape, self.nodes, values.ndim == 2
        values, out = values.contiguous(), f.new_zeros(m)
        sums, given = (values, None) if columns else (f.new_zeros(n, nodes.width), values)
        for block, tile in self.scores.tiles():
            threads = native.threads(tile.numel() * nodes.width)
            received = f.new_zeros(threads, m)
            work = f.new_empty(threads, 9, m + -m % (64 // self.dtype.itemsize), dtype=self.dtype)
            own = self.scores.own, nodes.counts, nodes.lists, nodes.tops, phi
            arrays = self.table, tile.to(self.dtype), *(x[block] for x in own), f, given
            numbers = len(tile), m, nodes.width, int(attract), threads
            native.call("term_pass", work, *numbers, *arrays, sums[block], received, work)
            out += received.sum(0)
        return out if columns else sums

    def product(self, attract: bool, phi: Tensor, f: Tensor, values: Tensor) -> Tensor:
        """``times``, differentiable by values, and by φ if the columns are multiples of e^φ."""
        how = self, attract, f.detach()
        found: Tensor = _Product.apply(values, phi, *how)  # type: ignore[no-untyped-call]
        return found

    def excluded(self, phi: Tensor, both: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What j = k takes, a_i b_j h_j K_ijj for both = log(b h), of the rows of this process.

        Columns of the two largest b h, which most rows may leave out, are added up by themselves,
        so that differences keep digits. Sums of rows, (N,), and of columns, (2, M), z apart; z.
        """
        own, lows, share = self.scores.own, self.nodes.lows, self.form.rule.power * math.log(2)
        at, has = own.clamp(min=0), own >= 0
        most = both.detach().topk(min(3, len(both)))
        top, high = most.indices[:2], finite(most.values[-1])
        here = (top != own[:, None]) & (top != lows[:, None])
        apart = (phi[:, None] + both[top] - share).masked_fill(~here, -torch.inf).exp()
        u, a = (both.index_fill(0, top, -torch.inf) - high).exp(), (phi + (high - share)).exp()
        z = (self.met + phi + both[lows]).exp()
        rows = apart.sum(1) + a * (u.sum() - u[lows] - u[at] * has) + z
        none = torch.zeros_like(u)
        columns = u * (a.sum() - none.index_add(0, lows, a).index_add(0, at, a * has))
        columns = columns.index_add(0, top, apart.sum(0))
        return rows, torch.stack([columns, none.index_add(0, lows, z)]), z

    def solved(
        self, mass: Tensor, old: Tensor, total: Tensor, excluded: Tensor, z: Tensor, least: float
    ) -> tuple[Tensor, Tensor]:
        """The potential that gives an axis its masses, and how many sums have lost digits.

        2^{−m} is what the nodes give for j = k to the tolerance alone; z is so to rounding. Where
        less than nothing seems to be excluded, no digit is left of it.
        """
        left = total - excluded
        kept = (left >= WORST * (total - z)) & (left >= self.worst * total) & (left < torch.inf)
        kept &= left <= total * (1 + 1e-9)
        lost = ((mass > 0) & ~(kept & (left >= least))).sum()
        return old + mass.log() - torch.where(mass > 0, left, 1.0).log(), lost

    def summed(self, *arrays: Tensor) -> list[Tensor]:
        """Sums over processes, in one message; so are their cotangents."""
        group = self.scores.group
        if group is None:
            return list(arrays)
        joined = torch.cat([array.flatten() for array in arrays])
        total = _Summed.apply(joined, group)  # type: ignore[no-untyped-call]
        parts = total.split([array.numel() for array in arrays])
        return [part.view_as(array) for part, array in zip(parts, arrays, strict=True)]

    def differentiated(self, last: Vectors, to_met: Tensor) -> None:
        """Collect ∂L/∂A_q = Σ_t left_tq right_t e^{φ_t + f_t}, relative to the last, and ∂L/∂B_q.

        Kept are left of A and of B, (N, K, Q), and right, in tiles of two vectors of columns.
        """
        self.phi, self.f, self.lowest = finite(last[0]), finite(last[1]), to_met * self.nodes.slopes
        self.left, self.right = [], []
        lanes, m = 64 // self.dtype.itemsize, self.scores.shape[1]
        for attract in (True, False):
            uses = [use[1:] for use in self.used if use[0] == attract]
            phi, f, lefts, rights = zip(*uses, strict=True)
            left, right = torch.stack(lefts, 1), torch.stack(rights)
            if attract:
                left *= (torch.stack(phi, 1) - self.phi[:, None]).exp()[..., None]
                right *= (torch.stack(f) - self.f).exp()
            size = right.abs().amax(1, keepdim=True).clamp(min=1e-300)
            padded = torch.nn.functional.pad((right / size).to(self.dtype), (0, -m % lanes))
            self.left.append(left.mul_(size))
            self.right.append(padded.unflatten(1, (-1, lanes)).transpose(0, 1).contiguous())
        self.used.clear()

    def add_to(self, form: LogSigmoid, rows: slice, tile: Tensor, into: Tensor) -> None:
        """Some rows of ∂L/∂s."""
        nodes, m = self.nodes, tile.shape[1]
        (left_a, left_b), (right_a, right_b) = self.left, self.right
        ranks = left_a.shape[1], left_b.shape[1]
        threads = native.threads(tile.numel() * nodes.width)
        size = right_a.shape[0] * right_a.shape[2]
        work = right_a.new_empty(threads * (10 * size + 4 * sum(ranks)))
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


class _Product(torch.autograd.Function):
    """Its gradient is the product with the transposed factors, and a term of ∂L/∂A or ∂L/∂B."""

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, phi: Tensor, terms: Terms, attract: bool, f: Tensor
    ) -> Tensor:
        ctx.how = terms, attract, phi.detach(), f, values.detach()
        return terms.times(attract, phi, f, values)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (terms, *how, values), (to,) = ctx.how, gradients
        back = terms.times(*how, to)
        columns = values.ndim == 2
        terms.used.append((*how, *((values, to) if columns else (to, values))))
        return back, (values * back).sum(1) if columns else None, None, None, None


class _Summed(torch.autograd.Function):
    """A sum over processes, of which each has a part of the cotangents."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, group: Any) -> Tensor:
        ctx.group = group
        total: Tensor = group.sum_(values.clone())
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return ctx.group.sum_(gradients[0].clone()), None


class TermSweeps:
    """Some sweeps in one type, a segment of a run as ``solver.Sweep`` is."""

    def __init__(self, terms: Terms, masses: Vectors, start: Vectors, later: bool) -> None:
        self.terms, self.masses, self.later = terms, masses, later
        self.number = 0  # of sweeps
        self.start = [potential.detach().requires_grad_() for potential in start]
        self.state = self.start  # of the last sweep, with e^φ r⁺_q of its φ and f, (N, Q)

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return [potential.detach() for potential in self.state[:3]]

    def go_on(self, most: int, tol: float | None) -> bool:
        """As many sweeps as keep their digits; whether no more are needed."""
        # Checkpoints replace what a graph saves; this graph ends before they could give it back.
        with torch.enable_grad(), saved_tensors_hooks(Tensor.detach, lambda x: x):
            self.state = [*self.start, self._near(*self.start[:2])]
            for number in range(most):
                state, needed = self._sweep(tol if self.later or number > 0 else None)
                if state is None:
                    return not needed
                self.state, self.number = state, self.number + 1
        return True

    def _near(self, phi: Tensor, f: Tensor) -> Tensor:
        """e^φ r⁺_q, (N, Q); its gradient is that by f alone."""
        return self.terms.product(True, phi, f, (f - finite(f.detach())).exp())

    def _sweep(self, tol: float | None) -> tuple[Vectors | None, bool]:
        """One sweep (§2 with nodes), None if it loses digits or is not needed; if it is needed."""
        terms, (p1, p2, p3) = self.terms, self.masses
        (_, f0, g0, near), (old, b, h) = self.state, self.potentials
        far = terms.product(False, old, b, g0.exp())
        total = (near * far).sum(1)
        taken, outside, z = terms.excluded(old, f0 + g0)
        phi, lost = terms.solved(p1, old, total, taken, z, 0.0)  # marginal 1
        flags = torch.stack([lost, (total - taken - p1).detach().abs().sum()])
        columns = terms.product(True, phi, b, far)
        columns, excluded, flags = terms.summed(columns, terms.excluded(phi, b + g0)[1], flags)
        bad, error = flags.detach().tolist()
        if tol is not None and error <= tol:  # marginal 2 of the plan before
            received = terms.times(True, old, b, far.detach())
            received, outside = terms.summed(received, outside.detach())
            if float((received - outside.sum(0) - p2).abs().sum()) <= tol:
                return None, False
        if bad != 0:
            return None, True
        f, lost = terms.solved(p2, b, columns, excluded.sum(0), excluded[1], terms.least)
        change = torch.where(p2 > 0, (f - self.start[1]).detach(), 0.0)
        span = _CHANGE[terms.dtype]
        if float(lost) != 0 or not float(change.amax() - change.amin()) <= span:
            return None, True
        near = self._near(phi, f)
        columns = terms.product(False, phi, f, near) * h.exp()  # marginal 3
        columns, excluded = terms.summed(columns, terms.excluded(phi, f + h)[1])
        g, lost = terms.solved(p3, h, columns, excluded.sum(0), excluded[1], terms.least)
        seen = torch.where(p3 > 0, g, g[p3 > 0].mean()).detach()
        good = float(lost) == 0 and float(seen.amax() - seen.amin()) <= 2 * span
        good = good and float(seen.abs().amax()) < 600
        return ([phi, f, g, near] if good else None), True

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """By autograd (mathematics §4, unrolled), with products for ∂L/∂A_q and ∂L/∂B_q."""
        terms, group = self.terms, self.terms.scores.group
        if group is not None:
            cotangents = [cotangents[0], *(part / group.size for part in cotangents[1:])]
        starts = *self.start, terms.met
        *found, to_met = torch.autograd.grad(
            self.state[:3], starts, cotangents, retain_graph=True, materialize_grads=True
        )
        if group is not None and self.later:
            found[1:] = group.sum_(torch.stack(found[1:]))
        terms.differentiated(self.potentials, to_met)
        into = forces.matrix()
        if into is None:
            forces.terms.append(terms)
        else:
            for rows, tile in terms.scores.tiles():
                terms.add_to(terms.form, rows, tile, into[rows])
            terms.left.clear()  # as large as a matrix
        return list(found)
