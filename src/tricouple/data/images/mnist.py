"""MNIST from its four IDX files, packed or not."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import torch
from torch import Tensor

from tricouple.data.images.download import fetch, missing, torchvision_datasets
from tricouple.data.images.errors import DataError
from tricouple.data.images.sets import ImageSet
from tricouple.data.images.source import Found, Request, count_note

MEAN, STD = (0.1307,), (0.3081,)
_PARTS = {"train": ("train", 60_000), "test": ("t10k", 10_000)}


def read(request: Request) -> Found:
    """Training and test images from ``MNIST/raw``, where torchvision puts them."""
    folder = request.root / "MNIST" / "raw"
    expected = (
        f"train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
        f"t10k-labels-idx1-ubyte (or the same with .gz) in {folder}"
    )
    if _find(folder, "train-images-idx3-ubyte") is None:
        if not request.download:
            raise DataError(missing("mnist", expected))
        fetch(
            "mnist",
            request.root,
            expected,
            lambda root: torchvision_datasets().MNIST(root, download=True),
        )
    train, train_notes = _part(folder, "train")
    test, test_notes = _part(folder, "test")
    if train is None:
        raise DataError(missing("mnist", expected))
    return Found(train, test, tuple("0123456789"), MEAN, STD, tuple(train_notes + test_notes))


def _part(folder: Path, part: str) -> tuple[ImageSet | None, list[str]]:
    prefix, published = _PARTS[part]
    images_path = _find(folder, f"{prefix}-images-idx3-ubyte")
    labels_path = _find(folder, f"{prefix}-labels-idx1-ubyte")
    if images_path is None or labels_path is None:
        return None, [f"the {part} files are missing"]
    images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
    if len(images) != len(labels):
        raise DataError(
            f"{images_path} holds {len(images)} images, but {labels_path} {len(labels)} labels: "
            "they belong to different copies"
        )
    if len(labels) == 0 or int(labels.max()) > 9:
        raise DataError(f"{labels_path} does not hold digits from 0 to 9")
    return ImageSet(images[:, None], labels.long()), count_note(part, len(images), published)


def _find(folder: Path, name: str) -> Path | None:
    paths = (folder / name, folder / f"{name}.gz")
    return next((path for path in paths if path.is_file()), None)


def read_idx(path: Path, ndim: int) -> Tensor:
    """Read a file of unsigned bytes in the IDX format.

    The format: two zero bytes, 8 for "unsigned byte", the number of dimensions, each dimension as a
    big-endian 32-bit number, then the values.

    Args:
        path: The file; packed if it ends in ``.gz``.
        ndim: How many dimensions it must have.

    Raises:
        DataError: If the file is something else, or shorter or longer than its header says.
    """
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path} cannot be read ({error}): replace it") from error
    header = 4 + 4 * ndim
    if len(content) < header or content[:4] != bytes([0, 0, 8, ndim]):
        raise DataError(f"{path} is not an IDX file of bytes in {ndim} dimensions: replace it")
    shape = [int.from_bytes(content[at : at + 4], "big") for at in range(4, header, 4)]
    if len(content) != header + math.prod(shape):
        raise DataError(
            f"{path} has {len(content)} bytes, but its header promises "
            f"{header + math.prod(shape)}: the file is truncated or damaged, replace it"
        )
    # bytearray: torch wants memory that it may write to.
    return torch.frombuffer(bytearray(content), dtype=torch.uint8)[header:].reshape(shape)
