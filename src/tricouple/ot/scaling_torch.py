"""The fast run in PyTorch, for devices and for hosts without the compiled module.

A step on a GPU costs what it writes and launches. Sweeps by rows write about forty N×N matrices
each; these write E and 1/E once and read one matrix per product. All else is vectors, and autograd
differentiates it: the backward pass of each product leaves one factor of ∂L/∂E with the kernel. On
a device nothing is read back: ``kernel.kept`` is a flag there, false if digits were lost.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from tricouple.numeric import divide_or_zero, on_host
from tricouple.ot.rows import Vectors

if TYPE_CHECKING:
    from tricouple.ot.forms import Forces
    from tricouple.ot.scaling import Kernel, Scaling


@dataclass
class TorchSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    start: Vectors  # scalings before the first sweep
    scalings: Vectors  # after the last
    number: int | Tensor

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return self.run.potentials([scaling.detach() for scaling in self.scalings])

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        ends = zip(cotangents, self.scalings, strict=True)
        weights = [divide_or_zero(cotangent, scaling.detach()) for cotangent, scaling in ends]
        found = torch.autograd.grad(
            self.scalings, self.start, weights, retain_graph=True, materialize_grads=True
        )
        kernel = self.run.kernel
        for sign, pairs in kernel.alone.items():
            left, right = (torch.stack(sides) for sides in zip(*pairs, strict=True))
            left = (left * kernel.meets * right.sum(1, keepdim=True)).sum(0, keepdim=True)
            kernel.add(sign, left, kernel.sides[:, 1][None])
        kernel.alone.clear()
        return [to * scaling.detach() for to, scaling in zip(found, self.start, strict=True)]


def sweeps(
    run: Scaling, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
) -> tuple[TorchSweeps | None, bool]:
    """All sweeps until the tolerance is met; on a host none if they lose digits."""
    kernel, host, axes = run.kernel, on_host(masses[0]), run.form.axes
    sweep = _pair_sweep if axes == 2 else _triplet_sweep
    kept = masses[0].new_ones((), dtype=torch.bool)
    late, number = ~kept, kept.long() * 0
    # Checkpoints replace what a graph saves, but this graph ends before. A saved output that
    # were not detached would keep itself alive.
    with torch.set_grad_enabled(kernel.wanted), saved_tensors_hooks(Tensor.detach, lambda x: x):
        first = [scaling.requires_grad_(kernel.wanted) for scaling in run.scalings(start)]
        state = first if axes == 2 else [*first, _product(kernel, 1, kernel.split(first[1]))]
        for step in range(most):
            after, good = sweep(run, masses, state)
            if tol is not None and (later or step):  # what comes after the end does not count
                late = late | (_error(kernel, masses, state, after) <= tol)
                if host and bool(late):
                    break
                pairs = zip(state, after, strict=True)
                after = [torch.where(late, old, new) for old, new in pairs]
            kept, number, state = kept & (good | late), number + ~late, after
    kept = kernel.scores.shared((~kept).long()) == 0
    swept = most if tol is None else int(number) if host else number
    done = TorchSweeps(run, first, state[:axes], swept)
    if not host:
        kernel.kept = kept if kernel.kept is None else kept & kernel.kept
        return done, True
    return (done if bool(kept) and done.number else None), bool(kept)


def _triplet_sweep(run: Scaling, masses: Vectors, state: Vectors) -> tuple[Vectors, Tensor]:
    """a, b, h and r⁺ = E b after one more sweep (mathematics §2); whether digits were kept.

    One reference is apart: r⁺ and r⁻, (N, 2), are sums over the others, and its own terms.
    """
    kernel, worst, (_, b, h, near) = run.kernel, run.worst, state
    far = _product(kernel, -1, kernel.split(h))
    (near0, x), (far0, y), h0 = near.unbind(1), far.unbind(1), h * kernel.sides[:, 0]
    taken: Vectors = [_product(kernel, 0, b * h0), (b * h0).sum(), near0 * y + x * far0]
    a, first = _scaling(masses[0], near0 * far0, taken, worst)  # marginal 1
    outside = _product(kernel, 0, a, True)
    total = outside.detach().amax()
    taken = [h0 * outside, h0 * total]
    b1, second = _scaling(masses[1], _columns(kernel, 1, a, far), taken, worst)  # marginal 2
    near1, b0 = _product(kernel, 1, kernel.split(b1)), b1 * kernel.sides[:, 0]
    taken = [b0 * outside, b0 * total]
    h1, third = _scaling(masses[2], _columns(kernel, -1, a, near1), taken, worst)  # marginal 3
    return [a, b1, h1, near1], first & second & third


def _columns(kernel: Kernel, sign: int, a: Tensor, sums: Tensor) -> Tensor:
    """Columns with the weights a · sums; the one apart without its own terms."""
    weights = a[:, None] * torch.stack([sums.sum(1), sums[:, 0]], 1)
    return (_product(kernel, sign, weights, True) * kernel.sides).sum(1)


def _pair_sweep(run: Scaling, masses: Vectors, state: Vectors) -> tuple[Vectors, Tensor]:
    """U = p¹/(E v), v = p²/(Eᵀ u) (mathematics §5)."""
    kernel, sign = run.kernel, run.form.sign
    u, first = _scaling(masses[0], _product(kernel, sign, state[1]))
    v, second = _scaling(masses[1], _product(kernel, sign, u, True))
    return [u, v], first & second


@torch.no_grad()
def _error(kernel: Kernel, masses: Vectors, state: Vectors, after: Vectors) -> Tensor:
    """The L1 error of the marginals that can be off before a sweep."""
    before, a = state[0], after[0]
    first = kernel.scores.shared(divide_or_zero(masses[0] * (before - a).abs(), a).sum())
    if len(masses) == 2:
        return first
    b, h = state[1:3]
    received = _columns(kernel, 1, before, _times(kernel, -1, kernel.split(h)))
    received = b * (received - h * kernel.sides[:, 0] * _times(kernel, 0, before, True))
    return torch.maximum(first, (received - masses[1]).abs().sum())


def _scaling(
    mass: Tensor, total: Tensor, apart: Vectors | None = None, worst: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Mass / (total − apart), 0 without mass; and whether the difference kept its digits.

    What is apart is a difference itself, comes with the sum that it was taken from, and with what
    is not taken.
    """
    left = total if apart is None else sum(apart[2:], total - apart[0])
    empty = mass == 0
    found: Tensor = _Quotient.apply(mass, left.masked_fill(empty, 1.0))  # type: ignore[no-untyped-call]
    with torch.no_grad():
        good = (left < torch.inf) & (found / left >= torch.finfo(left.dtype).tiny)
        if apart is not None:
            good &= left >= worst * torch.maximum(total, apart[1])
        return found, (good | empty).all()


