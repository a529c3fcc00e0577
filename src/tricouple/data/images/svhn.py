"""SVHN, the cropped digits of format 2, from its two MATLAB files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tricouple.data.images.download import differs, fetch, missing, torchvision_datasets
from tricouple.data.images.errors import DataError
from tricouple.data.images.sets import ImageSet
from tricouple.data.images.source import Found, Request, count_note, first_folder

MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
_FILES = {"train": ("train_32x32.mat", 73_257), "test": ("test_32x32.mat", 26_032)}


def read(request: Request) -> Found:
    """Training and test digits from ``SVHN``, or from the data folder as torchvision has it."""
    home = request.root / "SVHN"
    expected = f"train_32x32.mat and test_32x32.mat in {home}"
    folder = first_folder((home, request.root), ("train_32x32.mat",))
    if folder is None:
        if not request.download:
            raise DataError(missing("svhn", expected))
        fetch("svhn", home, expected, _download)
        folder = home
    train, train_notes = _part(folder, "train")
    test, test_notes = _part(folder, "test")
    if train is None:
        raise DataError(missing("svhn", expected))
    return Found(train, test, tuple("0123456789"), MEAN, STD, tuple(train_notes + test_notes))


def _download(folder: Path) -> None:
    for part in _FILES:
        torchvision_datasets().SVHN(folder, part, download=True)


def _part(folder: Path, part: str) -> tuple[ImageSet | None, list[str]]:
    name, published = _FILES[part]
    path = folder / name
    if not path.is_file():
        return None, [f"{name} is missing"]
    images = read_mat(path)
    notes = count_note(part, len(images), published)
    if differs(path, torchvision_datasets().SVHN.split_list[part][2]):
        notes.append(f"{name} differs from the published file (checksum)")
    return images, notes


def read_mat(path: Path) -> ImageSet:
    """Read ``X`` (32, 32, 3, n) and ``y`` (n, 1), where the label 10 stands for the digit 0."""
    from scipy.io import loadmat

    try:
        content = loadmat(path)
        pixels, labels = content["X"], content["y"].ravel()
    except Exception as error:  # the parser raises nearly anything on damaged files
        raise DataError(
            f"{path} is truncated or not an SVHN file ({type(error).__name__}: {error}): replace it"
        ) from error
    shaped = pixels.dtype == np.uint8 and pixels.ndim == 4 and pixels.shape[:3] == (32, 32, 3)
    if not shaped or labels.shape != pixels.shape[3:] or len(labels) == 0:
        raise DataError(
            f"{path} should hold X of shape (32, 32, 3, n) and y of n labels, but has "
            f"{pixels.shape} ({pixels.dtype}) and {labels.shape}: replace it"
        )
    if labels.min() < 0 or labels.max() > 10:
        raise DataError(f"{path} has labels outside 1 to 10: replace it")
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return ImageSet(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64) % 10))
