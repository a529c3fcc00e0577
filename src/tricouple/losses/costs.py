"""The mean cost of the admissible triplets, without listing them; a plan read at its positives."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.relations import ListedTriplets
from tricouple.shaping import Margins, Shaping, log_sigmoid

VARIANTS = ("formula", "published")

# The integrand is analytic in a strip: the error of this step is e^{−π²/step} ≈ 3e-9, relative.
_STEP = 0.5
_TAIL = 1e-11


def mean_cost(batch: Batch, scores: Tensor, psi: Shaping, memory_budget: float) -> Tensor:
    """``Σ_A ψ(x_ij − x_ik) / |A|``.

    Args:
        batch: The batch, with at least one admissible triplet.
        scores: x = s/τ, shape (N, M).
        psi: ψ.
        memory_budget: Bytes for the costs of some anchors at a time.
    """
    relation = batch.relation
    if isinstance(relation, ListedTriplets):
        return psi(listed_margins(relation, scores)).mean()
    positives = relation.attracting().pairs.mask()
    negatives = relation.repelling().pairs.mask()
    margins = Margins(scores.detach(), psi, memory_budget)
    total: Tensor = _TripletSum.apply(scores, margins, positives, negatives)  # type: ignore[no-untyped-call]
    return total / relation.n_triplets


def listed_margins(relation: ListedTriplets, scores: Tensor) -> Tensor:
    """``x_ij − x_ik`` of each listed triplet."""
    positives = scores[relation.anchors, relation.positive_indices]
    return positives - scores[relation.anchors, relation.negative_indices]


class _TripletSum(torch.autograd.Function):
    """``Σ_i Σ_{j positive, k negative} ψ(x_ij − x_ik)``, with the gradient from the same pass."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, margins: Margins, positives: Tensor, negatives: Tensor
    ) -> Tensor:
        total = scores.new_zeros(())
        gradient = torch.zeros_like(scores) if ctx.needs_input_grad[0] else None
        for block in margins.blocks:
            other = ~(positives[block, :, None] & negatives[block, None, :])
            total += margins.costs(block).masked_fill_(other, 0.0).sum()
            if gradient is not None:
                slopes = margins.slopes(block).masked_fill_(other, 0.0)
                torch.sub(slopes.sum(2), slopes.sum(1), out=gradient[block])
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = gradients
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None, None, None


def mean_log_sigmoid_cost(batch: Batch, scores: Tensor) -> Tensor:
    """``Σ_A log(1 + e^{−(x_ij − x_ik)}) / |A|``, in O(Q·N²).

    By Frullani's integral ``log(1 + e^{y−x}) = ∫ exp(−e^{x+v}) (1 − exp(−e^{y+v})) dv``: a function
    of x times a function of y for every v. So a sum over all (positive, negative) pairs of an
    anchor is a product of two sums, and the trapezoid rule takes Q of them.

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


def read_out(log_plan: Tensor, positives: Tensor, variant: str) -> Tensor:
    """The loss of a plan whose rows sum to about one.

    ``"formula"`` is ``−mean log P`` at the positive pairs: inverse optimal transport, that is
    ``KL(P̃ ‖ P)`` up to a constant.

    ``"published"`` is the public CLIP code's ``cross_entropy(P, diagonal)``. It takes the plan
    itself for logits, so that a second softmax flattens numbers between 0 and 1: for N = 256 the
    loss can only move between 4.55 and 5.55.

    Args:
        log_plan: log P, shape (N, M).
        positives: The positive pairs as a mask, shape (N, M). The public code knows one a row; the
            mean over all of them is ours.
        variant: ``"formula"`` or ``"published"``.
    """
    if variant == "published":
        log_plan = torch.log_softmax(log_plan.exp(), 1)
    return -log_plan[positives].mean()
