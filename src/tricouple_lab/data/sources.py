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
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tricouple_lab.config.schema import ImageData

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

    def content(self) -> Iterator[bytes]:
        """Yield what the digest is computed from."""
        yield repr((len(self), tuple(self.pixels.shape[1:]))).encode()
        yield self.labels.numpy().tobytes()
        yield from (part.numpy().tobytes() for part in self.batches(4096))


@dataclass(frozen=True, eq=False)
class Sets:
    """A data set of images, captions, texts or vectors; each split has ``content`` and a length."""

    splits: dict[str, Any]  # train, validation, test
    classes: tuple[str, ...] = ()  # empty: without labels
    notes: tuple[str, ...] = ()  # printed once

    def digest(self) -> str:
        """Return a sha256 of the decoded content: the same data elsewhere have the same digest."""
        found = hashlib.sha256(repr(self.classes).encode())
        for name, split in self.splits.items():
            found.update(name.encode())
            for part in split.content():
                found.update(part)
        return found.hexdigest()


def load_images(config: ImageData) -> Sets:
    """Read the data set, hold out test (if it has none) and validation images, and cut to size."""
    found = read(config)
    splits, notes = dict(found.splits), list(found.notes)
    for name, share in (("test", 0.2), ("validation", config.validation_share)):
        if name not in splits:
            rest, held_out = hold_out(splits["train"].labels.numpy(), share)
            splits[name] = splits["train"].rows(held_out)
            splits["train"] = splits["train"].rows(rest)
    splits = {name: splits[name] for name in ("train", "validation", "test")}
    notes += reduce(splits, config, "images")
    train, test = (
        {
            hashlib.sha256(image.tobytes()).digest()
            for part in split.batches()
            for image in part.numpy()
        }
        for split in (splits["train"], splits["test"])
    )
    if train & test:
        notes.append(f"{len(train & test)} of the test images also occur in the training images")
    notes += lone(splits["train"].labels, found.classes, "image")
    return Sets(splits, found.classes, tuple(notes))


def lone(labels: Tensor, classes: Sequence[str], what: str) -> list[str]:
    """Return a note if classes have one training sample, which has no positive."""
    counts = torch.bincount(labels[labels >= 0], minlength=len(classes))
    found = [name for name, count in zip(classes, counts.tolist(), strict=False) if count == 1]
    return [f"one training {what}, so no positive: {', '.join(found[:5])}"] if found else []


def reduce(splits: dict[str, Any], config: Any, what: str) -> list[str]:
    """Cut splits to ``data.train_size`` and so on, in place; return a note for each that is cut."""
    notes = []
    for name, split in splits.items():
        size = getattr(config, f"{name}_size", None)
        if size and size < len(split):
            labels = getattr(split, "labels", torch.zeros(len(split))).numpy()
            splits[name] = split.rows(stratified(labels, size))
            notes.append(f"{size} of {len(split)} {name} {what} are used (data.{name}_size)")
    return notes


def read(config: ImageData) -> Sets:
    """Find the data set that a configuration names; see the top of this file for the places."""
    if config.name == "digits":
        return digits()
    from tricouple_lab.data import images, layouts

    if config.name == "folder":
        return images.own_folder(config)
    folder = data_folder(config.root)
    found = None
    if not any((folder / config.name).rglob("*.parquet")):
        found = layouts.READERS[config.name](folder, config.image_size)
    return found or images.tables(config, folder)


def data_folder(root: str) -> Path:
    """Return the folder that data sets lie in."""
    return Path(root or os.environ.get("TRICOUPLE_DATA") or "data").expanduser()


def digits() -> Sets:
    """1,797 handwritten digits of 8×8 pixels; scikit-learn has them, nothing is downloaded."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    pixels = (images.reshape(-1, 1, 8, 8) * (255 / 16)).round().astype(np.uint8)
    whole = ImageSplit.whole(torch.from_numpy(pixels), torch.from_numpy(labels))
    return Sets({"train": whole}, tuple("0123456789"))


def shrunk(pixels: Tensor, side: int) -> Tensor:
    """Reduce 8-bit images (n, c, h, h) to a side; smaller ones are enlarged where they are used."""
    if pixels.shape[-1] <= side:
        return pixels
    parts = [
        interpolate(part.float(), (side, side), mode="bilinear", antialias=True).round().byte()
        for part in pixels.split(4096)
    ]
    return torch.cat(parts)


def unit_range(images: Tensor, size: int) -> Tensor:
    """Return images as float32 in [0, 1] of shape (n, c, size, size); 8-bit ones are scaled."""
    found = images.float() / 255 if images.dtype == torch.uint8 else images
    if found.shape[-2:] == (size, size):
        return found
    return interpolate(found, (size, size), mode="bilinear", antialias=True)


def hold_out(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Split indices by class: (rest, held out), both in ascending order.

    A class of one or two samples stays in the rest, any other gives at least one sample and keeps
    at least one. The split does not depend on the seed of a run: all runs have the same test data.
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

    Each class has one if ``size`` allows.
    """
    place = np.empty(len(labels))  # of a sample in its class, from 0 to 1
    generator = np.random.default_rng(seed)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        place[members] = np.arange(len(members)) / len(members)
    order = generator.permutation(len(labels))  # between classes, ties are broken at random
    return np.sort(order[np.argsort(place[order], kind="stable")[:size]])
