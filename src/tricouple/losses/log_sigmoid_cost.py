"""The mean log-sigmoid cost of the admissible triplets, without listing them.

By Frullani's integral ``log(1 + e^{y−x}) = ∫ exp(−e^{x+v}) (1 − exp(−e^{y+v})) dv``: a function of
x times a function of y for every v. So a sum over all (positive, negative) pairs of an anchor is a
product of two sums, and the trapezoid rule makes the mean over A an O(Q·N²) matter.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.losses.shaped_cost import listed_margins
from tricouple.relations import ListedTriplets
from tricouple.shaping import log_sigmoid

# The integrand is analytic in a strip: the error of this step is e^{−π²/step} ≈ 3e-9, relative.
_STEP = 0.5
_TAIL = 1e-11


def mean_log_sigmoid_cost(batch: Batch, scores: Tensor) -> Tensor:
    """``Σ_A log(1 + e^{−(x_ij − x_ik)}) / |A|``.

    Args:
        batch: The batch, with at least one admissible triplet.
        scores: x = s/τ, shape (N, M).
    """
    relation = batch.relation
    if isinstance(relation, ListedTriplets):
        return log_sigmoid(listed_margins(relation, scores)).mean()
    positives = relation.attracting().pairs.mask()
    negatives = relation.repelling().pairs.mask()
    total: Tensor = _PairwiseSum.apply(scores, positives, negatives)  # type: ignore[no-untyped-call]
    return total / relation.n_triplets


class _PairwiseSum(torch.autograd.Function):
    """``Σ_i Σ_{j positive, k negative} log(1 + e^{−(x_ij − x_ik)})``."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
        lowest, highest = (float(end) for end in torch.aminmax(scores))
        depth = -math.log(_TAIL)
        start = -highest - depth
        stop = -lowest + math.log(depth + highest - lowest)
        total = scores.new_zeros(())
        gradient = torch.zeros_like(scores)
        plus, minus = positives.to(scores.dtype), negatives.to(scores.dtype)
        for number in range(math.ceil((stop - start) / _STEP) + 1):
            rate = torch.exp(scores + (start + _STEP * number))
            survival = torch.exp(-rate)
            near = (survival * plus).sum(1, keepdim=True)
            far = (-torch.expm1(-rate) * minus).sum(1, keepdim=True)
            total += _STEP * (near * far).sum()
            # Far out the rate overflows where the survival is exactly zero.
            density = torch.where(survival > 0, rate * survival, 0.0)
            gradient += _STEP * density * (minus * near - plus * far)
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = gradients
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None, None
