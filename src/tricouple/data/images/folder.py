"""Any folder of images.

============================  =======================================================
``<class>/**/*.png``          labelled; a fifth of each class becomes the test set
``train/… `` and ``test/…``   each part as above or below (``val/`` if there is no ``test/``)
``*.png``                     unlabelled, for self-supervised training
============================  =======================================================

An unlabelled training set is evaluated on the labelled images of ``test/``, or of another folder
``eval_root``: half of them fit the probes, the other half measures.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import torch

from tricouple.data.images.files import SUFFIXES, DataError, ImageFiles, common_format, find_images
from tricouple.data.images.sets import Found, ImageSet, imagenet_statistics
from tricouple.data.images.split import split

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
        others = [_other(eval_root, notes)]
    test = _with_labels(others[0]) if others else None
    classes = train.classes or (test.classes if test else ())
    trees = [tree for tree in (train, test) if tree is not None]
    side, smallest, usual, grey = common_format([path for tree in trees for path in tree.paths])
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


def _other(folder: Path, notes: list[str]) -> _Tree:
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder: evaluation needs one with a folder a class")
    return _trees([folder], notes)[0]


def _with_labels(tree: _Tree) -> _Tree:
    if tree.names is None:
        raise DataError(f"{tree.root} has no two class folders: evaluation needs labelled images")
    return tree


def _trees(folders: list[Path], notes: list[str]) -> list[_Tree]:
    return [
        _tree(folder, paths)
        for folder, paths in zip(folders, find_images(folders, notes), strict=True)
    ]


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
