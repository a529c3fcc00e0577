"""Self-supervised batches: several views of the same instances as one labelled batch."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks


def pair_views(*views: Tensor) -> tuple[Tensor, Tensor]:
    """Stack views and number their instances, ready for any loss.

    Args:
        views: Two or more tensors of shape (N, d); row i of each is a view of instance i.

    Returns:
        Embeddings, shape (views·N, d), and the instance of each row, shape (views·N,).

    Example:
        >>> embeddings, identities = pair_views(torch.zeros(2, 3), torch.ones(2, 3))
        >>> identities
        tensor([0, 1, 0, 1])
    """
    if len(views) < 2:
        raise ValueError(f"pair_views needs at least 2 views of each instance, got {len(views)}")
    for number, view in enumerate(views):
        checks.matrix(f"view {number}", view)
        if view.shape != views[0].shape:
            raise ValueError(
                f"view {number} has shape {tuple(view.shape)}, view 0 {tuple(views[0].shape)}: "
                "row i of every view must belong to instance i"
            )
    identities = torch.arange(len(views[0]), device=views[0].device)
    return torch.cat(views), identities.repeat(len(views))
