"""The loss of a plan that is read out at its positive pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Variant = Literal["formula", "published"]
VARIANTS = ("formula", "published")


def read_out(log_plan: Tensor, positives: Tensor, variant: str) -> Tensor:
    """The loss of a plan whose rows sum to about one.

    ``"formula"`` is ``−mean log P`` at the positive pairs: inverse optimal transport, that is
    ``KL(P̃ ‖ P)`` up to a constant.

    ``"published"`` is the public CLIP code's ``cross_entropy(P, diagonal)``. It takes the plan
    itself for logits, so that a second softmax flattens numbers between 0 and 1: for N = 256 the
    loss can only move between 4.55 and 5.55.

    Args:
        log_plan: log P, shape (N, M).
        positives: The positive pairs as a mask, shape (N, M). The public code has one per row; the
            mean over all of them is ours.
        variant: ``"formula"`` or ``"published"``.
    """
    if variant == "published":
        log_plan = torch.log_softmax(log_plan.exp(), 1)
    return -torch.where(positives, log_plan, 0.0).sum() / positives.sum()
