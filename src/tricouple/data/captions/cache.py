"""Decoded pictures, kept on disk: every picture is decoded and resized once."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tricouple.data.captions.pictures import Pictures
from tricouple.data.images.errors import DataError


def decoded(pictures: Pictures, folder: Path) -> Tensor:
    """All pictures as one 8-bit tensor that lies in a file, shape (n, 3, side, side).

    Args:
        pictures: What to decode; if the same ones were decoded before, the file is used.
        folder: Of the cache.

    Raises:
        DataError: If pictures are damaged; it names the first and counts them.
        OSError: If the file cannot be written.
    """
    path = folder / f"{_digest(pictures)}.npy"
    if not path.exists():
        _decode_into(pictures, path)
    # Copy on write: nobody writes, but PyTorch warns of memory that cannot be written.
    return torch.from_numpy(np.load(path, mmap_mode="c"))


def _decode_into(pictures: Pictures, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    damaged: list[DataError] = []

    def read(index: int) -> None:
        try:
            images[index] = pictures.items[index].decode(pictures.side).numpy()
        except DataError as error:
            damaged.append(error)

    try:
        images = np.lib.format.open_memmap(aside, mode="w+", dtype=np.uint8, shape=pictures.shape)
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders work outside Python's lock
            list(pool.map(read, range(len(pictures)), chunksize=64))
        if damaged:
            raise DataError(f"{damaged[0]} ({len(damaged)} of {len(pictures)} are damaged)")
        images.flush()
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)


def _digest(pictures: Pictures) -> str:
    found = hashlib.sha256(str(pictures.side).encode())
    for picture in pictures.items:
        found.update(repr(picture.fingerprint()).encode())
    return found.hexdigest()[:24]
