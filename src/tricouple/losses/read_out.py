"""The loss of a plan that is read out at its positive pairs."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

Variant = Literal["formula", "published"]
VARIANTS = ("formula", "published")


def read_out(log_plan: Tensor, target: Tensor, variant: str) -> Tensor:
    """The loss of log P, (N, M), whose rows sum to about one, at the positive pairs of P̃, (N, M).

    ``"formula"`` is ``−Σ P̃ log P``, the mean over them: ``KL(P̃ ‖ P)`` up to a constant.

    ``"published"`` is the public CLIP code's ``cross_entropy(P, diagonal)``. It takes the plan
    itself for logits, numbers between 0 and 1: for N = 256 the loss stays between 4.55 and 5.55.
    The public code has one positive per row; the mean over all of them is ours.
    """
    if variant == "published":
        log_plan = torch.log_softmax(log_plan.exp(), 1)
    return -(target * torch.where(target > 0, log_plan, 0.0)).sum()
