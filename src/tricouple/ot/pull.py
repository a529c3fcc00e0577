"""From the gradient of scores to that of the embeddings whose products they are."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.sweeps.plan import ScoreGradient

# Up to this many samples it is cheaper to add a gradient to its transpose than to multiply twice.
_SMALL = 1024


def pull(
    gradient: ScoreGradient, factor: float, anchors: Tensor, references: Tensor, *, slope: bool
) -> tuple[tuple[Tensor, Tensor | None], Tensor | None]:
    """Chain with ``score_ij = factor · ⟨anchors_i, references_j⟩``, a tile at a time.

    Args:
        gradient: With respect to the scores, shape (N, M).
        factor: The factor.
        anchors: Shape (N, d).
        references: Shape (M, d); the same tensor within one set.
        slope: Whether the gradient with respect to the factor is wanted.

    Returns:
        The gradients with respect to anchors and references, and to the factor (wide dtype).
        Within one set the first may be the sum of both; then the second is None.
    """
    with torch.inference_mode(False):  # they become somebody's gradients
        to_anchors, to_references = torch.empty_like(anchors), torch.zeros_like(references)
    for rows, tile, columns in gradient:
        part = tile.to(anchors.dtype)
        if anchors is references and part.shape[0] == len(anchors) <= _SMALL:
            torch.mm(part + part.T, anchors, out=to_anchors)
            to_factor = _inner(anchors, to_anchors) / 2 if slope else None
            return (to_anchors.mul_(factor), None), to_factor
        torch.mm(part, references[columns], out=to_anchors[rows])
        to_references[columns].addmm_(part.T, anchors[rows])
    to_factor = _inner(anchors, to_anchors) if slope else None
    return (to_anchors.mul_(factor), to_references.mul_(factor)), to_factor


def _inner(left: Tensor, right: Tensor) -> Tensor:
    wide = wide_dtype(left.device)
    return torch.dot(left.flatten().to(wide), right.flatten().to(wide))
