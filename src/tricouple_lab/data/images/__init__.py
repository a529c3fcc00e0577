"""Image data sets as 8-bit tensors: found on disk or downloaded, checked, split and batched.

>>> from tricouple_lab.data import images
>>> data = images.load("digits")
>>> len(data.train), len(data.test), data.channels, data.image_size
(1438, 359, 1, 8)

They are published ones, or any folder of images, which may look like this.

============================  =======================================================
``<class>/**/*.png``          labelled; a fifth of each class becomes the test set
``train/… `` and ``test/…``   each part as above or below (``val/`` if there is no ``test/``)
``*.png``                     unlabelled, for self-supervised training
============================  =======================================================

An unlabelled training set is evaluated on the labelled images of ``test/``, or of another folder
``eval_root``: half of them fit the probes, the other half measures.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import torch

from tricouple import checks
from tricouple_lab.data.images.files import (
    SUFFIXES,
    DataError,
    ImageFiles,
    common_format,
    find_images,
)
from tricouple_lab.data.images.published import DIGITS, PUBLISHED, Found
from tricouple_lab.data.images.sets import (
    ImageData,
    ImageSet,
    Normalisation,
    check_batch_size,
    check_supervised,
    imagenet_statistics,
    loader,
    split,
    subset,
)

__all__ = [
    "NAMES", "DataError", "ImageData", "ImageSet", "check_batch_size", "check_supervised", "load",
    "loader", "published_files", "split", "subset",
]  # fmt: skip

NAMES = ("digits", *PUBLISHED, "folder")


def load(
    name: str,
    root: Path | str | None = None,
    *,
    train_size: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    download: bool = True,
    eval_root: Path | str | None = None,
) -> ImageData:
    """Read a data set, from disk or, if it is not there, from the network.

    A partial or re-ordered copy is taken as it is; ``notes`` say what differs. Damaged files are
    refused.

    Args:
        name: One of ``NAMES``.
        root: The folder that data sets live in, each in the layout torchvision uses; by default
            the environment variable TRICOUPLE_DATA, or ``~/.cache/tricouple``. For ``folder``, the
            images' own folder.
        train_size: Train on a stratified subset of this many images.
        seed: Chooses the subset. The test set is the same for every seed.
        image_size: Side of the images that networks see; by default the stored one.
        download: Whether a data set that is not on disk may be downloaded.
        eval_root: For ``folder``: another folder, of labelled images to evaluate on.

    Raises:
        DataError: If files are missing, unreadable or damaged; it names them.
        ValueError: If an argument is not possible.

    Example:
        >>> load("digits", train_size=100).train.images.shape
        torch.Size([100, 1, 8, 8])
    """
    checks.one_of("data", name, NAMES)
    for what, count in (("train_size", train_size), ("image_size", image_size)):
        if count is not None:
            checks.count(what, count)
    if eval_root is not None and name != "folder":
        raise ValueError(f"eval_root is for data 'folder'; {name!r} has its own test set")
    if root is None and name == "folder":
        raise ValueError("data 'folder' needs root (data.root=FOLDER): the folder of images")
    place = folder_of(root)
    if name == "folder":
        found = read_folder(place, image_size, None if eval_root is None else folder_of(eval_root))
    elif name == "digits":
        found = read_digits()
    else:
        found = PUBLISHED[name](place, download)
    train, test = found.train, found.test
    if train_size is not None:
        train = subset(train, train_size, seed, name="train_size")
    probe = train
    if train.labels is None and test is not None:
        probe, test = split(test, 0.5)
    return ImageData(
        name,
        train,
        probe if probe.labels is not None else None,
        test,
        found.classes,
        Normalisation(found.mean, found.std, image_size or max(train.images.shape[2:])),
        found.notes,
    )


# Of each published data set: the folders that may hold it, and its files there.
_FILES = {
    "mnist": (("MNIST/raw",), ("*-ubyte", "*-ubyte.gz")),
    "svhn": (("SVHN", "."), ("train_32x32.mat", "test_32x32.mat")),
    "cifar10": (("cifar-10-batches-py",), ("data_batch_?", "test_batch", "batches.meta")),
    "cifar100": (("cifar-100-python",), ("train", "test", "meta")),
    "tiny_imagenet": (
        ("tiny-imagenet-200",),
        ("train/**/*.JPEG", "val/**/*.JPEG", "val/val_annotations.txt", "words.txt"),
    ),
}


def published_files(name: str, root: Path | str | None = None) -> tuple[Path, list[Path]]:
    """The folder of a published data set, and the files there that ``load`` would read now.

    Example:
        >>> published_files("cifar100", "/nowhere")[1]
        []
    """
    home = folder_of(root)
    places, patterns = _FILES.get(name, ((".",), ()))
    for place in places:
        folder = home / place
        found = {path for pattern in patterns for path in folder.glob(pattern)}
        if found:
            break
    # Packed files are read where the same is not there unpacked.
    return folder, [
        path for path in sorted(found) if path.suffix != ".gz" or path.with_suffix("") not in found
    ]


def folder_of(root: Path | str | None) -> Path:
    """The folder that a user names; if none, the one that data sets live in."""
    return data_home() if root is None else Path(root).expanduser()


def data_home() -> Path:
    """The folder that data sets live in: TRICOUPLE_DATA, or ``~/.cache/tricouple``."""
    return Path(os.environ.get("TRICOUPLE_DATA") or "~/.cache/tricouple").expanduser()


def read_digits() -> Found:
    """The 1 797 8×8 digits that scikit-learn carries; a fifth of each class is the test set."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = torch.from_numpy(digits.images)[:, None]  # 17 grey levels, 0 to 16
    levels = (images * (255 / 16)).round().to(torch.uint8)
    whole = ImageSet(levels, torch.from_numpy(digits.target).long())
    # Mean and deviation are measured on the training images, to four digits.
    return Found(*split(whole, 0.2), DIGITS, (0.3058,), (0.3759,))


