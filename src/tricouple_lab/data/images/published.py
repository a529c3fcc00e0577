"""Published data sets, read from the files that their authors publish, downloaded if need be.

torchvision downloads and knows the checksums; it does not read: it refuses partial or re-ordered
copies, does not say which file is damaged, and unpickles whatever is in it. Here copies are taken
as they are, with a note of what is missing or differs; a damaged file is refused by name.
"""

from __future__ import annotations

import gzip
import hashlib
import math
import pickle
import socket
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tricouple.torchvision_ops import declare_missing
from tricouple_lab.data.images.files import DataError, ImageFiles, find_images
from tricouple_lab.data.images.sets import IMAGENET_MEAN, IMAGENET_STD, ImageSet

DIGITS = tuple("0123456789")
_PATIENCE = 30.0  # seconds that a server may stay silent


class Found(NamedTuple):
    """The images of a data set as a reader found them, before subsets are drawn."""

    train: ImageSet
    test: ImageSet | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()


Part = tuple[ImageSet | None, list[str]]  # train or test, None if it is missing; and notes on it


# --- found on disk, or downloaded ----------------------------------------------------------------


def _both_parts(
    name: str,
    expected: str,
    here: bool,
    download: Callable[[Path], object] | None,
    folder: Path,
    read: Callable[[str], Part],
) -> tuple[ImageSet, ImageSet | None, tuple[str, ...]]:
    """Training and test images of a published data set, and the notes on both.

    What is not ``here`` is downloaded into a folder, if that is wanted, or missed in a sentence
    that says which files are ``expected`` where.
    """
    if not here and download is not None:
        fetch(name, folder, expected, download)
    elif not here:
        raise DataError(_missing(name, expected))
    train, notes = read("train")
    test, more = read("test")
    if train is None:
        raise DataError(_missing(name, expected))
    return train, test, (*notes, *more)


def fetch(name: str, root: Path, expected: str, start: Callable[[Path], object]) -> None:
    """Download a data set into a folder; if that fails, the error says which files go where."""
    before = socket.getdefaulttimeout()
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Behind some firewalls connections never answer; torchvision would wait forever.
        socket.setdefaulttimeout(_PATIENCE)
        start(root)
    except Exception as error:  # servers, archives and disks fail in many ways
        reason = " ".join(f"{type(error).__name__}: {error}".split())  # on one line
        raise DataError(f"{_missing(name, expected)}. The download failed: {reason}") from error
    finally:
        socket.setdefaulttimeout(before)


def _missing(name: str, expected: str) -> str:
    return (
        f"data {name!r} was not found. Expected {expected}. "
        "Put the files there, or name another folder with root or TRICOUPLE_DATA"
    )


def torchvision_datasets() -> Any:
    """The module ``torchvision.datasets``, imported when it is needed."""
    declare_missing()
    from torchvision import datasets

    return datasets


def _count_note(what: str, found: int, published: int) -> list[str]:
    return [] if found == published else [f"{found} of {published} {what} images are here"]


def _checksum_note(path: Path, md5: str) -> list[str]:
    with path.open("rb") as file:
        same = hashlib.file_digest(file, "md5").hexdigest() == md5
    return [] if same else [f"{path.name} differs from the published file (checksum)"]


# --- the readers ---------------------------------------------------------------------------------


