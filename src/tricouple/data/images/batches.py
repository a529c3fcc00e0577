"""Batches of 8-bit images from memory or, through worker processes, from disk."""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tricouple.data.images.sets import ImageSet


def loader(
    images: ImageSet,
    batch_size: int,
    *,
    shuffle: bool = False,
    drop_last: bool = False,
    generator: torch.Generator | None = None,
    workers: int | None = None,
) -> DataLoader[tuple[Tensor, Tensor]]:
    """Batches ``(images, labels)``: uint8 of shape (b, c, h, w) and int64 of shape (b,).

    Args:
        images: The set; labels are −1 if it has none.
        batch_size: How many images a batch holds.
        shuffle: Draw a new order in each epoch.
        drop_last: Leave out a last batch that is smaller than the others.
        generator: Draws the order.
        workers: Processes that decode files; by default one a core, and none for images that are
            in memory, where indexing is all there is to do.

    Example:
        >>> five = ImageSet(torch.zeros(5, 1, 2, 2, dtype=torch.uint8))
        >>> [len(batch) for batch, _ in loader(five, 2)]
        [2, 2, 1]
    """
    if workers is None:
        workers = 0 if images.in_memory else (os.cpu_count() or 1)
    return DataLoader(
        images,
        batch_size,
        shuffle=shuffle,
        drop_last=drop_last,
        generator=generator,
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=_as_it_is,
    )


def _as_it_is(batch: Any) -> Any:
    """Image sets give whole batches already; nothing is left to collate."""
    return batch
