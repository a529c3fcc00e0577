"""Random draws that keep the proportions of classes."""

from __future__ import annotations

import torch
from torch import Tensor


def class_sizes(labels: Tensor) -> Tensor:
    """How often each label occurs, in the order of the labels.

    Example:
        >>> class_sizes(torch.tensor([7, 3, 7]))
        tensor([1, 2])
    """
    _, counts = torch.unique(labels, return_counts=True)
    sizes: Tensor = counts
    return sizes


def draw(labels: Tensor, shares: Tensor, seed: int) -> Tensor:
    """Draw ``shares[c]`` samples of the c-th class.

    Args:
        labels: Class of each sample, any integers, shape (n,).
        shares: How many to draw of each class that occurs, in the order of ``class_sizes``.
        seed: Equal seeds give equal draws.

    Returns:
        Which samples were drawn, bool of shape (n,).

    Example:
        >>> drawn = draw(torch.tensor([0, 0, 1, 1, 1]), torch.tensor([1, 2]), seed=0)
        >>> drawn[:2].sum(), drawn[2:].sum()
        (tensor(1), tensor(2))
    """
    _, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[codes[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - starts[codes[by_class]]  # place within the own class
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    drawn[by_class] = rank < shares[codes[by_class]]
    return drawn


def apportion(counts: Tensor, size: int, least: Tensor, most: Tensor) -> Tensor:
    """Whole numbers that sum to ``size``, in proportion to the counts and within bounds.

    One by one, the class that lags its exact share most gains, or the one that leads it most loses.

    Args:
        counts: Size of each class, shape (K,).
        size: The sum; between those of ``least`` and ``most``.
        least: The smallest share of each class.
        most: The largest share of each class.

    Example:
        >>> counts = torch.tensor([1, 30, 60])
        >>> apportion(counts, 10, torch.ones_like(counts), counts)
        tensor([1, 3, 6])
    """
    exact = size * counts.double() / counts.sum()
    shares = exact.floor().long().clamp(least, most)
    while (missing := size - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = shares < most if step > 0 else shares > least
        lag = torch.where(room, step * (exact - shares), -torch.inf)
        shares[lag.argmax()] += step
    return shares
