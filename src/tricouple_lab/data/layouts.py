"""Published image sets in the files and folders that torchvision gives them.

A reader takes what is there, notes how much of the set that is, names a file it cannot read.
"""

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tricouple_lab.data.images import decoded_files, image_files
from tricouple_lab.data.sources import ImageSplit, Sets, shrunk
from tricouple_lab.names import UserError

PUBLISHED = {  # a file that a message asks for; training and test images
    "mnist": ("MNIST/raw/train-images-idx3-ubyte", 60_000, 10_000),
    "svhn": ("SVHN/train_32x32.mat", 73_257, 26_032),
    "cifar10": ("cifar-10-batches-py/data_batch_1", 50_000, 10_000),
    "cifar100": ("cifar-100-python/train", 50_000, 10_000),
    "tiny_imagenet": ("tiny-imagenet-200/train", 100_000, 10_000),
}
CIFAR = {  # folder, labels in a batch, file of class names, batches, test batch
    10: ("cifar-10-batches-py", "labels", "batches.meta",
         *(f"data_batch_{number}" for number in range(1, 6)), "test_batch"),
    100: ("cifar-100-python", "fine_labels", "meta", "train", "test"),
}  # fmt: skip
DIGITS = tuple("0123456789")


def mnist(root: Path, side: int) -> Sets | None:
    """Four IDX files."""
    folder, found = root / "MNIST/raw", {}
    for part, prefix in (("train", "train"), ("test", "t10k")):
        files = [folder / f"{prefix}-{end}-ubyte" for end in ("images-idx3", "labels-idx1")]
        if all(file.is_file() for file in files):
            pixels, labels = read_idx(files[0])[:, None], read_idx(files[1])
            found[part] = _split(files[1], pixels, labels, 10, side)
    return _found("mnist", found, DIGITS)


def svhn(root: Path, side: int) -> Sets | None:
    """Two files of MATLAB; the label 10 stands for the digit 0."""
    found = {}
    for part in ("train", "test"):
        folder = root / "SVHN" if (root / "SVHN").is_dir() else root
        if (file := folder / f"{part}_32x32.mat").is_file():
            pixels, labels = read_mat(file)
            found[part] = _split(file, pixels, labels % 10, 10, side)
    return _found("svhn", found, DIGITS)


def cifar(n_classes: int, root: Path, side: int) -> Sets | None:
    """Pickles of CIFAR-10 or CIFAR-100; absent ones are left out."""
    place, label, meta, *stems = CIFAR[n_classes]
    folder, found = root / place, {}
    for part, names in {"train": stems[:-1], "test": stems[-1:]}.items():
        here = [folder / stem for stem in names if (folder / stem).is_file()]
        if here:
            batches = zip(*(read_pickle(file, label) for file in here), strict=True)
            pixels, labels = (torch.cat(rows) for rows in batches)
            found[part] = _split(here[0], pixels, labels, n_classes, side)
    classes: Any = range(n_classes)
    if (folder / meta).is_file():
        content = unpickle(folder / meta)
        classes = isinstance(content, dict) and content.get(label.replace("labels", "label_names"))
        if not isinstance(classes, list) or len(classes) != n_classes:
            raise UserError(f"{folder / meta} does not name {n_classes} classes: replace it")
    return _found(f"cifar{n_classes}", found, tuple(map(str, classes)))


def tiny_imagenet(root: Path, side: int) -> Sets | None:
    """``train/WNID/images/*.JPEG``; the labelled validation images are the test set."""
    folder, found = root / "tiny-imagenet-200", {}
    top = (folder / "train").resolve()
    parts = {"train": [(file, file.relative_to(top).parts[0]) for file in image_files(top)]}
    codes = {wnid: code for code, wnid in enumerate(sorted({wnid for _, wnid in parts["train"]}))}
    table, parts["test"] = folder / "val/val_annotations.txt", []
    for number, line in enumerate(_lines(table), 1):
        fields = line.split("\t")
        if len(fields) < 2 or Path(fields[0]).name != fields[0]:
            raise UserError(f"{table}, line {number}: expected file and class, got {line!r}")
        file = folder / "val/images" / fields[0]
        if fields[1] in codes and file.is_file():
            parts["test"].append((file, fields[1]))
    for part, rows in parts.items():
        if rows:
            pixels = decoded_files([file for file, _ in rows], min(side, 64))
            labels = torch.tensor([codes[wnid] for _, wnid in rows])
            found[part] = ImageSplit.whole(pixels, labels)
    words = [line.partition("\t") for line in _lines(folder / "words.txt")]
    names = {wnid: text.partition(",")[0] for wnid, _, text in words}  # the first of several
    return _found("tiny_imagenet", found, tuple(names.get(wnid, wnid) for wnid in codes))


