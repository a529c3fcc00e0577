"""InfoNCE: SupCon for labels, NT-Xent for views, one direction of CLIP across."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from tricouple import checks
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch
from tricouple.numeric import inverse_product


class InfoNCE(ContrastiveLoss):
    """The contrastive cross-entropy that most methods share.

    For each anchor, minus the mean over its positives of ``log softmax(s/τ)`` over all others;
    then the mean over the anchors that have a positive (some public code counts the rest as zeros).

    One formula, three names: SupCon for class labels, NT-Xent for two views, and across modalities
    one direction of CLIP, with every reference of the anchor's identity as a positive. The
    symmetric CLIP loss is the mean of both directions. With explicit triplets the positives are the
    distinct listed (anchor, positive) pairs; the softmax is still over all others.

    Args:
        temperature: τ; a number, or a tensor or ``nn.Parameter`` that receives its gradient.
        empty: ``"raise"`` or ``"zero"`` for batches without an anchor that has both a positive and
            a negative.

    Example:
        >>> criterion = InfoNCE(temperature=0.1)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    def __init__(self, temperature: float | Tensor = 0.1, *, empty: str = "raise") -> None:
        super().__init__(empty=empty)
        checks.positive_number("temperature", temperature)
        self.temperature = temperature

    def compute(self, batch: Batch) -> Tensor:
        """Σ_i w_i log Σ_j exp(s_ij/τ) − ⟨P̃, s⟩/τ, with P̃_ij = w_i/n⁺_i at the positives."""
        checks.positive_number("temperature", self.temperature)
        target = batch.relation.per_anchor()
        sharpness = inverse_product(self.temperature, 1.0)
        weights = target.marginals[0]
        partition = _log_partition(batch.similarity(), sharpness, weights, batch.within)
        return (partition - sharpness * batch.inner(target)).to(batch.dtype)

    def extra_repr(self) -> str:
        """The settings, for printing."""
        tau = "learnable" if isinstance(self.temperature, nn.Parameter) else self.temperature
        return f"temperature={tau}"


def _log_partition(
    similarity: Tensor, sharpness: float | Tensor, weights: Tensor, within: bool
) -> Tensor:
    """``Σ_i w_i log Σ_j exp(sharpness · s_ij)``, without j = i within one set; wide dtype."""
    return _LogPartition.apply(similarity, sharpness, weights, within)  # type: ignore[no-any-return, no-untyped-call]


class _LogPartition(torch.autograd.Function):
    """One N×M matrix is kept for the gradient, where autograd would keep three."""

    @staticmethod
    def forward(
        ctx: Any, similarity: Tensor, sharpness: float | Tensor, weights: Tensor, within: bool
    ) -> Tensor:
        factor = float(sharpness)
        scores = similarity * factor
        if within:
            scores.fill_diagonal_(-torch.inf)
        peaks = scores.amax(1, keepdim=True)
        scores.sub_(peaks).exp_()
        totals = scores.sum(1, keepdim=True)
        logs = (peaks + totals.log())[:, 0].to(weights.dtype)
        scores.mul_(weights.to(scores.dtype)[:, None] / totals)  # now w_i softmax_ij
        ctx.slope = None
        if isinstance(sharpness, Tensor) and ctx.needs_input_grad[1]:
            by_anchor = torch.einsum("ij,ij->i", scores, similarity)
            ctx.slope = by_anchor.to(weights.dtype).sum().to(sharpness.dtype)
        ctx.factor = factor
        ctx.save_for_backward(scores)
        return weights @ logs

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (gradient,) = gradients
        (softmax,) = ctx.saved_tensors
        slope = None if ctx.slope is None else (gradient * ctx.slope).to(ctx.slope.dtype)
        return softmax * (gradient * ctx.factor).to(softmax.dtype), slope, None, None
