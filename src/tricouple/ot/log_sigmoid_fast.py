"""The fast run of log-sigmoid triplets on the CPU: sweeps and adjoint on sums over nodes.

Row sums r⁺_q = Σ_j A_q(x_ij) b_j and r⁻_q = Σ_k B_q(x_ik) h_k have a node axis, Σ_q r⁺_q r⁻_q
stands for r⁺r⁻, and 2^{−m} is what j = k excludes (mathematics §2, §10).

The smallest score of a row is never the larger one of a pair, and nodes that only j = k would need
there are left out: z_i = a b h Σ_q A_q B_q of that entry is excluded instead of 2^{−m} a b h. It is
next to nothing for one sample opposite to all others.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
from tricouple.ot import native
from tricouple.ot.forms import log_scaling
from tricouple.ot.log_sigmoid_terms import (
    ATTRACT,
    CHANGE,
    NEITHER,
    REPEL,
    WORST,
    Between,
    Terms,
)
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.log_sigmoid import LogSigmoid
    from tricouple.ot.solver import Forces


@dataclass
class FastLogSigmoid:
    """Sweeps in the scores' own digits; one that would lose too many is done in float64."""

    form: LogSigmoid

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[Segments | None, bool]:
        """As many sweeps, at most ``most``, as keep their digits."""
        kinds = [torch.float32, torch.float64]
        if self.form.scores.dtype == torch.float64:
            kinds = kinds[1:]
        kernels = [Terms(self.form, dtype) for dtype in kinds]
        kernels = [kernel for kernel in kernels if kernel.block > 0]
        found, done, ended = Segments([]), 0, False
        while done < most and kernels and not ended:
            some, ended = sweeps(kernels[0], masses, start, most - done, tol, later or done > 0)
            if some is None and not ended:
                del kernels[0]  # from here on in float64
                continue
            wide = None
            if some is not None:
                found.parts.append(some)
                start, done = some.potentials, done + some.number
            if not ended and len(kernels) > 1:
                wide, ended = sweeps(kernels[1], masses, start, 1, tol, True)
            if wide is not None:
                found.parts.append(wide)
                start, done, ended = wide.potentials, done + wide.number, False
            elif not ended:
                break
        return (found if found.parts else None), ended or done == most


