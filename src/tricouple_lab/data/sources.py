"""Image data sets: found, split into train, validation and test, and kept as 8-bit pixels.

A set is looked for as ``FOLDER/NAME/**/*.parquet``, in the layout that torchvision gives it below
FOLDER, then on the hub; FOLDER is ``data.root``, TRICOUPLE_DATA or ``data``. ``data=folder`` is a
folder of own images, ``data=digits`` comes with scikit-learn.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tricouple_lab.config.schema import ImageData
from tricouple_lab.names import UserError

UNLABELLED = -1
GREY = ("digits", "mnist")  # sets of one channel; all others have three


@dataclass(frozen=True, eq=False)
class ImageSplit:
    """Images of one split, or anything else with one row per image, such as frozen features.

    The splits share the pixels, which may be a memory-mapped file: a split is a choice of rows.
    """

    pixels: Tensor  # uint8 images (N, channels, side, side), or float features (N, d)
    index: Tensor  # int64 (n,): which rows of the pixels
    labels: Tensor  # int64 (n,): indices into the class names; −1 where unknown
    images: ImageSplit | None = None  # of features: what they were computed from

    @classmethod
    def whole(cls, pixels: Tensor, labels: Tensor) -> ImageSplit:
        """All rows."""
        return cls(pixels, torch.arange(len(pixels)), labels.long())

    def __len__(self) -> int:
        return len(self.index)

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Return a whole batch at once; PyTorch's DataLoader calls this."""
        chosen = torch.as_tensor(indices)
        return self.pixels[self.index[chosen]], self.labels[chosen]

    def rows(self, indices: np.ndarray) -> ImageSplit:
        """Return some of the rows."""
        chosen = torch.from_numpy(indices)
        images = None if self.images is None else self.images.rows(indices)
        return ImageSplit(self.pixels, self.index[chosen], self.labels[chosen], images)

    def batches(self, size: int = 512) -> Iterator[Tensor]:
        """Yield the pixels in order."""
        for part in self.index.split(size):
            yield self.pixels[part]


@dataclass(frozen=True, eq=False)
class Found:
    """A data set as a reader found it, before validation images are held out."""

    train: ImageSplit
    test: ImageSplit | None
    classes: tuple[str, ...]  # empty: without labels
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ImageSets:
    """A data set as a run uses it."""

    splits: dict[str, ImageSplit]  # train, validation, test
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()  # printed once

    def digest(self) -> str:
        """Return a sha256 of the decoded content: the same data elsewhere have the same digest."""
        content = hashlib.sha256(repr(self.classes).encode())
        for name, split in self.splits.items():
            content.update(f"{name} {len(split)} {tuple(split.pixels.shape[1:])}".encode())
            for part in split.batches(4096):
                content.update(part.numpy().tobytes())
            content.update(split.labels.numpy().tobytes())
        return content.hexdigest()


def load_images(config: ImageData) -> ImageSets:
    """Read the data set, hold out test (if it has none) and validation images, and cut to size."""
    check(config)
    found = read(config)
    notes, train, test = list(found.notes), found.train, found.test
    if test is None:
        rest, held_out = hold_out(train.labels.numpy(), 0.2)
        train, test = train.rows(rest), train.rows(held_out)
    rest, held_out = hold_out(train.labels.numpy(), config.validation_share)
    train, validation = train.rows(rest), train.rows(held_out)
    splits = {"train": train, "validation": validation, "test": test}
    for name, size in (("train", config.train_size), ("test", config.test_size)):
        split = splits[name]
        if size is not None and size < len(split):
            splits[name] = split.rows(stratified(split.labels.numpy(), size))
            notes.append(f"{size} of {len(split)} {name} images are used (data.{name}_size)")
    if repeated := len(_hashes(splits["test"]) & _hashes(splits["train"])):
        notes.append(f"{repeated} of the test images also occur in the training images")
    if found.classes:
        counts = torch.bincount(splits["train"].labels, minlength=len(found.classes))
        single = [found.classes[index] for index in (counts == 1).nonzero().flatten().tolist()]
        if single:
            others = f" and {len(single) - 1} more classes" if len(single) > 1 else ""
            notes.append(f"class {single[0]}{others}: one training image, no positive in scl")
    return ImageSets(splits, found.classes, tuple(notes))


