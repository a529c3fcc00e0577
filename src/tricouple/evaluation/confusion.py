"""Which classes are taken for which."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks


def confusion_matrix(labels: Tensor, predictions: Tensor, n_classes: int) -> Tensor:
    """Count how often each class is predicted to be each class.

    Args:
        labels: True classes, from 0 to ``n_classes`` − 1, shape (m,).
        predictions: Predicted classes, shape (m,).
        n_classes: How many classes there are.

    Returns:
        Counts, int64 of shape (n_classes, n_classes): true classes are rows, predictions columns.

    Example:
        >>> confusion_matrix(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]), 2)
        tensor([[1, 1],
                [0, 1]])
    """
    checks.count("n_classes", n_classes)
    checks.identities("predictions", predictions, len(labels), labels.device)
    for name, values in {"labels": labels, "predictions": predictions}.items():
        if len(values) and not 0 <= int(values.min()) <= int(values.max()) < n_classes:
            raise ValueError(f"{name} must be between 0 and n_classes − 1 = {n_classes - 1}")
    cells = torch.bincount(labels * n_classes + predictions, minlength=n_classes**2)
    return cells.reshape(n_classes, n_classes)