@dataclass
class Segments:
    """Sweeps in several types, one after the other."""

    parts: list[TermSweeps]

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return self.parts[-1].potentials

    @property
    def number(self) -> int:
        """How many sweeps they are."""
        return sum(part.number for part in self.parts)

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Their adjoints, the last first."""
        for part in reversed(self.parts):
            cotangents = part.adjoint(cotangents, forces)
        return cotangents


@dataclass
class _State:
    """A sweep that was done: what its adjoint needs."""

    phi: Tensor
    f: Tensor
    g: Tensor
    near: Tensor  # e^φ r⁺_q, of φ and f of this sweep, (N, Q)
    far: Tensor | None  # r⁻_q of the g before, (N, Q)


def sweeps(
    terms: Terms, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
) -> tuple[TermSweeps | None, bool]:
    """As many sweeps as keep their digits; and whether no more are needed."""
    phi, f, g = start
    near = terms.by_node()
    terms.run(ATTRACT, NEITHER, phi, f, near)
    states, ended = [_State(phi, f, g, near, None)], True
    for number in range(most):
        watched = tol if later or number > 0 else None
        state, kept, done = _sweep(terms, masses, states, watched)
        if done:
            break
        if not kept:
            ended = False
            break
        states.append(state)
    if len(states) == 1:
        return None, ended
    return TermSweeps(terms, masses, states, later), ended


def _sweep(
    terms: Terms, masses: Vectors, states: list[_State], tol: float | None
) -> tuple[_State, bool, bool]:
    """One sweep (§2 with nodes); whether it kept its digits, and whether it was not needed."""
    before, (p1, p2, p3) = states[-1], masses
    f0, g0 = before.f, before.g
    phi, both, far = before.phi.clone(), f0 + g0, terms.by_node()
    z = terms.lowest(phi, both)
    taken, largest = terms.taken(phi, both, z)
    total = -taken
    ends = Between(1, before.near, total, p1)
    columns = terms.run(REPEL, ATTRACT, phi, f0, far, g0.exp(), ends)  # marginals 1, 2
    lost = _lost(p1, total, total + taken, largest, z, terms.worst)
    z = terms.lowest(phi, both)
    flags = torch.stack([lost, (total - p1).abs().sum()])
    mine, own = terms.outside(phi)
    columns, mine, own, zs, flags = terms.summed(columns, mine, own, terms.at_lows(z), flags)
    state = _State(phi, f0, g0, before.near, far)
    if tol is not None and float(flags[1]) <= tol:  # marginal 2 of the plan before, with its own a
        received = terms.run(NEITHER, ATTRACT, before.phi, f0, far)
        z = terms.lowest(before.phi, both)
        parts = received, *terms.outside(before.phi), terms.at_lows(z)
        received, old, at, zs_old = terms.summed(*parts)
        off = (received - terms.excluded(old, at, both, zs_old) - p2).abs().sum()
        if float(off) <= tol:
            return state, True, True
    if float(flags[0]) > 0 or not math.isfinite(float(flags[0])):
        return state, False, False
    f, good = _columns(terms, p2, f0, both, columns, (mine, own, zs))
    change = torch.where(p2 > 0, f - states[0].f, 0.0)
    span = CHANGE[terms.dtype]
    if not (good and float(change.amax() - change.amin()) <= span):
        return state, False, False
    near, both = terms.by_node(), f + g0
    columns = terms.run(ATTRACT, REPEL, phi, f, near)  # marginal 3
    columns, zs = terms.summed(columns, terms.at_lows(terms.lowest(phi, both)))
    g, good = _columns(terms, p3, g0, both, columns * g0.exp(), (mine, own, zs))
    seen = torch.where(p3 > 0, g, g[p3 > 0].mean())
    good = good and float(seen.amax() - seen.amin()) <= 2 * span and float(seen.abs().amax()) < 600
    return _State(phi, f, g, near, far), good, False


def _lost(
    mass: Tensor, left: Tensor, total: Tensor, largest: Tensor, z: Tensor, worst: float
) -> Tensor:
    """In how many sums too little is left after the subtraction, or no number.

    2^{−m} is what the nodes give for j = k to the tolerance alone; z is so to rounding.
    """
    kept = (left >= WORST * (total - z)) & (left >= worst * total) & (left >= 1e-3 * largest)
    return ((mass > 0) & ~(kept & (left < torch.inf))).sum().double()


def _columns(
    terms: Terms, mass: Tensor, old: Tensor, both: Tensor, found: Tensor, sums: tuple[Tensor, ...]
) -> tuple[Tensor, bool]:
    """The potential that gives the columns their masses: marginals 2 and 3."""
    mine, own, z = sums
    left = found - terms.excluded(mine, own, both, z)
    largest = torch.where(terms.empty, 0.0, mine.sum() * (both + terms.log_meet).exp())
    lost = (
        _lost(mass, left, found, largest, z, terms.worst)
        + ((mass > 0) & ~(left >= terms.least)).sum()
    )
    return log_scaling(mass.log(), left.log() - old), float(lost) == 0


@dataclass
class TermSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    terms: Terms
    masses: Vectors
    states: list[_State]  # the start, then one per sweep
    later: bool  # whether there were others before

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        last = self.states[-1]
        return [last.phi, last.f, last.g]

    @property
    def number(self) -> int:
        """How many sweeps they are."""
        return len(self.states) - 1

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """Walk the updates backwards (mathematics §4, unrolled); factors of ∂L/∂A_q and ∂L/∂B_q."""
        terms, (p1, p2, p3), nodes = self.terms, self.masses, self.terms.nodes
        to_phi, to_f, to_g = cotangents
        factors = Factors(terms, self.states[-1])
        extra: Tensor | None = None  # ∂L/∂r⁺_q e^{−φ}, from the sweep after
        for before, state in zip(self.states[-2::-1], self.states[:0:-1], strict=True):
            phi, f, g, f0, g0 = state.phi, state.f, state.g, before.f, before.g
            assert state.far is not None
            # Marginal 3 set g: through P¹³ to φ and through P²³ to f.
            w3, both = -divide_or_zero(to_g, p3), f + g
            z3, moved, slope = terms.lowest(phi, both), terms.by_node(), torch.zeros_like(phi)
            right = g.exp() * w3
            ends = Between(0, state.near, slope, extra=extra)
            received = terms.run(REPEL, ATTRACT, phi, f, moved, right, ends)
            to_phi = to_phi + slope - terms.taken(phi, both, z3, w3)[0]
            parts = received, *terms.outside(phi), terms.at_lows(z3)
            received, mine, own, zs = terms.summed(*parts)
            to_f = to_f + received - w3 * terms.excluded(mine, own, both, zs)
            factors.repel(state.near, right)
            factors.attract(moved, phi, f, None)
            # Marginal 2 set f, marginal 1 set φ: through P¹² and P²³ to g₀.
            w2, both = -divide_or_zero(to_f, p2), f + g0
            z2, moved = terms.lowest(phi, both), terms.by_node()
            total = to_phi - terms.taken(phi, both, z2, w2)[0]
            shift = torch.where(p1 > 0, phi - before.phi, -torch.inf).exp()
            given = -divide_or_zero(shift, p1)
            ends = Between(2, state.far, total, given, before.near)
            received = terms.run(ATTRACT, REPEL, phi, f, moved, w2, ends)
            w1, both0 = -divide_or_zero(total, p1), f0 + g0
            z1 = terms.lowest(phi, both0)
            lows1, own_1 = terms.outside(phi, w1)
            zs1, zs2 = terms.at_lows(z1 * w1), terms.at_lows(z2)
            received, mine1, own1, zs1, zs2 = terms.summed(received, lows1, own_1, zs1, zs2)
            lost = terms.excluded(mine1, own1, both0, zs1)
            to_g = g0.exp() * received - w2 * terms.excluded(mine, own, both, zs2) - lost
            to_f, to_phi = -lost, torch.zeros_like(phi)
            factors.attract(state.far, phi, f, w2)
            factors.repel(moved, g0.exp())
            extra = state.far * (w1 * shift)[:, None]
            lows = nodes.lows
            factors.lowest -= nodes.slopes * (w1 * z1 + w2[lows] * z2 + w3[lows] * z3)
        first = self.states[0]
        assert extra is not None
        factors.attract(extra, first.phi, first.f, None)
        if self.later:
            received = terms.run(NEITHER, ATTRACT, first.phi, first.f, extra)
            to_f = to_f + terms.summed(received)[0]
        factors.finish(forces)
        return [to_phi, to_f, to_g]


@dataclass
class Factors:
    """∂L/∂A_q = Σ_t left_tq right_t e^{φ_t + f_t}, relative to the last φ and f, and ∂L/∂B_q."""

    terms: Terms
    last: _State
    lefts: tuple[list[Tensor], list[Tensor]] = field(
        default_factory=lambda: ([], [])
    )  # A, B: (N, Q)
    rights: tuple[list[Tensor], list[Tensor]] = field(default_factory=lambda: ([], []))  # (M,)

    def __post_init__(self) -> None:
        self.phi, self.f = (
            torch.where(x > -torch.inf, x, 0.0) for x in (self.last.phi, self.last.f)
        )
        self.lowest = torch.zeros_like(self.phi)  # ∂L/∂x of the smallest scores, beyond the factors

    def attract(self, left: Tensor, phi: Tensor, f: Tensor, w: Tensor | None) -> None:
        """A term of A; its right vector is scaled to the largest."""
        right = (f - self.f).exp() if w is None else (f - self.f).exp() * w
        self._add(0, left * (phi - self.phi).exp()[:, None], right)

    def repel(self, left: Tensor, right: Tensor) -> None:
        """A term of B."""
        self._add(1, left, right)

    def _add(self, which: int, left: Tensor, right: Tensor) -> None:
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
