"""CIFAR-10 and CIFAR-100 from their Python pickles."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tricouple.data.images.download import differs, fetch, missing, torchvision_datasets
from tricouple.data.images.errors import DataError
from tricouple.data.images.sets import ImageSet
from tricouple.data.images.source import Found, Request, count_note


@dataclass(frozen=True)
class _Layout:
    """What distinguishes the two data sets on disk."""

    name: str
    title: str  # torchvision's class, which knows the files' checksums
    folder: str
    train: tuple[str, ...]
    test: str
    labels: str
    meta: str
    class_names: str
    n_classes: int
    mean: tuple[float, ...]
    std: tuple[float, ...]


_TEN = _Layout(
    name="cifar10",
    title="CIFAR10",
    folder="cifar-10-batches-py",
    train=tuple(f"data_batch_{number}" for number in range(1, 6)),
    test="test_batch",
    labels="labels",
    meta="batches.meta",
    class_names="label_names",
    n_classes=10,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
)
_HUNDRED = _Layout(
    name="cifar100",
    title="CIFAR100",
    folder="cifar-100-python",
    train=("train",),
    test="test",
    labels="fine_labels",
    meta="meta",
    class_names="fine_label_names",
    n_classes=100,
    mean=(0.5071, 0.4865, 0.4409),
    std=(0.2673, 0.2564, 0.2762),
)


def read_cifar10(request: Request) -> Found:
    """CIFAR-10 from ``cifar-10-batches-py``; training batches that are absent are left out."""
    return _read(_TEN, request)


def read_cifar100(request: Request) -> Found:
    """CIFAR-100 with its 100 fine classes, from ``cifar-100-python``."""
    return _read(_HUNDRED, request)


def _read(layout: _Layout, request: Request) -> Found:
    folder = request.root / layout.folder
    expected = f"{', '.join((*layout.train, layout.test, layout.meta))} in {folder}"
    published = getattr(torchvision_datasets(), layout.title)
    if not any((folder / name).is_file() for name in layout.train):
        if not request.download:
            raise DataError(missing(layout.name, expected))
        fetch(layout.name, request.root, expected, lambda root: published(root, download=True))
    train, train_notes = _part(layout, folder, layout.train, 50_000, published.train_list, "train")
    test, test_notes = _part(layout, folder, (layout.test,), 10_000, published.test_list, "test")
    if train is None:
        raise DataError(missing(layout.name, expected))
    classes, class_notes = _class_names(layout, folder)
    notes = (*train_notes, *test_notes, *class_notes)
    return Found(train, test, classes, layout.mean, layout.std, notes)


def _part(
    layout: _Layout,
    folder: Path,
    names: tuple[str, ...],
    n_published: int,
    checksums: list[list[str]],
    part: str,
) -> tuple[ImageSet | None, list[str]]:
    absent = [name for name in names if not (folder / name).is_file()]
    notes = [f"missing: {', '.join(absent)}"] if absent else []
    batches = []
    for name, md5 in checksums:
        path = folder / name
        if path.is_file():
            batches.append(_batch(path, layout))
            if differs(path, md5):
                notes.append(f"{name} differs from the published file (checksum)")
    if not batches:
        return None, notes
    images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
    return ImageSet(images, labels), notes + count_note(part, len(images), n_published)


def _batch(path: Path, layout: _Layout) -> tuple[Tensor, Tensor]:
    content = _unpickle(path)
    try:
        rows, labels = np.asarray(content["data"]), np.asarray(content[layout.labels])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} has no 'data' and '{layout.labels}': replace it") from error
    shaped = rows.dtype == np.uint8 and rows.ndim == 2 and rows.shape[1] == 3072
    if not shaped or labels.shape != rows.shape[:1] or len(rows) == 0:
        raise DataError(
            f"{path} should hold n rows of 3072 bytes and n labels, but has data of shape "
            f"{rows.shape} ({rows.dtype}) and labels of shape {labels.shape}: replace it"
        )
    codes = torch.from_numpy(labels).long()
    if int(codes.min()) < 0 or int(codes.max()) >= layout.n_classes:
        raise DataError(f"{path} has labels outside 0 to {layout.n_classes - 1}: replace it")
    return torch.from_numpy(rows.copy()).reshape(-1, 3, 32, 32), codes


def _class_names(layout: _Layout, folder: Path) -> tuple[tuple[str, ...], list[str]]:
    path = folder / layout.meta
    numbers = tuple(map(str, range(layout.n_classes)))
    if not path.is_file():
        return numbers, [f"{layout.meta} is missing: classes are called by their numbers"]
    content = _unpickle(path)
    names = content.get(layout.class_names) if isinstance(content, dict) else None
    if not isinstance(names, list) or len(names) != layout.n_classes:
        raise DataError(f"{path} does not name {layout.n_classes} classes: replace it")
    return tuple(map(str, names)), []


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


def _unpickle(path: Path) -> Any:
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise DataError(
            f"{path} is truncated or not a CIFAR file ({type(error).__name__}: {error}): replace it"
        ) from error
