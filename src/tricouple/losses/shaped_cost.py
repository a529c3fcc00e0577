"""The mean cost of the admissible triplets for any ψ, a few anchors at a time."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tricouple.losses.batch import Batch
from tricouple.ot.sweeps.margins import Margins
from tricouple.relations import ListedTriplets
from tricouple.shaping import Shaping


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
