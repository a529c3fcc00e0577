"""Image files as a tensor that is decoded when it is indexed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tricouple.data.images.errors import DataError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MEMORY_BUDGET = 2 << 30  # bytes of decoded images; larger sets are decoded batch by batch

_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")


@dataclass(frozen=True)
class Header:
    """What the first bytes of an image file tell."""

    short_side: int
    grey: bool


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk that answer ``files[indices]`` like a tensor of shape (n, c, size, size).

    Each image is scaled until its short side is ``size`` and cut to the square in its centre.

    Attributes:
        paths: One file an image.
        channels: 1 for grey images, 3 for colour; files of the other kind are converted.
        size: Side of the decoded squares.
    """

    paths: tuple[Path, ...]
    channels: int
    size: int

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor that these files amount to."""
        return len(self.paths), self.channels, self.size, self.size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Tensor) -> Tensor:
        chosen = [self.paths[index] for index in indices.tolist()]
        return torch.stack([decode(path, self.channels, self.size) for path in chosen])

    def take(self, indices: Tensor) -> ImageFiles:
        """The files of a subset, still on disk."""
        chosen = tuple(self.paths[index] for index in indices.tolist())
        return ImageFiles(chosen, self.channels, self.size)

    def in_memory(self) -> Tensor | ImageFiles:
        """All images as one 8-bit tensor if the budget allows, these files otherwise."""
        if math.prod(self.shape) > MEMORY_BUDGET:
            return self
        images = torch.empty(self.shape, dtype=torch.uint8)

        def read(index: int) -> None:
            images[index] = decode(self.paths[index], self.channels, self.size)

        with ThreadPoolExecutor(os.cpu_count()) as pool:  # decoders work outside Python's lock
            list(pool.map(read, range(len(self)), chunksize=64))
        return images


def read_header(path: Path) -> Header:
    """The size and kind of an image, without decoding it."""
    try:
        with Image.open(path) as image:
            return Header(min(image.size), image.mode in _GREY)
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        raise unreadable(path, error) from error


def decode(
    path: Path, channels: int, size: int, content: Callable[[], IO[bytes]] | None = None
) -> Tensor:
    """Read an image as an 8-bit tensor of shape (channels, size, size).

    Args:
        path: The file.
        channels: 1 for grey, 3 for colour.
        size: Side of the result.
        content: Opens the image where it is not a file of its own; ``path`` then only names it.
    """
    try:
        with Image.open(path if content is None else content()) as image:
            image.draft("RGB" if channels == 3 else "L", (size, size))  # JPEGs shrink for free
            ImageOps.exif_transpose(image, in_place=True)
            square = _square(_eight_bit(image, channels), size)
        # A copy, since arrays of images are read-only.
        pixels = torch.from_numpy(np.array(square))
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        raise unreadable(path, error) from error
    return pixels.reshape(size, size, channels).permute(2, 0, 1)


def unreadable(path: Path, error: Exception) -> DataError:
    """The error for a file that should be an image and cannot be decoded."""
    return DataError(
        f"{path} is not a readable image ({type(error).__name__}: {error}): "
        "replace the file or remove it"
    )


def find_images(folder: Path) -> tuple[Path, ...]:
    """All image files below a folder, sorted; hidden files and folders are left out."""
    found = []
    for parent, folders, names in os.walk(folder, followlinks=True):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [Path(parent, name) for name in names if is_image(name)]
    return tuple(sorted(found))


def is_image(name: str) -> bool:
    """Whether a file's name says that it is an image."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)


def common_format(paths: Sequence[Path]) -> Header:
    """The smallest short side, and whether all images are grey; every file must have a header."""
    headers = [read_header(path) for path in paths]
    return Header(min(h.short_side for h in headers), all(h.grey for h in headers))


def _eight_bit(image: Image.Image, channels: int) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range: convert them to 8 bits")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip rather than scale
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB" if channels == 3 else "L")


def _square(image: Image.Image, size: int) -> Image.Image:
    if image.size == (size, size):
        return image
    return ImageOps.fit(image, (size, size), Image.Resampling.BILINEAR)
