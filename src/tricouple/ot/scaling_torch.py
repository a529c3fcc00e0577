"""The fast run in PyTorch, for devices and for hosts without the compiled module.

A step on a GPU costs what it writes and launches. Sweeps by rows write about forty N×N matrices
each; these write E and 1/E once and read one matrix per product with a vector. All else is vectors.
On a device nothing is read back: ``kernel.kept`` is a flag there, false if digits were lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.forms import Forces
    from tricouple.ot.scaling import Kernel, Scaling

Factors = dict[int, list[tuple[Tensor, ...]]]
"""∂L/∂E (sign 1) and ∂L/∂E⁻ (−1) as products: left, right and, of triplets, left in column o."""


@dataclass
class TorchSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    operands: Operands
    later: bool  # whether there were others before
    history: list[Vectors]  # the state before the first sweep and after each
    late: list[Tensor | None]  # with a tolerance: whether a sweep does not count
    number: int | Tensor = 0

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return self.run.potentials(self.history[-1][: self.run.form.axes])

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        k, found, triplets = self.operands, list(cotangents), self.run.form.axes == 3
        factors: Factors = {1: [], -1: []}
        back = _triplet_back if triplets else _pair_back
        if triplets:
            found += [torch.zeros_like(found[0])] * 2  # of r⁺ and x
        for step in range(len(self.history) - 1, 0, -1):
            states, late = (self.history[step - 1], self.history[step]), self.late[step - 1]
            ends = found if late is None else [torch.where(late, 0.0, x) for x in found]
            ends = back(k, *states, ends, factors)
            if late is not None:
                ends = [torch.where(late, *pair) for pair in zip(found, ends, strict=True)]
            found = ends
        if triplets:
            b, (to_near, to_x) = self.history[0][1], found[3:]
            factors[1].append((to_near, b, to_x))
            if self.later:
                found[1] = found[1] + b * _columns(k, 1, to_near, to_x)
        for sign, products in factors.items():
            if products:
                self.run.kernel.add(sign * self.run.form.sign, *_merged(k, products))
        return found[: self.run.form.axes]


def sweeps(
    run: Scaling, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
) -> tuple[TorchSweeps | None, bool]:
    """All sweeps until the tolerance is met; on a host none if they lose digits."""
    kernel, host, triplets = run.kernel, on_host(masses[0]), run.form.axes == 3
    k, sweep = Operands.of(run, masses), _triplet_sweep if triplets else _pair_sweep
    state = run.scalings(start)
    if triplets:
        state += [k.e @ (state[1] * k.others), k.column * state[1][k.apart]]
    done = TorchSweeps(run, k, later, [state], [])
    noted: list[Vectors] = []  # of each sweep the scalings, and what they divide
    late, number = None, masses[0].new_zeros((), dtype=torch.long)
    for step in range(most):
        after, *sums = sweep(k, state)
        if tol is not None and (later or step):  # what comes after the end does not count
            over = _error(k, state, after) <= tol
            late = over if late is None else late | over
            if host and bool(late):
                break
            ends = zip(state, after, strict=False)
            after[: len(state)] = [torch.where(late, old, new) for old, new in ends]
            number = number + late
        noted.append([torch.cat(after[: run.form.axes]), *map(torch.cat, sums)])
        done.late.append(late)
        done.history, state = [*(done.history if kernel.wanted else []), after], after
    done.number = len(noted) if host or tol is None else len(noted) - number
    kept = _kept(k, noted, done.late) if noted else k.empty[0].new_ones(())
    kept = kernel.scores.shared((~kept).long()) == 0
    if not host:
        kernel.kept = kept if kernel.kept is None else kept & kernel.kept
        return done, True
    return (done if bool(kept) and noted else None), bool(kept)


def _kept(k: Operands, noted: list[Vectors], late: list[Tensor | None]) -> Tensor:
    """Whether all sweeps that count kept their digits."""
    found, left, sums = (torch.stack(parts) for parts in zip(*noted, strict=True))
    good = (left < torch.inf) & (found / left >= torch.finfo(left.dtype).tiny)
    good = (good & (left >= k.worst * sums) | torch.cat(k.empty)).all(1)
    if late[-1] is not None:
        none = torch.zeros_like(late[-1])
        good = good | torch.stack([none if x is None else x for x in late])
    return good.all()


class Operands(NamedTuple):
    """What the sweeps of a run are computed from; of triplets one reference o is apart."""

    e: Any  # E, (N, M): of pairs that repel 1/E
    inverse: Any  # 1/E
    column: Tensor  # column o of E, (N,)
    inverse_column: Tensor
    apart: Tensor  # o, (1,)
    others: Tensor  # 0 at o, else 1, (M,)
    alone: Tensor  # whether a reference is o
    zeros: Tensor  # (M,)
    at: Tensor  # own_i, or any where there is none, (N,)
    has: Tensor  # 1 where there is one, else 0
    masses: Vectors
    empty: Vectors  # whether a mass is 0
    slopes: Vectors  # −1/mass, 0 without mass
    worst: float  # the smallest share that may be left after a subtraction
    share: Any  # adds up over processes

    @classmethod
    def of(cls, run: Scaling, masses: Vectors) -> Operands:
        """Those of a run."""
        kernel, scores = run.kernel, run.kernel.scores
        e: Any = kernel.matrix if kernel.whole else _Tiles(kernel, 1)
        inverse: Any = kernel.inverse if kernel.whole else _Tiles(kernel, -1)
        if run.form.sign < 0:
            e, inverse = inverse, e
        others = scores.anchors.new_ones(scores.shape[1], dtype=kernel.dtype)
        apart, column = scores.own[:0], others[:0]
        if run.form.axes == 3:
            apart = kernel.apart
            column = e @ torch.zeros_like(others).index_fill(0, apart, 1.0)
            others = others.index_fill(0, apart, 0.0)
        sides = e, inverse, column, divide_or_zero(torch.ones_like(column), column)
        own = scores.own.clamp(min=0), (scores.own >= 0).to(kernel.dtype)
        slopes = [-divide_or_zero(torch.ones_like(mass), mass) for mass in masses]
        given = masses, [mass == 0 for mass in masses], slopes
        where = apart, others, others == 0, torch.zeros_like(others)
        return cls(*sides, *where, *own, *given, run.worst, scores.shared)

    def without_own(self, values: Tensor) -> Tensor:
        """``Σ_{j ≠ own_i} values_j``, (N,)."""
        return values.sum() - values[self.at] * self.has

    def outside(self, values: Tensor) -> Tensor:
        """``Σ_{i: own_i ≠ j} values_i``, (M,), over all processes; 0 at o."""
        own = self.zeros.index_add(0, self.at, values * self.has)
        found: Tensor = self.share(values.sum() - own)
        return found * self.others

    def scaling(self, axis: int, left: Tensor) -> Tensor:
        """Mass / left, 0 without mass."""
        return (self.masses[axis] / left).masked_fill(self.empty[axis], 0.0)


class _Tiles:
    """E, or 1/E, of which some rows are computed at a time."""

    def __init__(self, kernel: Kernel, sign: int, *, transposed: bool = False) -> None:
        self.kernel, self.sign, self.transposed = kernel, sign, transposed

    def t(self) -> _Tiles:
        """The transposed matrix."""
        return _Tiles(self.kernel, self.sign, transposed=True)

    def __matmul__(self, values: Tensor) -> Tensor:
        scores = self.kernel.scores
        out = values.new_zeros(scores.shape[int(self.transposed)])
        for rows in scores.blocks():
            tile = self.kernel.rows(rows)
            tile = tile if self.sign > 0 else divide_or_zero(torch.ones_like(tile), tile)
            if self.transposed:
                out += tile.T @ values[rows]
            else:
                out[rows] = tile @ values
        return out


def _triplet_sweep(k: Operands, state: Vectors) -> tuple[Vectors, Vectors, Vectors]:
    """One more sweep (mathematics §2); what its scalings divide, and what that was taken from.

    The state is a, b, h, r⁺ = E b and x, o's own term of that sum, which r⁺ does not have; for the
    adjoint also r⁻ = h/E and y, and Σ_{i: own_i ≠ j} a_i.
    """
    _, b, h, near, x = state[:5]
    h0 = h * k.others
    far, y, both = k.inverse @ h0, k.inverse_column * h[k.apart], b * h0
    product = near * far
    first = (product - k.without_own(both)) + (near * y + x * far)
    a = k.scaling(0, first)  # marginal 1
    outside = k.outside(a)
    total, columns = outside.amax(), _columns(k, 1, a * (far + y), a * far)
    second, sums = columns - h0 * outside, torch.maximum(columns, h0 * total)
    b1 = k.scaling(1, second)  # marginal 2
    b0 = b1 * k.others
    near1, x1 = k.e @ b0, k.column * b1[k.apart]
    columns = _columns(k, -1, a * (near1 + x1), a * near1)
    third, more = columns - b0 * outside, torch.maximum(columns, b0 * total)
    h1 = k.scaling(2, third)  # marginal 3
    sizes = [torch.maximum(product, both.sum()), sums, more]
    return [a, b1, h1, near1, x1, far, y, outside], [first, second, third], sizes


def _triplet_back(
    k: Operands, before: Vectors, after: Vectors, ends: Vectors, factors: Factors
) -> Vectors:
    """Cotangents of log a, log b, log h, r⁺ and x, from those after a sweep to those before."""
    (_, b0, h0, near0, x0), (a, b, h, near, x, far, y, outside) = before[:5], after
    to_a, to_b, to_h, to_near, to_x = ends
    # Marginal 3 set h: weights −∂L/∂log h · h/p³, through P¹³ to a and through P²³ to b.
    weights = to_h * k.slopes[2] * h
    most = weights * k.others
    sums, here = k.inverse @ most, k.inverse_column * weights[k.apart]
    to_a = to_a + a * ((near * sums - k.without_own(b * most)) + (near * here + x * sums))
    factors[-1].append((a * (near + x), weights, a * near))
    to_near, to_x = to_near + a * (sums + here), to_x + a * sums
    factors[1].append((to_near, b, to_x))
    to_b = to_b + b * (_columns(k, 1, to_near, to_x) - most * outside)
    # Marginal 2 set b: through P¹² to a and through P²³ to the h before.
    weights = to_b * k.slopes[1] * b
    most = weights * k.others
    sums, here = k.e @ most, k.column * weights[k.apart]
    to_a = to_a + a * ((far * sums - k.without_own(h0 * most)) + (far * here + y * sums))
    factors[1].append((a * (far + y), weights, a * far))
    # Marginal 1 set a: to r⁺ and x of the b before, to r⁻ and y, and to the b and h before.
    found = to_a * k.slopes[0] * a
    to_far, to_y = a * (sums + here) + found * (near0 + x0), a * sums + found * near0
    factors[-1].append((to_far, h0, to_y))
    meet = b0 * k.outside(found)
    to_h = h0 * (_columns(k, -1, to_far, to_y) - most * outside - meet)
    return [torch.zeros_like(a), -h0 * meet, to_h, found * (far + y), found * far]


def _columns(k: Operands, sign: int, weights: Tensor, of_apart: Tensor) -> Tensor:
    """``Σ_i E_ij weights_i``, or of 1/E, over all processes; column o has weights of its own."""
    matrix, column = (k.e, k.column) if sign > 0 else (k.inverse, k.inverse_column)
    found = torch.where(k.alone, torch.dot(column, of_apart), matrix.t() @ weights)
    return k.share(found)  # type: ignore[no-any-return]


def _merged(k: Operands, products: list[tuple[Tensor, ...]]) -> tuple[Tensor, Tensor]:
    """Products as one: left, (K, N), and right, (K, M); what column o has of them is one row."""
    left, right, *in_apart = (torch.stack(parts) for parts in zip(*products, strict=True))
    if not in_apart:
        return left, right
    # Where an anchor is o there is no entry, but its own terms are large.
    alone = (in_apart[0] * right[:, k.apart]).sum(0) * (1 - k.has * (k.at == k.apart))
    return torch.cat([left, alone[None]]), torch.cat([right * k.others, 1 - k.others[None]])


def _pair_sweep(k: Operands, state: Vectors) -> tuple[Vectors, Vectors, Vectors]:
    """U = p¹/(E v), v = p²/(Eᵀ u) (mathematics §5); what these divide, twice."""
    first = k.e @ state[1]
    u = k.scaling(0, first)
    second = k.share(k.e.t() @ u)
    return [u, k.scaling(1, second)], [first, second], [first, second]


def _pair_back(
    k: Operands, before: Vectors, after: Vectors, ends: Vectors, factors: Factors
) -> Vectors:
    """Cotangents of log u and log v, from those after a sweep to those before."""
    v0, (u, v), (to_u, to_v) = before[1], after, ends
    weights = to_v * k.slopes[1] * v
    left = (to_u + u * (k.e @ weights)) * k.slopes[0] * u
    factors[1] += [(u, weights), (left, v0)]
    return [torch.zeros_like(u), v0 * k.share(k.e.t() @ left)]


def _error(k: Operands, state: Vectors, after: Vectors) -> Tensor:
    """The L1 error of the marginals that can be off before a sweep."""
    before, a = state[0], after[0]
    first: Tensor = k.share(divide_or_zero(k.masses[0] * (before - a).abs(), a).sum())
    if len(state) == 2:
        return first
    b, h, far, y = *state[1:3], *after[5:7]
    received = _columns(k, 1, before * (far + y), before * far)
    received = b * (received - h * k.outside(before))
    return torch.maximum(first, (received - k.masses[1]).abs().sum())