def _mnist(root: Path, download: bool) -> Found:
    """MNIST from its four IDX files, packed or not, in ``MNIST/raw`` as torchvision has them."""
    folder = root / "MNIST" / "raw"

    def find(name: str) -> Path | None:
        paths = (folder / name, folder / f"{name}.gz")
        return next((path for path in paths if path.is_file()), None)

    def read(part: str) -> Part:
        prefix, published = {"train": ("train", 60_000), "test": ("t10k", 10_000)}[part]
        images_path = find(f"{prefix}-images-idx3-ubyte")
        labels_path = find(f"{prefix}-labels-idx1-ubyte")
        if images_path is None or labels_path is None:
            return None, [f"the {part} files are missing"]
        images, labels = read_idx(images_path, 3), read_idx(labels_path, 1)
        if len(images) != len(labels):
            raise DataError(
                f"{images_path} holds {len(images)} images, but {labels_path} {len(labels)} "
                "labels: they belong to different copies"
            )
        if not images.numel():
            raise DataError(f"{images_path} holds images of {tuple(images.shape[1:])} pixels")
        if len(labels) == 0 or int(labels.max()) > 9:
            raise DataError(f"{labels_path} does not hold digits from 0 to 9")
        return ImageSet(images[:, None], labels.long()), _count_note(part, len(images), published)

    train, test, notes = _both_parts(
        "mnist",
        f"train-images-idx3-ubyte, train-labels-idx1-ubyte, t10k-images-idx3-ubyte and "
        f"t10k-labels-idx1-ubyte (or the same with .gz) in {folder}",
        find("train-images-idx3-ubyte") is not None,
        (lambda root: torchvision_datasets().MNIST(root, download=True)) if download else None,
        root,
        read,
    )
    return Found(train, test, DIGITS, (0.1307,), (0.3081,), notes)


def _svhn(root: Path, download: bool) -> Found:
    """The cropped digits of SVHN from ``SVHN``, or from the data folder as torchvision has them."""
    home = root / "SVHN"
    holding = [place for place in (home, root) if (place / "train_32x32.mat").is_file()]
    folder = holding[0] if holding else home

    def start(into: Path) -> None:
        for part in ("train", "test"):
            torchvision_datasets().SVHN(into, part, download=True)

    def read(part: str) -> Part:
        path = folder / f"{part}_32x32.mat"
        if not path.is_file():
            return None, [f"{path.name} is missing"]
        images = ImageSet(*read_mat(path))
        notes = _count_note(part, len(images), {"train": 73_257, "test": 26_032}[part])
        return images, notes + _checksum_note(path, torchvision_datasets().SVHN.split_list[part][2])

    train, test, notes = _both_parts(
        "svhn",
        f"train_32x32.mat and test_32x32.mat in {home}",
        bool(holding),
        start if download else None,
        home,
        read,
    )
    return Found(train, test, DIGITS, (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970), notes)


def _cifar(
    n_classes: int,
    key: str,
    mean: tuple[float, ...],
    std: tuple[float, ...],
    root: Path,
    download: bool,
) -> Found:
    """CIFAR from its pickles, where ``key`` names the labels; absent batches are left out."""
    # torchvision knows the folder, the files and their checksums.
    published = getattr(torchvision_datasets(), f"CIFAR{n_classes}")
    folder = root / published.base_folder
    files = {"train": dict(published.train_list), "test": dict(published.test_list)}
    meta = folder / published.meta["filename"]

    def read(part: str) -> Part:
        here = [name for name in files[part] if (folder / name).is_file()]
        absent = [name for name in files[part] if name not in here]
        notes = [f"missing: {', '.join(absent)}"] if absent else []
        batches = []
        for name in here:
            batches.append(read_pickle(folder / name, key, n_classes))
            notes += _checksum_note(folder / name, files[part][name])
        if not batches:
            return None, notes
        images, labels = (torch.cat(parts) for parts in zip(*batches, strict=True))
        n_published = {"train": 50_000, "test": 10_000}[part]
        return ImageSet(images, labels), notes + _count_note(part, len(images), n_published)

    train, test, notes = _both_parts(
        f"cifar{n_classes}",
        f"{', '.join((*files['train'], *files['test'], meta.name))} in {folder}",
        any((folder / name).is_file() for name in files["train"]),
        partial(published, download=True) if download else None,
        root,
        read,
    )
    names: Any = range(n_classes)
    if meta.is_file():
        content = unpickle(meta)
        names = content.get(published.meta["key"]) if isinstance(content, dict) else None
        if not isinstance(names, list) or len(names) != n_classes:
            raise DataError(f"{meta} does not name {n_classes} classes: replace it")
    else:
        notes = (*notes, f"{meta.name} is missing: classes are called by their numbers")
    return Found(train, test, tuple(map(str, names)), mean, std, notes)