READERS: dict[str, Callable[[Path, int], Sets | None]] = {
    "mnist": mnist, "svhn": svhn, "cifar10": partial(cifar, 10), "cifar100": partial(cifar, 100),
    "tiny_imagenet": tiny_imagenet,
}  # fmt: skip


def _found(name: str, parts: dict[str, ImageSplit], classes: tuple[str, ...]) -> Sets | None:
    if "train" not in parts:
        return None
    published = dict(zip(("train", "test"), PUBLISHED[name][1:], strict=True))
    counts = [
        f"{len(parts[part]) if part in parts else 0:,} of {size:,} {part} images"
        for part, size in published.items()
        if part not in parts or len(parts[part]) != size
    ]
    notes = [f"{name}: {' and '.join(counts)} are on disk"] if counts else []
    return Sets(parts, classes, tuple(notes))


def _split(path: Path, pixels: Tensor, labels: Tensor, n_classes: int, side: int) -> ImageSplit:
    if len(pixels) != len(labels):
        raise UserError(f"{path} has {len(labels)} labels for {len(pixels)} images: replace it")
    if not len(labels) or int(labels.min()) < 0 or int(labels.max()) >= n_classes:
        raise UserError(f"{path} does not hold labels from 0 to {n_classes - 1}: replace it")
    return ImageSplit.whole(shrunk(pixels, side), labels)


def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines() if path.is_file() else []


def read_idx(path: Path) -> Tensor:
    """Read the bytes of MNIST's images (n, 28, 28) or labels (n,)."""
    from torchvision.datasets.mnist import read_sn3_pascalvincent_tensor

    with reading(path, "MNIST"):
        return read_sn3_pascalvincent_tensor(str(path))  # type: ignore[no-any-return]


def read_mat(path: Path) -> tuple[Tensor, Tensor]:
    """Read ``X`` (32, 32, 3, n) and ``y`` (n, 1) as images (n, 3, 32, 32) and labels (n,)."""
    from scipy.io import loadmat

    with reading(path, "SVHN"):
        content = loadmat(path)
        return _checked(content["X"].transpose(3, 2, 0, 1), content["y"].ravel())


def read_pickle(path: Path, label: str) -> tuple[Tensor, Tensor]:
    """Read ``data`` (n, 3072) and the labels as images (n, 3, 32, 32) and labels (n,)."""
    content = unpickle(path)
    with reading(path, "CIFAR"):
        return _checked(np.reshape(content["data"], (-1, 3, 32, 32)), np.asarray(content[label]))


def _checked(pixels: np.ndarray, labels: np.ndarray) -> tuple[Tensor, Tensor]:
    codes = labels.astype(np.int64)
    if pixels.dtype != np.uint8 or labels.shape != pixels.shape[:1] or (codes != labels).any():
        raise ValueError(f"{pixels.shape} pixels of {pixels.dtype}, {labels.shape} labels")
    return torch.from_numpy(np.array(pixels, order="C")), torch.from_numpy(codes)


class _DataOnly(pickle.Unpickler):
    """A pickle that wants to run anything else than the making of arrays fails."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is no data")
        return super().find_class(module, name)


_ALLOWED = (
    ("__builtin__", "bytes"), ("_codecs", "encode"), ("numpy", "dtype"), ("numpy", "ndarray"),
    ("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct"),
)  # fmt: skip


def unpickle(path: Path) -> Any:
    """Read a pickle of CIFAR, without running any code from it."""
    with reading(path, "CIFAR"), path.open("rb") as file:
        return _DataOnly(file, encoding="latin1").load()


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Name a file that is damaged: parsers raise nearly anything then."""
    try:
        yield
    except Exception as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:150]
        raise UserError(f"{path} is truncated or not a file of {what} ({reason})") from None
