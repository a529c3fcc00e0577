"""The fast run in PyTorch, for devices and for hosts without the compiled module.

A step on a GPU costs what it writes and launches. Sweeps by rows write about forty N×N matrices
each; these write E and 1/E once and read one matrix per product. On a device nothing is read back:
``kernel.kept`` is a flag there, true if no subtraction lost more than it may. E has the wide dtype,
so vectors need no scaling.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.scaling import Kernel, Scaling
    from tricouple.ot.solver import Forces

_Weigh = Callable[[slice, Tensor], Tensor]


@dataclass
class TorchSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    masses: Vectors
    history: list[list[Tensor]]  # per sweep, what its adjoint needs
    scalings: Vectors  # after the last
    number: int | Tensor
    later: bool
    late: list[Tensor | None]  # per sweep, on a device: whether it does not count

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        found = [scaling.log() for scaling in self.scalings]
        found[0] = found[0] - self.run.shift()
        return found

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        backwards = _pair_adjoint if self.run.form.axes == 2 else _triplet_adjoint
        return backwards(self, list(cotangents))


def sweeps(
    run: Scaling, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
) -> tuple[TorchSweeps | None, bool]:
    """As many sweeps as keep their digits; on a device all of them."""
    kernel, host = run.kernel, on_host(masses[0])
    scalings = [(start[0] + run.shift()).exp(), *(potential.exp() for potential in start[1:])]
    sweep = _pair_sweep if run.form.axes == 2 else _triplet_sweep
    history: list[list[Tensor]] = []
    lates: list[Tensor | None] = []
    late: Tensor | None = None
    near = None if run.form.axes == 2 else _rows(kernel, 1, scalings[1])  # r⁺ = E b
    ended = True
    for number in range(most):
        watched = tol is not None and (later or number > 0)
        after, noted, kept, error = sweep(kernel, masses, scalings, near, run.sign, watched)
        if host and not bool(kept):
            ended = False
            break
        if watched and tol is not None and error is not None:
            if host and float(error) <= tol:
                break
            if not host:
                late = error <= tol if late is None else late | (error <= tol)
                after = [
                    torch.where(late, old, new) for old, new in zip(scalings, after, strict=True)
                ]
        if not host:
            good = kept if late is None else kept | late
            kernel.kept = good if kernel.kept is None else kernel.kept & good
        history.append(noted)
        lates.append(late)
        scalings = after
        near = noted[-1] if late is None or near is None else torch.where(late, near, noted[-1])
    if not history:
        return None, ended
    count: int | Tensor = len(history)
    if late is not None:
        count = count - torch.stack([x for x in lates if x is not None]).sum()
    return TorchSweeps(run, masses, history, scalings, count, later, lates), ended


def _triplet_sweep(
    kernel: Kernel,
    masses: Vectors,
    scalings: Vectors,
    near: Tensor | None,
    sign: int,
    watched: bool,
) -> tuple[Vectors, list[Tensor], Tensor, Tensor | None]:
    """One sweep (mathematics §2): scalings, what the adjoint needs, kept digits, error before."""
    assert near is not None
    before, b, h = scalings
    worst, both = kernel.worst, b * h
    far, a = torch.empty_like(near), torch.empty_like(near)
    excluded, most = both.sum() - _at_own(kernel, both), both.sum()
    kept: list[Tensor] = []

    def anchors(rows: slice, sums: Tensor) -> Tensor:  # marginal 1
        far[rows] = sums
        taken = excluded[rows], most
        a[rows], good = _scaling(masses[0][rows], near[rows] * sums, taken, worst)
        kept.append(good)
        return a[rows] * sums

    columns = _pass(kernel, -1, 1, h, anchors)  # Eᵀ(a r⁻)
    columns, outside = _summed(kernel, columns, _outside(kernel, a))
    error = None
    if watched:
        first = divide_or_zero(masses[0] * (before - a).abs(), a).sum()
        received = _pass(kernel, -1, 1, h, lambda rows, sums: before[rows] * sums)
        received, beyond = _summed(kernel, received, _outside(kernel, before))
        second = (b * (received - h * beyond) - masses[1]).abs().sum()
        error = torch.maximum(_summed(kernel, first[None])[0][0], second)
    sum_a = outside.amax()
    b1, good = _scaling(masses[1], columns, (h * outside, h * sum_a), worst)  # marginal 2
    kept.append(good)
    near1 = torch.empty_like(near)

    def onward(rows: slice, sums: Tensor) -> Tensor:
        near1[rows] = sums
        return a[rows] * sums

    (columns,) = _summed(kernel, _pass(kernel, 1, -1, b1, onward))  # E⁻ᵀ(a r⁺)
    h1, good = _scaling(masses[2], columns, (b1 * outside, b1 * sum_a), worst)  # marginal 3
    kept.append(good)
    return [a, b1, h1], [b, h, near, far, a, outside, b1, h1, near1], _all(kernel, kept), error


def _triplet_adjoint(segment: TorchSweeps, cotangents: Vectors) -> Vectors:
    """Factors of ∂L/∂E and ∂L/∂E⁻ for cotangents of log a, log b, log h."""
    kernel, (p1, p2, p3) = segment.run.kernel, segment.masses
    to_a, to_b, to_h = cotangents
    to_near = torch.zeros_like(to_a)  # ∂L/∂r⁺
    lefts: tuple[list[Tensor], list[Tensor]] = ([], [])
    rights: tuple[list[Tensor], list[Tensor]] = ([], [])

    def add(which: int, left: Tensor, right: Tensor) -> None:
        lefts[which].append(left)
        rights[which].append(right)

    for noted, late in zip(reversed(segment.history), reversed(segment.late), strict=True):
        b0, h0, near0, far, a, outside, b, h, near = noted
        ends = to_a, to_b, to_h, to_near
        if late is not None:
            to_a, to_b, to_h, to_near = (torch.where(late, 0.0, end) for end in ends)
        # h = p³ / D³, D³ = E⁻ᵀ(a r⁺) − b · outside
        d3 = -divide_or_zero(to_h * h, p3)
        d_a, so_far = torch.empty_like(a), to_near.clone()
        to_outside = -d3 * b

        def negatives(rows: slice, sums: Tensor) -> Tensor:
            d_a[rows] = sums * near[rows]
            so_far[rows] += sums * a[rows]
            return so_far[rows]

        add(1, a * near, d3)
        (d_b,) = _summed(kernel, _pass(kernel, -1, 1, d3, negatives))  # r⁺ = E b
        add(0, so_far, b)
        # b = p² / D², D² = Eᵀ(a r⁻) − h₀ · outside
        d2 = -divide_or_zero((to_b + b * (d_b - d3 * outside)) * b, p2)
        to_outside = to_outside - d2 * h0
        spread = to_outside.sum() - _at_own(kernel, to_outside)
        d1, d_far = torch.empty_like(a), torch.empty_like(a)

        def positives(rows: slice, sums: Tensor) -> Tensor:
            # a = p¹ / D¹, D¹ = r⁺ r⁻ − Σ_{j≠own} b₀ h₀
            slope = d_a[rows] + sums * far[rows] + spread[rows]
            d1[rows] = -divide_or_zero((to_a[rows] + a[rows] * slope) * a[rows], p1[rows])
            d_far[rows] = sums * a[rows] + d1[rows] * near0[rows]
            return d_far[rows]

        add(0, a * far, d2)
        received = _pass(kernel, 1, -1, d2, positives)  # r⁻ = E⁻ h₀
        received, others = _summed(kernel, received, _outside(kernel, d1))
        add(1, d_far, h0)
        found = (
            torch.zeros_like(a),
            -b0 * h0 * others,
            h0 * (received - d2 * outside - b0 * others),
            d1 * far,
        )
        to_a, to_b, to_h, to_near = found
        if late is not None:
            pairs = zip(ends, found, strict=True)
            to_a, to_b, to_h, to_near = (torch.where(late, old, new) for old, new in pairs)
    b = segment.history[0][0]
    add(0, to_near, b)  # r⁺ of the start
    for which, sign in ((0, 1), (1, -1)):
        kernel.add(sign, torch.stack(lefts[which]), torch.stack(rights[which]))
    if segment.later:
        columns = _pass(kernel, 1, 1, b, lambda rows, sums: to_near[rows])
        to_b = to_b + b * _summed(kernel, columns)[0]
    return [to_a, to_b, to_h]


def _pair_sweep(
    kernel: Kernel,
    masses: Vectors,
    scalings: Vectors,
    near: Tensor | None,
    sign: int,
    watched: bool,
) -> tuple[Vectors, list[Tensor], Tensor, Tensor | None]:
    """U = p¹/(E v), v = p²/(Eᵀ u) (mathematics §5)."""
    before, v = scalings
    u = torch.empty_like(before)
    kept: list[Tensor] = []

    def rows_first(rows: slice, sums: Tensor) -> Tensor:
        u[rows], good = _scaling(masses[0][rows], sums, None, 0.0)
        kept.append(good)
        return u[rows]

    (columns,) = _summed(kernel, _pass(kernel, sign, sign, v, rows_first))
    error = None
    if watched:
        off = divide_or_zero(masses[0] * (before - u).abs(), u).sum()
        error = _summed(kernel, off[None])[0][0]
    v1, good = _scaling(masses[1], columns, None, 0.0)
    kept.append(good)
    return [u, v1], [v, u, v1], _all(kernel, kept), error


def _pair_adjoint(segment: TorchSweeps, cotangents: Vectors) -> Vectors:
    kernel, (p1, p2), sign = segment.run.kernel, segment.masses, segment.run.sign
    to_u, to_v = cotangents
    lefts, rights = [], []
    for noted, late in zip(reversed(segment.history), reversed(segment.late), strict=True):
        v0, u, v = noted
        ends = to_u, to_v
        if late is not None:
            to_u, to_v = (torch.where(late, 0.0, end) for end in ends)
        weights, left = -divide_or_zero(to_v * v, p2), torch.empty_like(u)

        def back(rows: slice, sums: Tensor) -> Tensor:
            slope = to_u[rows] + u[rows] * sums
            left[rows] = -divide_or_zero(slope * u[rows], p1[rows])
            return left[rows]

        (received,) = _summed(kernel, _pass(kernel, sign, sign, weights, back))
        lefts += [u, left]
        rights += [weights, v0]
        found = torch.zeros_like(u), v0 * received
        to_u, to_v = found
        if late is not None:
            to_u, to_v = (torch.where(late, x, y) for x, y in zip(ends, found, strict=True))
    kernel.add(sign, torch.stack(lefts), torch.stack(rights))
    return [to_u, to_v]


# --- passes over the tiles of a kernel ------------------------------------------------------------


def _pass(kernel: Kernel, near: int, far: int, values: Tensor, weigh: _Weigh) -> Tensor:
    """``Σ_i weigh(i, Σ_j E^near_ij values_j) E^far_ij``, shape (M,)."""
    out = torch.zeros_like(values)
    for rows in kernel.blocks():
        weights = weigh(rows, _times(kernel.power(near, rows), values))
        out = out + _times(kernel.power(far, rows).T, weights)
    return out


def _rows(kernel: Kernel, sign: int, values: Tensor) -> Tensor:
    """``Σ_j E^sign_ij values_j``, shape (N,)."""
    found = [_times(kernel.power(sign, rows), values) for rows in kernel.blocks()]
    return torch.cat(found) if found else values.new_zeros(kernel.scores.shape[0])


def _times(matrix: Tensor, values: Tensor) -> Tensor:
    return matrix @ values


def _scaling(
    mass: Tensor, total: Tensor, excluded: tuple[Tensor, Tensor] | None, worst: float
) -> tuple[Tensor, Tensor]:
    """Mass / (total − excluded), 0 without mass; and whether the difference kept its digits.

    ``excluded`` is a difference itself, and comes with the sum that it was taken from.
    """
    some = mass > 0
    if excluded is None:
        left, bound = total, torch.full_like(total, torch.finfo(total.dtype).tiny)
    else:
        left, bound = total - excluded[0], worst * torch.maximum(total, excluded[1])
    found = torch.where(some, mass / torch.where(some, left, 1.0), 0.0)
    good = (left >= bound) & (left < torch.inf) & (found > 0)
    return found, (good | ~some).all()


def _at_own(kernel: Kernel, values: Tensor) -> Tensor:
    """For each anchor the value of the reference that it is, 0 if it is none."""
    scores = kernel.scores
    if scores.symmetric:
        return values
    return values[scores.own.clamp(min=0)] * (scores.own >= 0)


def _outside(kernel: Kernel, values: Tensor) -> Tensor:
    """For each reference the sum of the values of all anchors that it is not."""
    scores = kernel.scores
    if scores.symmetric:
        return values.sum() - values
    mine = values.new_zeros(scores.shape[1])
    mine = mine.index_add(0, scores.own.clamp(min=0), values * (scores.own >= 0))
    return values.sum() - mine


def _summed(kernel: Kernel, *vectors: Tensor) -> tuple[Tensor, ...]:
    """Sums over processes, in one message."""
    group = kernel.scores.group
    if group is None:
        return vectors
    joined = group.sum_(torch.cat(vectors))
    return tuple(joined.split([len(vector) for vector in vectors]))


def _all(kernel: Kernel, flags: list[Tensor]) -> Tensor:
    """Whether all hold, on all processes."""
    lost = (~torch.stack(flags)).sum()
    if kernel.scores.group is not None:
        kernel.scores.group.sum_(lost)
    return lost == 0
