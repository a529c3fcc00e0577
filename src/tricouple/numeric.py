"""Small numerical helpers shared by the couplings and the losses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tricouple.memory import empty_matrix


def wide_dtype(device: torch.device) -> torch.dtype:
    """The dtype of O(N) vectors whose large parts cancel: float64 wherever the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def exponential_(logs: Tensor) -> Tensor:
    """``exp`` in place, and exactly 0 for what is hardly above the smallest normal number.

    The vectorised exponential takes ten times as long where its result underflows.
    """
    tiny = torch.finfo(logs.dtype).tiny
    logs.clamp_(min=math.log(2 * tiny)).exp_()
    return torch.threshold_(logs, 3 * tiny, 0.0)


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype of N×N work: half-precision inputs are computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def inverse_product(temperature: float | Tensor, epsilon: float) -> float | Tensor:
    """The sharpness c = 1/(τε); a tensor τ of any one-element shape gives a scalar tensor."""
    if isinstance(temperature, Tensor):
        temperature = temperature.reshape(())
    return 1 / (temperature * epsilon)


def divide_or_zero(numerator: Tensor, denominator: Tensor) -> Tensor:
    """``numerator / denominator``, and 0 where the denominator is 0 (a sample without mass)."""
    return torch.where(denominator > 0, numerator / denominator, numerator.new_zeros(()))


def expectation(masses: Tensor, values: Tensor) -> Tensor:
    """``Σ masses · values`` with the convention ``0 · (±∞) = 0``; the masses are constants."""
    return _Expectation.apply(masses, values)  # type: ignore[no-any-return, no-untyped-call]


class _Expectation(torch.autograd.Function):
    """Small batches spend their time between operations: this has few."""

    @staticmethod
    def forward(ctx: Any, masses: Tensor, values: Tensor) -> Tensor:
        ctx.save_for_backward(masses)
        return torch.dot(masses, values.masked_fill(masses == 0, 0.0))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, Tensor]:
        (masses,) = ctx.saved_tensors
        return None, gradients[0] * masses


def unit_rows(values: Tensor, norms: Tensor) -> Tensor:
    """``values / norms``, where ``norms`` are the rows' norms, shape (N, 1)."""
    return _UnitRows.apply(values, norms)  # type: ignore[no-any-return, no-untyped-call]


class _UnitRows(torch.autograd.Function):
    """The gradient in three operations: what is orthogonal to the row, divided by its norm."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, norms: Tensor) -> Tensor:
        unit = values / norms
        ctx.save_for_backward(unit, norms)
        return unit

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,) = gradients
        unit, norms = ctx.saved_tensors
        along = torch.linalg.vecdot(unit, gradient).unsqueeze(1)
        return torch.addcmul(gradient, unit, along, value=-1) / norms, None


def uniform(sizes: Sequence[int], like: Tensor) -> Tensor:
    """Uniform marginals of several axes, one after the other in one vector."""
    if len(set(sizes)) == 1:
        return like.new_full((sum(sizes),), 1 / sizes[0])
    return torch.cat([like.new_full((size,), 1 / size) for size in sizes])


# Up to this many samples it is cheaper to add a gradient to its transpose than to multiply twice.
_SMALL = 1024


def cosines(anchors: Tensor, references: Tensor) -> Tensor:
    """Inner products of all pairs, shape (N, M)."""
    product: Tensor = _Products.apply(anchors, references)  # type: ignore[no-untyped-call]
    return product


class _Products(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchors: Tensor, references: Tensor) -> Tensor:
        ctx.save_for_backward(anchors, references)
        ctx.same = anchors is references
        out = empty_matrix(anchors, len(anchors), len(references))
        return torch.mm(anchors, references.T, out=out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        anchors, references = ctx.saved_tensors
        if ctx.same and len(anchors) <= _SMALL:
            # Both arguments are one tensor, which receives the sum of what is returned.
            return (gradient + gradient.T) @ anchors, None
        return gradient @ references, gradient.T @ anchors
