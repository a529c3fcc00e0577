"""The file formats of published data sets; a damaged file is refused by name.

By hand: torchvision does not say which file is damaged, and unpickles whatever is in it.
"""

from __future__ import annotations

import gzip
import math
import pickle
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tricouple.data.images.files import DataError


def read_idx(path: Path, ndim: int) -> Tensor:
    """Read a file of unsigned bytes in the IDX format, packed or not.

    The format: two zero bytes, 8 for "unsigned byte", the number of dimensions, each dimension as a
    big-endian 32-bit number, then the values.
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


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read images and labels of SVHN, uint8 of shape (n, 3, 32, 32) and int64 of shape (n,).

    The file holds ``X`` (32, 32, 3, n) and ``y`` (n, 1), where the label 10 stands for the digit 0.
    """
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
    _check_labels(path, labels, 0, 10)
    images = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64) % 10)


def read_pickle(path: Path, key: str, n_classes: int) -> tuple[Tensor, Tensor]:
    """Read images and labels of a batch of CIFAR; ``key`` names the labels in it."""
    content = unpickle(path)
    try:
        rows, labels = np.asarray(content["data"]), np.asarray(content[key])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no 'data' and '{key}': replace it") from error
    shaped = rows.dtype == np.uint8 and rows.ndim == 2 and rows.shape[1] == 3072
    if not shaped or labels.shape != rows.shape[:1] or len(rows) == 0:
        raise DataError(
            f"{path} should hold n rows of 3072 bytes and n labels, but has data of shape "
            f"{rows.shape} ({rows.dtype}) and labels of shape {labels.shape}: replace it"
        )
    _check_labels(path, labels, 0, n_classes - 1)
    codes = torch.from_numpy(labels.astype(np.int64))
    return torch.from_numpy(rows.copy()).reshape(-1, 3, 32, 32), codes


def _check_labels(path: Path, labels: np.ndarray, least: int, most: int) -> None:
    # Copies saved by other programs may hold whole numbers as floating-point ones.
    whole = labels.dtype.kind in "iu" or (
        labels.dtype.kind == "f" and bool((labels == labels.round()).all())
    )
    if not whole or labels.min() < least or labels.max() > most:
        raise DataError(
            f"{path} has labels that are not whole numbers from {least} to {most} "
            f"({labels.dtype}): replace it"
        )


class _ArraysOnly(pickle.Unpickler):
    """Reads arrays, lists, texts and numbers; a pickle that wants to run anything else fails."""

    _ALLOWED = frozenset(
        {
            ("__builtin__", "bytes"),
            ("_codecs", "encode"),
            ("numpy", "dtype"),
            ("numpy", "ndarray"),
            ("numpy.core.multiarray", "_reconstruct"),
            ("numpy._core.multiarray", "_reconstruct"),
        }
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no data")
        return super().find_class(module, name)


def unpickle(path: Path) -> Any:
    """Read a pickle of CIFAR, without running any code from it."""
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise DataError(
            f"{path} is truncated or not a CIFAR file ({type(error).__name__}: {error}): replace it"
        ) from error
