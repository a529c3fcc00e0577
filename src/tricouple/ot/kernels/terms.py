"""Balanced kernels of separable terms: one row for each term and anchor."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels.balanced import BalancedKernel
from tricouple.ot.kernels.quadrature import Terms


def balance_terms(
    scores: Tensor, terms: Terms, *, within: bool
) -> tuple[BalancedKernel, BalancedKernel, Tensor]:
    """Kernels of all factors, shape (Q·N, M) each, and the shift of each anchor.

    Rows of one anchor belong to different terms and are added up after multiplying those of the
    two kernels; they are brought to a common scale, half of it on each side, so that the weight of
    a term is in its entries.

    Args:
        scores: x = s/τ, shape (N, M).
        terms: The separable terms.
        within: Exclude the diagonal.
    """
    shape = (len(terms.nodes), *scores.shape)
    attract, repel = scores.new_empty(shape), scores.new_empty(shape)
    for number, node in enumerate(terms.nodes):
        attract[number] = terms.attract(scores, node)
        repel[number] = terms.repel(scores, node)
    if within:
        for logs in (attract, repel):
            logs.diagonal(dim1=1, dim2=2).fill_(-torch.inf)
    lowest = torch.finfo(scores.dtype).min / 4  # stands for −∞ where a factor underflows for all
    tops = [logs.amax(2).clamp_min_(lowest) for logs in (attract, repel)]  # (Q, N) each
    peak = tops[0] + tops[1]
    anchor_shift = -peak.amax(0)  # (N,)
    weight = (peak + anchor_shift) / 2
    kernels = []
    for logs, top in zip((attract, repel), tops, strict=True):
        logs += (weight - top)[:, :, None]
        top_columns = logs.amax((0, 1)).clamp_min_(lowest)
        logs -= top_columns
        wide = wide_dtype(logs.device)
        rows = (weight - top).flatten().to(wide)
        matrix = logs.exp_().view(-1, scores.shape[1])
        kernels.append(BalancedKernel(matrix, rows, -top_columns.to(wide)))
    return kernels[0], kernels[1], anchor_shift.to(wide_dtype(scores.device))