class _Quotient(torch.autograd.Function):
    """Mass / sum; its derivative does not square the sum, which may be e^385 or its inverse."""

    @staticmethod
    def forward(ctx: Any, mass: Tensor, total: Tensor) -> Tensor:
        ctx.total, ctx.found = total.detach(), mass / total
        return ctx.found.detach()  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        return None, gradients[0] * -ctx.found / ctx.total


def _product(kernel: Kernel, sign: int, values: Tensor, transposed: bool = False) -> Tensor:
    """``_times``, differentiable."""
    return _Product.apply(values, kernel, sign, transposed)  # type: ignore[no-any-return, no-untyped-call]


class _Product(torch.autograd.Function):
    """∂L/∂E is the gradient of the product times what was multiplied: a factor for the kernel."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, kernel: Kernel, sign: int, transposed: bool) -> Tensor:
        ctx.how = kernel, sign, values.detach(), transposed
        return _times(kernel, sign, values, transposed)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        kernel, sign, values, transposed = ctx.how
        (to,) = gradients
        if sign != 0:
            left, right = (values, to) if transposed else (to, values)
            if left.ndim == 2:  # column o of all products is one more
                kernel.alone.setdefault(sign, []).append((left[:, 1], right[:, 1]))
                left, right = left[:, 0], right[:, 0]
            kernel.add(sign, left[None], right[None])
        return _times(kernel, sign, to, not transposed), None, None, None


def _times(kernel: Kernel, sign: int, values: Tensor, transposed: bool = False) -> Tensor:
    """``Σ_j K_ij values_j``, shape (N, …), or ``Σ_i K_ij values_i``, (M, …), over all processes.

    K is E, 1/E (sign −1) or the matrix of ones (0), without the entries (i, own_i).
    """
    scores, (n, m) = kernel.scores, kernel.scores.shape
    if sign == 0:
        at, has = kernel.own
        own = values.new_zeros(m).index_add(0, at, values * has) if transposed else values[at] * has
        found = values.sum() - own
    elif kernel.whole:
        matrix = kernel.matrix if sign > 0 else kernel.inverse
        matrix = matrix if transposed else matrix.T
        found = (values.t() @ matrix).t()  # two columns are slow on the other side of a matrix
    else:
        found = values.new_zeros(m if transposed else n, *values.shape[1:])
        for rows in scores.blocks():
            tile = kernel.rows(rows)
            tile = tile if sign > 0 else reciprocal(tile)
            if transposed:
                found += tile.T @ values[rows]
            else:
                found[rows] = tile @ values
    return scores.shared(found) if transposed else found


def reciprocal(e: Tensor) -> Tensor:
    """1/E, 0 where E is 0."""
    return torch.where(e > 0, e.reciprocal(), 0.0)