# --- a folder -------------------------------------------------------------------------------------

TEST_FRACTION = 0.2
TINY = 8  # pixels that an image shows something with
LARGEST_DEFAULT = 224  # photographs are decoded to this side unless another is asked for


@dataclass(frozen=True)
class _Tree:
    """The images below one folder, and the class folder of each, None if unlabelled."""

    root: Path
    paths: tuple[Path, ...]
    names: tuple[str, ...] | None

    @property
    def classes(self) -> tuple[str, ...]:
        return tuple(sorted(set(self.names or ())))


def read_folder(root: Path, image_size: int | None, eval_root: Path | None) -> Found:
    """The images of a folder, and the labelled ones of another if there is one."""
    if not root.is_dir():
        raise DataError(f"{root} is not a folder: name a folder of images with data.root")
    parted = (root / "train").is_dir()
    tests = [root / name for name in ("test", "val") if parted and (root / name).is_dir()]
    notes: list[str] = []
    own = [] if eval_root else tests[:1]
    train, *others = _trees([root / "train" if parted else root, *own], notes)
    if eval_root:
        if not eval_root.is_dir():
            raise DataError(
                f"{eval_root} is not a folder: evaluation needs one with a folder a class"
            )
        others = _trees([eval_root], notes)
    test = others[0] if others else None
    if test and test.names is None:
        raise DataError(f"{test.root} has no two class folders: evaluation needs labelled images")
    classes = train.classes or (test.classes if test else ())
    side, smallest, usual, grey = common_format([*train.paths, *(test.paths if test else ())])
    channels = 1 if grey else 3
    size = image_size or min(side, LARGEST_DEFAULT)
    if not image_size:
        if side < TINY and 4 * side < usual:
            raise DataError(
                f"{smallest} has a side of {side} pixels, most images one of {usual}: all would "
                "be decoded to its size; remove it, or set data.image_size"
            )
        notes.append(f"images are decoded to {size}×{size}")
    training = _images(train, classes, channels, size)
    testing = _images(test, classes, channels, size) if test else None
    if test is None and train.names is not None:
        if len(classes) < len(train.paths):
            training, testing = split(training, TEST_FRACTION)
            notes.append(f"{len(testing)} images, a fifth of each class, are held out as test set")
        else:
            notes.append("no class has two images: there is no test set")
    # Somebody may have meant folders without images to be classes too.
    used = {path.relative_to(train.root).parts[0] for path in train.paths}
    beside = sorted(path for path in train.root.iterdir() if path.is_dir())
    empty = [f for f in beside if f.name not in used and not f.name.startswith(".")]
    notes += [f"{folder} holds no images of its own and is left out" for folder in empty]
    if train.names is None and train.paths[0].parent != train.root:
        notes.append(f"{train.root} has only one class, {used.pop()}: its images are unlabelled")
    return Found(training, testing, classes, *imagenet_statistics(channels), tuple(notes))


def _trees(folders: list[Path], notes: list[str]) -> list[_Tree]:
    return list(map(_tree, folders, find_images(folders, notes)))


def _tree(folder: Path, paths: tuple[Path, ...]) -> _Tree:
    if not paths:
        raise DataError(f"{folder} holds no images ({', '.join(SUFFIXES)})")
    loose = [path for path in paths if path.parent == folder]
    names = tuple(path.relative_to(folder).parts[0] for path in paths if path.parent != folder)
    if loose and names:
        raise DataError(
            f"{folder} holds both class folders ({names[0]}) and images outside of them "
            f"({loose[0].name}): move the latter"
        )
    # A single folder tells nothing apart.
    return _Tree(folder, paths, names if len(set(names)) > 1 else None)


def _images(tree: _Tree, classes: tuple[str, ...], channels: int, size: int) -> ImageSet:
    images = ImageFiles(tree.paths, channels, size).in_memory()
    if tree.names is None:
        return ImageSet(images)
    codes = {name: code for code, name in enumerate(classes)}
    unknown = sorted(set(tree.names) - set(classes))
    if unknown:
        raise DataError(f"{tree.root / unknown[0]} is a class without training images")
    return ImageSet(images, torch.tensor([codes[name] for name in tree.names]))
