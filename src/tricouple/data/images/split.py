"""Seeded subsets and splits of image sets that keep the proportions of the classes."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks
from tricouple.data.images.sets import ImageSet
from tricouple.data.stratified import apportion, class_sizes, draw


def subset(images: ImageSet, size: int, seed: int = 0, *, name: str = "size") -> ImageSet:
    """A random subset with the class proportions of the whole, and at least one image a class.

    Args:
        images: The whole set; without labels the subset is drawn uniformly.
        size: How many images to keep.
        seed: Equal seeds give equal subsets.
        name: What error messages call ``size``.

    Example:
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> subset(ten, 4).labels
        tensor([0, 0, 1, 1])
    """
    checks.count(name, size)
    if size > len(images):
        raise ValueError(f"{name} is {size}, but there are only {len(images)} images")
    labels = _strata(images)
    counts = class_sizes(labels)
    if size < len(counts):
        raise ValueError(
            f"{name} is {size}, but there are {len(counts)} classes: "
            f"use {len(counts)} or more, so that each has an image"
        )
    shares = apportion(counts, size, torch.ones_like(counts), counts)
    return images.take(draw(labels, shares, seed).nonzero().flatten())


def split(images: ImageSet, held_out: int | float, seed: int = 0) -> tuple[ImageSet, ImageSet]:
    """Part a set in two, both with the class proportions of the whole.

    Both parts have an image of each class; the only image of a class stays in the first part.

    Args:
        images: The whole set; without labels the split is uniform.
        held_out: Size of the second part: a number of images, or a fraction between 0 and 1.
        seed: Equal seeds give equal splits.

    Returns:
        The rest and the part held out.

    Example:
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> rest, validation = split(ten, 0.4)
        >>> rest.labels, validation.labels
        (tensor([0, 0, 0, 1, 1, 1]), tensor([0, 0, 1, 1]))
    """
    labels = _strata(images)
    most = class_sizes(labels) - 1
    least = most.clamp_max(1)
    low, high = int(least.sum()), int(most.sum())
    if isinstance(held_out, float):
        if not 0 < held_out < 1:
            raise ValueError(
                f"held_out must be a fraction between 0 and 1 or a whole number, got {held_out}"
            )
        size = min(max(round(held_out * len(images)), low), high)
    else:
        checks.count("held_out", held_out)
        size = held_out
    if size == 0 or not low <= size <= high:
        raise ValueError(
            f"held_out is {held_out}, but {len(images)} images of {len(most)} classes can spare "
            f"{low} to {high}, if each class is to be in both parts"
        )
    drawn = draw(labels, apportion(most + 1, size, least, most), seed)
    return images.take((~drawn).nonzero().flatten()), images.take(drawn.nonzero().flatten())


def _strata(images: ImageSet) -> Tensor:
    """The labels; without any, all images are of one class."""
    if images.labels is None:
        return torch.zeros(len(images), dtype=torch.int64)
    return images.labels