def _tiny_imagenet(root: Path, download: bool) -> Found:
    """``train/<wnid>/images/*.JPEG``; the labelled validation images are the test set."""
    folder = root / "tiny-imagenet-200"
    wnids: list[str] = []  # known when the training images are

    def start(into: Path) -> None:
        url = "http://cs231n.stanford.edu/tiny-imagenet-200.zip"
        torchvision_datasets().utils.download_and_extract_archive(
            url, into, md5="90528d7ca1a48142e341f4ef8d21d0de"
        )

    def images(labelled: list[tuple[Path, str]]) -> ImageSet | None:
        if not labelled:
            return None
        files = ImageFiles(tuple(path for path, _ in labelled), channels=3, size=64)
        codes = {wnid: code for code, wnid in enumerate(wnids)}
        return ImageSet(files.in_memory(), torch.tensor([codes[wnid] for _, wnid in labelled]))

    def read(part: str) -> Part:
        if part == "test":
            labelled, notes = _validation(folder / "val", set(wnids))
            return images(labelled), notes
        found: list[str] = []
        labelled = _by_folder(folder / "train", found)
        wnids.extend(sorted({wnid for _, wnid in labelled}))
        notes = found + [f"{len(wnids)} of 200 classes are here"] * (len(wnids) != 200)
        return images(labelled), notes + _count_note("train", len(labelled), 100_000)

    train, test, notes = _both_parts(
        "tiny_imagenet",
        f"train/<class>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt in {folder}",
        (folder / "train").is_dir(),
        start if download else None,
        root,
        read,
    )
    words = folder / "words.txt"
    rows = (
        [row.partition("\t") for row in words.read_text().splitlines()] if words.is_file() else []
    )
    names = {wnid: text.partition(",")[0] for wnid, _, text in rows}  # the first of several
    classes = tuple(names.get(wnid, wnid) for wnid in wnids)
    return Found(train, test, classes, IMAGENET_MEAN, IMAGENET_STD, notes)


def _by_folder(folder: Path, notes: list[str]) -> list[tuple[Path, str]]:
    (paths,) = find_images([folder], notes)
    return [(path, path.relative_to(folder).parts[0]) for path in paths]


def _validation(folder: Path, wnids: set[str]) -> tuple[list[tuple[Path, str]], list[str]]:
    """Validation images: labelled by their annotations, or sorted into folders by an older tool."""
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        notes: list[str] = []
        labelled = [(path, wnid) for path, wnid in _by_folder(folder, notes) if wnid in wnids]
        if not labelled:
            return [], ["val/val_annotations.txt is missing: there is no test set"]
        return labelled, notes + _count_note("test", len(labelled), 10_000)
    rows = []
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2 or Path(fields[0]).name != fields[0]:
            raise DataError(f"{annotations}, line {number}: expected file and class, got {line!r}")
        rows.append((folder / "images" / fields[0], fields[1]))
    known = [(path, wnid) for path, wnid in rows if wnid in wnids]
    here = [(path, wnid) for path, wnid in known if path.is_file()]
    notes = _count_note("test", len(here), 10_000)
    if len(known) < len(rows):
        notes.append(f"{len(rows) - len(known)} test images of classes without training images")
    if len(here) < len(known):
        notes.append(f"{len(known) - len(here)} of the annotated test images are missing")
    return here, notes


PUBLISHED: dict[str, Callable[[Path, bool], Found]] = {
    "mnist": _mnist,
    "svhn": _svhn,
    "cifar10": partial(_cifar, 10, "labels", (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar100": partial(
        _cifar, 100, "fine_labels", (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762)
    ),
    "tiny_imagenet": _tiny_imagenet,
}


# --- the file formats -----------------------------------------------------------------------------


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
    try:
        with path.open("rb") as file:
            return _ArraysOnly(file, encoding="latin1").load()
    except Exception as error:  # damaged pickles raise nearly anything
        raise DataError(
            f"{path} is truncated or not a CIFAR file ({type(error).__name__}: {error}): replace it"
        ) from error
