"""The fast run in PyTorch, for devices and for hosts without the compiled module.

A step on a GPU costs what it writes and launches. Sweeps by rows write about forty N×N matrices
each; these write E and 1/E once and read one matrix per product. All else is vectors, and autograd
differentiates it: E is a constant there, and a zero vector added to each product, its ``probe``,
receives one factor of ∂L/∂E. On a device nothing is read back: ``kernel.kept`` is a flag there,
true if no subtraction lost more than it may.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.scaling import Kernel, Scaling
    from tricouple.ot.solver import Forces

_State = list[Tensor]  # the scalings of the axes; of triplets also r⁺ = E b


@dataclass
class Factor:
    """A product with E (sign 1) or 1/E (−1): ∂L/∂E is its probe's gradient times ``values``."""

    sign: int
    transposed: bool
    values: Tensor
    probe: Tensor


@dataclass
class TorchSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    start: Vectors  # scalings before the first sweep
    scalings: Vectors  # after the last
    factors: list[Factor]
    number: int | Tensor

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        found = [scaling.detach().log() for scaling in self.scalings]
        found[0] = found[0] - self.run.shift()
        return found

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        pairs = zip(cotangents, self.scalings, strict=True)
        weights = [divide_or_zero(cotangent, scaling.detach()) for cotangent, scaling in pairs]
        leaves = [*self.start, *(factor.probe for factor in self.factors)]
        found = torch.autograd.grad(
            self.scalings, leaves, weights, retain_graph=True, materialize_grads=True
        )
        axes = len(self.start)
        for sign in (1, -1):
            sides = [
                (x.values, to) if x.transposed else (to, x.values)
                for x, to in zip(self.factors, found[axes:], strict=True)
                if x.sign == sign
            ]
            if sides:
                left, right = (torch.stack(side) for side in zip(*sides, strict=True))
                self.run.kernel.add(sign, left, right)
        return [to * scaling.detach() for to, scaling in zip(found, self.start, strict=False)]


def sweeps(
    run: Scaling, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
) -> tuple[TorchSweeps | None, bool]:
    """As many sweeps as keep their digits; on a device all of them."""
    kernel, host, axes = run.kernel, on_host(masses[0]), run.form.axes
    sweep = _pair_sweep if axes == 2 else _triplet_sweep
    factors: list[Factor] = []
    product = _product(kernel, factors)
    done, ended, late, counted = 0, True, None, masses[0].new_zeros(())
    # Checkpoints replace what a graph saves; this graph ends before they could give it back.
    with torch.set_grad_enabled(kernel.wanted), saved_tensors_hooks(_same, _same):
        first = [(start[0] + run.shift()).exp(), *(potential.exp() for potential in start[1:])]
        begin = [scaling.requires_grad_(kernel.wanted) for scaling in first]
        state = begin if axes == 2 else [*begin, product(1, begin[1])]
        while done < most:
            used = len(factors)
            after, kept = sweep(product, masses, state, run.sign, kernel.worst)
            good, over = _everywhere(kernel, kept), None
            ended = not host or bool(good)
            if ended and tol is not None and (later or done):
                over = _error(kernel, masses, state, after) <= tol
            if not ended or (host and over is not None and bool(over)):
                del factors[used:]  # the sweep does not count
                break
            if not host:
                if over is not None:  # what comes after the end does not count
                    late = over if late is None else late | over
                    pairs = zip(state, after, strict=True)
                    after = [torch.where(late, old, new) for old, new in pairs]
                    good, counted = good | late, counted + late
                kernel.kept = good if kernel.kept is None else kernel.kept & good
            state, done = after, done + 1
    number = done if late is None else done - counted
    found = TorchSweeps(run, begin, state[:axes], factors, number) if done else None
    return found, ended


def _same(tensor: Tensor) -> Tensor:
    return tensor


_Product = Callable[..., Tensor]  # (sign, values, transposed=False)


def _product(kernel: Kernel, factors: list[Factor]) -> _Product:
    """Products with E, 1/E (sign −1) and the matrix of ones (0), without the entries (i, own_i)."""

    def product(sign: int, values: Tensor, transposed: bool = False) -> Tensor:
        if kernel.matrix is None or kernel.scores.group is not None:
            found: Tensor = _Tiles.apply(values, kernel, sign, transposed)  # type: ignore[no-untyped-call]
        else:
            found = _times(kernel, sign, values, transposed)
        if sign == 0 or not kernel.wanted:
            return found
        probe = torch.zeros_like(found).requires_grad_()
        factors.append(Factor(sign, transposed, values.detach(), probe))
        return found + probe

    return product


