"""The fast run in PyTorch, for devices and for hosts without the compiled module.

A step on a GPU costs what it writes and launches. Sweeps by rows write about forty N×N matrices
each; these write E and 1/E once and read one matrix per product with a vector. All else is vectors,
and formulas are those of c/scaling.h. On a device nothing is read back: whether digits were kept is
a flag there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.scaling import FastSweeps, Kernel

Products = dict[int, list[Vectors]]
"""∂L/∂E (sign 1) and ∂L/∂E⁻ (−1): left, (N,), right, (M,), and of triplets left in column o."""


def solve(done: FastSweeps, number: int, start: Vectors) -> Tensor:
    """So many sweeps, noted in ``done``; whether they kept their digits."""
    k, pairs, divided, states = done.run.kernel, len(done.masses) == 2, list[Vectors](), [start]
    if not pairs:  # what is behind r⁺ and x is of sweeps
        a, b, _ = start
        states = [[*start, *_rows(k, 1, b), a, a, b]]
    for _ in range(number):
        states.append((_pair_sweep if pairs else _triplet_sweep)(done, states[-1], divided))
    done.history = [torch.stack(vectors) for vectors in zip(*states, strict=True)]
    done.number = number
    mass, left, least = (torch.cat(vectors) for vectors in zip(*divided, strict=True))
    slope = mass / left / left
    good = (left < torch.inf) & (left >= least) & (slope >= torch.finfo(left.dtype).tiny)
    return k.scores.shared((~(good | (mass == 0))).any().long()) == 0


def adjoint(done: FastSweeps, cotangents: Vectors) -> tuple[Vectors, dict[int, Vectors]]:
    """Cotangents at the start, and ∂L/∂E and ∂L/∂E⁻ as left, (K, N), and right, (K, M)."""
    k, pairs, parts = done.run.kernel, len(done.masses) == 2, list(cotangents)
    used: Products = {1: [], -1: []}
    back = _pair_back if pairs else _triplet_back
    if not pairs:
        parts += [torch.zeros_like(parts[0])] * 2  # of r⁺ and x
    for step in range(len(done.history[0]) - 1, 0, -1):
        before, after = ([vectors[at] for vectors in done.history] for at in (step - 1, step))
        parts = back(done, before, after, parts, used)
    if not pairs:
        *parts, to_near, to_x = parts
        b = done.history[1][0]
        used[1].append([to_near, b, to_x])
        parts[1] = parts[1] + b * _columns(k, 1, to_near, to_x)
    return parts, {sign: _joined(k, products) for sign, products in used.items() if products}


def _triplet_sweep(done: FastSweeps, state: Vectors, divided: list[Vectors]) -> Vectors:
    """One more sweep (mathematics §2): a, b, h, r⁺ = E b, x, r⁻ = h/E, y and what is excluded.

    One reference o is apart: r⁺ and r⁻ are sums over the others, x and y o's own terms of them.
    """
    k, (p1, p2, p3), worst = done.run.kernel, done.masses, done.run.worst
    _, b, h, near, x, *_ = state
    (far, y), h0 = _rows(k, -1, h), h * k.others
    both, total = b * h0, near * far
    left = (total - _without_own(k, both)) + (near * y + x * far)
    a = _scaling(p1, left, worst * torch.maximum(total, both.sum()), divided)  # marginal 1
    outside = _outside(k, a)
    most, total = outside.amax(), _columns(k, 1, a * (far + y), a * far)
    least = worst * torch.maximum(total, h0 * most)
    b = _scaling(p2, total - h0 * outside, least, divided)  # marginal 2
    (near, x), b0 = _rows(k, 1, b), b * k.others
    total = _columns(k, -1, a * (near + x), a * near)
    least = worst * torch.maximum(total, b0 * most)
    h = _scaling(p3, total - b0 * outside, least, divided)  # marginal 3
    return [a, b, h, near, x, far, y, outside]


def _triplet_back(
    done: FastSweeps, before: Vectors, after: Vectors, ends: Vectors, used: Products
) -> Vectors:
    """Cotangents of log a, log b, log h, r⁺ and x, from those after a sweep to those before."""
    k, (p1, p2, p3), (_, b0, h0, near0, x0, *_) = done.run.kernel, done.masses, before
    (a, b, h, near, x, far, y, outside), (to_a, to_b, to_h, to_near, to_x) = after, ends
    # Marginal 3 set h: weights −∂L/∂log h · h/p³, through P¹³ to a and through P²³ to b.
    weights = divide_or_zero(-to_h, p3) * h
    sums, here = _rows(k, -1, weights)
    taken = _without_own(k, b * weights * k.others)
    to_a = to_a + a * ((near * sums - taken) + (near * here + x * sums))
    to_near, to_x = to_near + a * (sums + here), to_x + a * sums
    used[-1].append([a * (near + x), weights, a * near])
    used[1].append([to_near, b, to_x])
    to_b = to_b + b * (_columns(k, 1, to_near, to_x) - weights * outside)
    # Marginal 2 set b: through P¹² to a and through P²³ to the h before.
    weights = divide_or_zero(-to_b, p2) * b
    sums, here = _rows(k, 1, weights)
    taken = _without_own(k, h0 * weights * k.others)
    to_a = to_a + a * ((far * sums - taken) + (far * here + y * sums))
    used[1].append([a * (far + y), weights, a * far])
    # Marginal 1 set a: to r⁺ and x of the b before, to r⁻ and y, and to the b and h before.
    found = divide_or_zero(-to_a, p1) * a
    to_far, to_y = a * (sums + here) + found * (near0 + x0), a * sums + found * near0
    used[-1].append([to_far, h0, to_y])
    meet = b0 * _outside(k, found)
    to_h = h0 * (_columns(k, -1, to_far, to_y) - weights * outside - meet)
    return [torch.zeros_like(a), -h0 * meet, to_h, found * (far + y), found * far]


def _pair_sweep(done: FastSweeps, state: Vectors, divided: list[Vectors]) -> Vectors:
    """U = p¹/(E v), v = p²/(Eᵀ u) (mathematics §5)."""
    k, sign, (p1, p2) = done.run.kernel, done.run.form.sign, done.masses
    none = torch.zeros_like(p1), torch.zeros_like(p2)
    u = _scaling(p1, _times(k, sign, state[1]), none[0], divided)
    return [u, _scaling(p2, k.scores.shared(_times(k, sign, u, True)), none[1], divided)]


def _pair_back(
    done: FastSweeps, before: Vectors, after: Vectors, ends: Vectors, used: Products
) -> Vectors:
    """Cotangents of log u and log v, from those after a sweep to those before."""
    k, sign, (p1, p2) = done.run.kernel, done.run.form.sign, done.masses
    v0, (u, v), (to_u, to_v) = before[1], after, ends
    weights = divide_or_zero(-to_v, p2) * v
    left = divide_or_zero(-to_u - u * _times(k, sign, weights), p1) * u
    used[sign] += [[u, weights], [left, v0]]
    return [torch.zeros_like(u), v0 * k.scores.shared(_times(k, sign, left, True))]


def _scaling(mass: Tensor, left: Tensor, least: Tensor, divided: list[Vectors]) -> Tensor:
    """Mass / left, 0 without mass; ``left`` has lost digits if it is below ``least``."""
    divided.append([mass, left, least])
    return (mass / left).masked_fill(mass == 0, 0.0)


def _rows(k: Kernel, sign: int, values: Tensor) -> Vectors:
    """``Σ_{j≠o} K_ij values_j``, and the term of o, (N,) each."""
    return [_times(k, sign, values * k.others), k.edges[sign] * values[k.apart]]


def _columns(k: Kernel, sign: int, weights: Tensor, of_apart: Tensor) -> Tensor:
    """``Σ_i K_ij weights_i``, (M,), over all processes; column o has weights of its own."""
    alone, found = torch.dot(k.edges[sign], of_apart), _times(k, sign, weights, True)
    return k.scores.shared(found.index_copy(0, k.apart, alone[None]))


def _without_own(k: Kernel, values: Tensor) -> Tensor:
    """``Σ_{j≠own_i} values_j``, (N,)."""
    at, has = k.own
    return values.sum() - values[at] * has


def _outside(k: Kernel, values: Tensor) -> Tensor:
    """``Σ_{i: own_i≠j} values_i``, (M,), over all processes; 0 at o."""
    at, has = k.own
    mine = torch.zeros_like(k.others).index_add(0, at, values * has)
    return k.scores.shared(values.sum() - mine) * k.others


def _times(k: Kernel, sign: int, values: Tensor, transposed: bool = False) -> Tensor:
    """``Σ_j K_ij values_j``, (N,), or ``Σ_i K_ij values_i``, (M,); K is E or 1/E (sign −1)."""
    if k.whole:
        matrix = k.matrix if sign > 0 else k.inverse
        return (matrix.T if transposed else matrix) @ values
    found = values.new_zeros(k.scores.shape[int(transposed)])
    for rows in k.scores.blocks():
        tile = k.rows(rows)
        tile = tile if sign > 0 else reciprocal(tile)
        if transposed:
            found += tile.T @ values[rows]
        else:
            found[rows] = tile @ values
    return found


def _joined(k: Kernel, products: list[Vectors]) -> Vectors:
    """Left and right as matrices; what column o has of all products is one more."""
    left, right, *rest = (torch.stack(parts) for parts in zip(*products, strict=True))
    if not rest:
        return [left, right]
    alone = (rest[0] * right[:, k.apart]).sum(0)
    alone = torch.where(k.scores.own == k.apart, 0.0, alone)  # no entry, but its terms are large
    return [torch.cat([left, alone[None]]), torch.cat([right * k.others, 1 - k.others[None]])]


def reciprocal(e: Tensor) -> Tensor:
    """1/E, 0 where E is 0."""
    return torch.where(e > 0, e.reciprocal(), 0.0)
