"""What a training run needs of its data, checked before it starts."""

from __future__ import annotations

import torch

from tricouple import checks
from tricouple.data.images.sets import ImageData, ImageSet


def check_supervised(data: ImageData) -> None:
    """Require labels, two classes, and two images of every class: an anchor and a positive.

    Raises:
        ValueError: If supervised contrastive learning has nothing to learn from.

    Example:
        >>> from tricouple.data import images
        >>> check_supervised(images.load("digits", train_size=20))
    """
    labels = data.train.labels
    if labels is None:
        raise ValueError(
            f"data {data.name!r} has no labels, which setting=scl needs: sort the images into one "
            "folder a class, or use setting=ucl"
        )
    counts = torch.bincount(labels, minlength=data.n_classes)
    if int((counts > 0).sum()) < 2:
        raise ValueError(f"data {data.name!r} has one class only: negatives need a second")
    single = [data.classes[index] for index in (counts == 1).nonzero().flatten().tolist()]
    if single:
        raise ValueError(
            f"class {single[0]!r} of data {data.name!r} has one training image"
            + (f" (as have {len(single) - 1} others)" if len(single) > 1 else "")
            + ": setting=scl needs a positive for it; add images, raise train_size or use "
            "setting=ucl"
        )


def check_batch_size(images: ImageSet, batch_size: int, *, name: str = "batch_size") -> None:
    """Require a batch of at least two images that the set can fill.

    Args:
        images: The training set.
        batch_size: Images in a batch.
        name: What error messages call ``batch_size``.

    Raises:
        ValueError: If ``batch_size`` is larger than the set, or below 2.

    Example:
        >>> from tricouple.data import images
        >>> check_batch_size(images.load("digits").train, 256)
    """
    checks.count(name, batch_size)
    if batch_size < 2:
        raise ValueError(f"{name} must be at least 2 to hold a negative, got {batch_size}")
    if batch_size > len(images):
        raise ValueError(
            f"{name} is {batch_size}, but there are only {len(images)} training images: "
            f"use {len(images)} or less"
        )
