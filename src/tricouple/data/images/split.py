"""Seeded subsets and splits that keep the proportions of the classes."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch
from torch import Tensor

from tricouple import checks


class Samples(Protocol):
    """A set of images or texts."""

    noun: str  # what its samples are called

    @property
    def labels(self) -> Tensor | None:
        """The class of each, shape (n,); None if unknown."""

    def __len__(self) -> int:
        """How many there are."""

    def take(self: S, indices: Tensor) -> S:
        """A smaller set, of the samples at some positions."""


S = TypeVar("S", bound=Samples)


def subset(samples: S, size: int, seed: int = 0, *, name: str = "size") -> S:
    """A random subset with the class proportions of the whole, and at least one sample a class.

    Args:
        samples: The whole set; without labels the subset is drawn uniformly.
        size: How many samples to keep.
        seed: Equal seeds give equal subsets.
        name: What error messages call ``size``.

    Example:
        >>> from tricouple.data.images.sets import ImageSet
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> subset(ten, 4).labels
        tensor([0, 0, 1, 1])
    """
    checks.count(name, size)
    if size > len(samples):
        raise ValueError(f"{name} is {size}, but there are only {len(samples)} {samples.noun}")
    labels = _strata(samples)
    n_classes = len(labels.unique())
    if size < n_classes:
        raise ValueError(
            f"{name} is {size}, but there are {n_classes} classes: "
            f"use {n_classes} or more, so that each has one"
        )
    return samples.take(stratified(labels, size, seed, least=1).nonzero().flatten())


def split(
    samples: S, held_out: int | float, seed: int = 0, *, name: str = "held_out"
) -> tuple[S, S]:
    """Part a set in two, both with the class proportions of the whole.

    Both parts have a sample of each class; the only sample of a class stays in the first part.

    Args:
        samples: The whole set; without labels the split is uniform.
        held_out: Size of the second part: a number of samples, or a fraction between 0 and 1.
        seed: Equal seeds give equal splits.
        name: What error messages call ``held_out``.

    Returns:
        The rest and the part held out.

    Example:
        >>> from tricouple.data.images.sets import ImageSet
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> rest, validation = split(ten, 0.4)
        >>> rest.labels, validation.labels
        (tensor([0, 0, 0, 1, 1, 1]), tensor([0, 0, 1, 1]))
    """
    labels = _strata(samples)
    most = labels.unique(return_counts=True)[1] - 1
    low, high = int(most.clamp_max(1).sum()), int(most.sum())
    if isinstance(held_out, float):
        if not 0 < held_out < 1:
            raise ValueError(
                f"{name} must be a fraction between 0 and 1 or a whole number, got {held_out}"
            )
        size = min(max(round(held_out * len(samples)), low), high)
    else:
        checks.count(name, held_out)
        size = held_out
    if size == 0 or not low <= size <= high:
        raise ValueError(
            f"{name} is {held_out}, but {len(samples)} {samples.noun} of {len(most)} classes can "
            f"spare {low} to {high}, if each class is to be in both parts"
        )
    drawn = stratified(labels, size, seed, least=1, left=1)
    return samples.take((~drawn).nonzero().flatten()), samples.take(drawn.nonzero().flatten())


def stratified(labels: Tensor, size: int, seed: int, *, least: int = 0, left: int = 0) -> Tensor:
    """Draw samples in the proportions of their classes.

    By hand, since scikit-learn's stratified splits draw other samples than the stored studies did,
    and refuse classes of one sample.

    Args:
        labels: Class of each sample, any integers, shape (n,).
        size: How many samples to draw.
        seed: Equal seeds give equal draws.
        least: Samples to draw of every class that has them to spare.
        left: Samples of each class that are never drawn.

    Returns:
        Which samples were drawn, bool of shape (n,).

    Example:
        >>> labels = torch.tensor([0] + [1] * 30 + [2] * 60)
        >>> labels[stratified(labels, 10, seed=0, least=1)].bincount()
        tensor([1, 3, 6])
    """
    _, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    most = counts - left
    bottom = most.clamp_max(least)
    exact = size * counts.double() / counts.sum()
    shares = exact.floor().long().clamp(bottom, most)
    # One by one, the class that lags its exact share most gains, or that which leads it most loses.
    while (missing := size - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = shares < most if step > 0 else shares > bottom
        lag = torch.where(room, step * (exact - shares), -torch.inf)
        shares[lag.argmax()] += step
    shuffled = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    by_class = shuffled[codes[shuffled].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - starts[codes[by_class]]  # place within the own class
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    drawn[by_class] = rank < shares[codes[by_class]]
    return drawn


def _strata(samples: Samples) -> Tensor:
    """The labels; without any, all samples are of one class."""
    if samples.labels is None:
        return torch.zeros(len(samples), dtype=torch.int64)
    return samples.labels