def check(config: ImageData) -> None:
    """Raise for sizes that no data set can have."""
    for key in ("image_size", "train_size", "test_size"):
        value = getattr(config, key)
        if value is not None and value < 1:
            raise UserError(f"data.{key}={value}: must be at least 1")
    if not 0 <= config.validation_share < 1:
        raise UserError(
            f"data.validation_share={config.validation_share}: must be at least 0 and less than 1"
        )


def read(config: ImageData) -> Found:
    """Find the data set that a configuration names; see the top of this file for the places."""
    if config.name == "digits":
        return digits()
    from tricouple_lab.data import images, layouts

    if config.name == "folder":
        return images.own_folder(config)
    folder = data_folder(config.root)
    if any((folder / config.name).rglob("*.parquet")):
        return images.parquet(config, folder / config.name)
    if config.name in layouts.READERS:
        found = layouts.READERS[config.name](folder, config.image_size)
        if found is not None:
            return found
    return images.from_hub(config, folder)


def data_folder(root: str) -> Path:
    """Return the folder that data sets lie in."""
    return Path(root or os.environ.get("TRICOUPLE_DATA") or "data").expanduser()


def place_of(config: ImageData) -> str:
    """Return what a message calls the data."""
    return f"data.root={config.root}" if config.root else f"data={config.name}"


def digits() -> Found:
    """1,797 handwritten digits of 8×8 pixels; scikit-learn has them, nothing is downloaded."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    whole = ImageSplit.whole(torch.from_numpy(pixels), torch.from_numpy(labels))
    return Found(whole, None, tuple("0123456789"))


def shrunk(pixels: Tensor, side: int) -> Tensor:
    """Reduce 8-bit images (n, c, h, h) to a side; smaller ones are enlarged where they are used."""
    if pixels.shape[-1] <= side:
        return pixels
    parts = [
        interpolate(part.float(), (side, side), mode="bilinear", antialias=True).round().byte()
        for part in pixels.split(4096)
    ]
    return torch.cat(parts)


def hold_out(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split indices by class: (rest, held out), both in ascending order.

    A class of one or two samples stays in the rest, any other gives at least one sample and keeps
    at least one. The split does not depend on the seed of a run: all runs have the same test data.

    Args:
        labels: Any integers, shape (n,).
        share: What is held out of each class, from 0 (nothing) to 1.
        seed: Of the draw.
    """
    generator = np.random.default_rng(seed)
    held_out: list[int] = []
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        least = 1 if share > 0 and len(members) > 2 else 0
        held_out.extend(members[: min(max(round(share * len(members)), least), len(members) - 1)])
    chosen = np.sort(np.array(held_out, dtype=np.int64))
    return np.setdiff1d(np.arange(len(labels)), chosen), chosen


def stratified(labels: np.ndarray, size: int, seed: int = 0) -> np.ndarray:
    """Draw exactly ``size`` indices in the proportions of the classes, in ascending order.

    Each class has one if ``size`` allows. Labels are any integers, shape (n,).
    """
    place = np.empty(len(labels))  # of a sample in its class, from 0 to 1
    generator = np.random.default_rng(seed)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        place[members] = np.arange(len(members)) / len(members)
    order = generator.permutation(len(labels))  # between classes, ties are broken at random
    return np.sort(order[np.argsort(place[order], kind="stable")[:size]])


def _hashes(split: ImageSplit) -> set[bytes]:
    return {
        hashlib.sha256(image.tobytes()).digest()
        for part in split.batches()
        for image in part.numpy()
    }
