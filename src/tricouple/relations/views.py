"""Several views as one labelled batch, and weights of classes."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.groups import Group, Processes
from tricouple.numeric import divide_or_zero


def pair_views(*views: Tensor | Sequence[Tensor], group: Group = None) -> tuple[Tensor, Tensor]:
    """Stack views and number their instances, ready for any loss.

    Args:
        views: Two or more tensors of shape (N, d), or one list of them; row i of each is a view of
            instance i.
        group: Processes whose instances are numbered together, as in every loss.

    Returns:
        Embeddings, shape (views·N, d), and the instance of each row, shape (views·N,).

    Example:
        >>> embeddings, labels = pair_views(torch.zeros(2, 3), torch.ones(2, 3))
        >>> labels
        tensor([0, 1, 0, 1])
    """
    processes = Processes.of(group)
    try:
        several = _checked_views(views, empty=processes is not None)
    except (TypeError, ValueError) as error:
        if processes is not None:
            processes.before(0, str(error))  # raises it on all of them
        raise
    n = len(several[0])
    first = 0 if processes is None else processes.before(n)
    identities = torch.arange(first, first + n, device=several[0].device)
    return torch.cat(tuple(several)), identities.repeat(len(several))


def class_weights(labels: checks.Labels) -> Tensor:
    """One weight per class, the inverse of its count, with mean one over the classes that occur.

    Args:
        labels: Classes of the training set, shape (N,), integers from 0 on.

    Returns:
        Shape (largest label + 1,), for ``criterion(embeddings, labels, weights=weights[labels])``.

    Example:
        >>> class_weights([0, 0, 0, 1])
        tensor([0.5000, 1.5000])
    """
    given = torch.as_tensor(labels)
    given = checks.labels("labels", given, given.numel(), given.device)
    if not given.numel() or int(given.min()) < 0:
        raise ValueError(f"labels must be integers from 0 on, one at least, got {given}")
    counts = torch.bincount(given).float()
    weights = divide_or_zero(torch.ones_like(counts), counts)
    return weights / weights[counts > 0].mean()


def _checked_views(views: Sequence[Any], *, empty: bool) -> Sequence[Tensor]:
    one_list = len(views) == 1 and isinstance(views[0], list | tuple)
    several = views[0] if one_list else views
    if len(several) < 2:
        raise ValueError(f"pair_views needs at least 2 views of each instance, got {len(several)}")
    first = several[0]
    for number, view in enumerate(several):
        checks.matrix(f"view {number}", view, empty=empty)
        if view.shape != first.shape:
            raise ValueError(
                f"view {number} has shape {tuple(view.shape)}, view 0 {tuple(first.shape)}: "
                "row i of every view must belong to instance i"
            )
    return several
