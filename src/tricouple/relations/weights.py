"""Weights of classes from the counts of a training set."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import divide_or_zero


def class_weights(labels: checks.Labels) -> Tensor:
    """One weight per class, the inverse of its count, with mean one over the classes that occur.

    Args:
        labels: Classes of the training set, shape (N,), integers from 0 on.

    Returns:
        Shape (largest label + 1,), float32, 0 for a class that does not occur. A call takes those
        of its own samples: ``criterion(embeddings, labels, weights=weights[labels])``.

    Example:
        >>> class_weights([0, 0, 0, 1])
        tensor([0.5000, 1.5000])
    """
    given = torch.as_tensor(labels)
    given = checks.labels("labels", given, given.numel(), given.device)
    if not len(given) or int(given.min()) < 0:
        found = int(given.min()) if len(given) else "none"
        raise ValueError(f"labels must be integers from 0 on, at least one, got {found}")
    counts = torch.bincount(given).float()
    weights = divide_or_zero(torch.ones_like(counts), counts)
    return weights / weights[counts > 0].mean()