def _triplet_sweep(
    product: _Product, masses: Vectors, state: _State, sign: int, worst: float
) -> tuple[_State, list[Tensor]]:
    """One sweep (mathematics §2), and whether differences kept their digits."""
    _, b, h, near = state
    both, far = b * h, product(-1, h)
    excluded = product(0, both)
    a, first = _scaling(masses[0], near * far, excluded, both.sum(), worst)  # marginal 1
    columns, outside = product(1, a * far, True), product(0, a, True)
    total = outside.detach().amax()
    b1, second = _scaling(masses[1], columns, h * outside, h * total, worst)  # marginal 2
    near1 = product(1, b1)
    columns = product(-1, a * near1, True)
    h1, third = _scaling(masses[2], columns, b1 * outside, b1 * total, worst)  # marginal 3
    return [a, b1, h1, near1], [first, second, third]


def _pair_sweep(
    product: _Product, masses: Vectors, state: _State, sign: int, worst: float
) -> tuple[_State, list[Tensor]]:
    """U = p¹/(E v), v = p²/(Eᵀ u) (mathematics §5)."""
    u, first = _scaling(masses[0], product(sign, state[1]))
    v, second = _scaling(masses[1], product(sign, u, True))
    return [u, v], [first, second]


@torch.no_grad()
def _error(kernel: Kernel, masses: Vectors, state: _State, after: _State) -> Tensor:
    """The L1 error of the marginals that can be off before a sweep."""
    before, a = state[0], after[0]
    first = divide_or_zero(masses[0] * (before - a).abs(), a).sum()
    if kernel.scores.group is not None:
        kernel.scores.group.sum_(first)
    if len(masses) == 2:
        return first
    b, h = state[1:3]
    received = _times(kernel, 1, before * _times(kernel, -1, h), True)
    received = b * (received - h * _times(kernel, 0, before, True))
    return torch.maximum(first, (received - masses[1]).abs().sum())


def _scaling(
    mass: Tensor,
    total: Tensor,
    excluded: Tensor | None = None,
    largest: Tensor | None = None,
    worst: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Mass / (total − excluded), 0 without mass; and whether the difference kept its digits.

    ``excluded`` is a difference itself, and comes with the sum that it was taken from.
    """
    some = mass > 0
    left = total if excluded is None else total - excluded
    found = torch.where(some, mass / torch.where(some, left, 1.0), 0.0)
    with torch.no_grad():
        good = (left < torch.inf) & (found / left >= torch.finfo(left.dtype).tiny)
        if largest is not None:
            good &= left >= worst * torch.maximum(total, largest)
        return found, (good | ~some).all()


class _Tiles(torch.autograd.Function):
    """A product with tiles that are recomputed, or with those of all processes."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, *how: Any) -> Tensor:
        ctx.how = how
        return _times(how[0], how[1], values, how[2])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        kernel, sign, transposed = ctx.how
        return _times(kernel, sign, gradients[0], not transposed), None, None, None


def _times(kernel: Kernel, sign: int, values: Tensor, transposed: bool = False) -> Tensor:
    """``Σ_j K_ij values_j``, shape (N,), or ``Σ_i K_ij values_i``, (M,), over all processes."""
    scores = kernel.scores
    if sign == 0:
        found = _ones_times(kernel, values, transposed)
    elif transposed:
        found = values.new_zeros(scores.shape[1])
        for rows in kernel.blocks():
            found = found + kernel.power(sign, rows).T @ values[rows]
    else:
        tiles = [kernel.power(sign, rows) @ values for rows in kernel.blocks()]
        found = torch.cat(tiles) if tiles else values.new_zeros(0)
    if transposed and scores.group is not None:
        scores.group.sum_(found)
    return found


def _ones_times(kernel: Kernel, values: Tensor, transposed: bool) -> Tensor:
    scores = kernel.scores
    if scores.symmetric:
        return values.sum() - values
    at, has = scores.own.clamp(min=0), scores.own >= 0
    if not transposed:
        return values.sum() - values[at] * has
    return values.sum() - values.new_zeros(scores.shape[1]).index_add(0, at, values * has)


def _everywhere(kernel: Kernel, flags: list[Tensor]) -> Tensor:
    """Whether all hold, on all processes."""
    lost = (~torch.stack(flags)).sum()
    if kernel.scores.group is not None:
        kernel.scores.group.sum_(lost)
    return lost == 0
