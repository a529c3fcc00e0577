"""Captioned images of any format, cut to size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from tricouple import checks
from tricouple.data.captions.cache import decoded
from tricouple.data.captions.coco import read_coco
from tricouple.data.captions.pictures import Pictures
from tricouple.data.captions.problems import Problems
from tricouple.data.captions.sets import CaptionData, CaptionedImages, Entry
from tricouple.data.captions.shapes import N_SHAPES, draw_shapes
from tricouple.data.captions.shards import read_shards
from tricouple.data.captions.table import read_table
from tricouple.data.images.errors import DataError

FORMATS = ("shapes", "coco", "csv", "shards")


@dataclass(frozen=True)
class Source:
    """Which images and captions.

    Attributes:
        name: Of the data set.
        format: ``shapes``, ``coco``, ``csv`` or ``shards``.
        root: Folder of the data set; None for ``folder`` inside TRICOUPLE_DATA or the user's cache.
        folder: Where data folders have this set.
        train: File of captions to train on, or a pattern of shards; relative to the root.
        validation: The same, to choose settings on; None to hold images out of the training set.
        test: The same, to evaluate on; None to hold images out of the training set.
        train_images: Folder that the training images are named from, relative to the root.
        validation_images: The same for the validation images.
        test_images: The same for the test images.
        image_column: Of a CSV file: names of image files.
        caption_column: Of a CSV file: captions.
        separator: Of a CSV file: what is between two columns.
        skip: Leave out what is not usable (missing files, empty captions, unknown images) and say
            how much, instead of refusing.
        train_size: Train on this many images at most; None for all.
        validation_size: How many images to hold out if there is no file for validation.
        test_size: How many images to hold out if there is no file for the test.
        cache: Folder for decoded images; None to decode them again and again.
    """

    name: str
    format: str
    root: str | None = None
    folder: str | None = None
    train: str | None = None
    validation: str | None = None
    test: str | None = None
    train_images: str = "."
    validation_images: str = "."
    test_images: str = "."
    image_column: str = "path"
    caption_column: str = "caption"
    separator: str = ","
    skip: bool = False
    train_size: int | None = None
    validation_size: int = 0
    test_size: int = 0
    cache: str | None = None


def load(wanted: Source, side: int, seed: int) -> CaptionData:
    """Read a data set, and decode what is used of it.

    The test set is the same for every seed; the seed chooses the training subset and the images
    that are held out of it for validation.

    Args:
        wanted: Which data, and how much of them.
        side: Of the square images that networks see.
        seed: Of the run.

    Raises:
        DataError: If files are missing, damaged or not what they should be.
        ValueError: If the sizes are not possible.
    """
    checks.one_of("data.format", wanted.format, FORMATS)
    if wanted.format == "shapes":
        return _shapes(wanted, side)
    notes: list[str] = []
    train = _read(wanted, "train", notes)
    test = _read(wanted, "test", notes) if wanted.test is not None else None
    validation = _read(wanted, "validation", notes) if wanted.validation is not None else None
    if test is None:
        train, test = _held_out(train, wanted.test_size, 0, "data.test_size", "data.test")
    if validation is None and wanted.validation_size:
        train, validation = _held_out(
            train, wanted.validation_size, seed, "data.validation_size", "data.validation"
        )
    if wanted.train_size is not None:
        checks.count("data.train_size", wanted.train_size)
        train = _drawn(train, seed)[: wanted.train_size]
    return CaptionData(
        _captioned(train, side, wanted.cache),
        None if validation is None else _captioned(validation, side, wanted.cache),
        _captioned(test, side, wanted.cache),
        tuple(notes),
    )


def _shapes(wanted: Source, side: int) -> CaptionData:
    checks.count("data.test_size", wanted.test_size)
    held_out = [size for size in (wanted.validation_size, wanted.test_size) if size]
    size = N_SHAPES - sum(held_out) if wanted.train_size is None else wanted.train_size
    checks.count("data.train_size", size)
    train, *others = draw_shapes((size, *held_out), side)
    return CaptionData(train, others[0] if wanted.validation_size else None, others[-1])


def root_of(wanted: Source) -> Path:
    """The folder of a data set.

    Example:
        >>> root_of(Source("mine", "coco", root="/photos/coco")).as_posix()
        '/photos/coco'
    """
    if wanted.root is not None:
        return Path(wanted.root).expanduser()
    home = Path(os.environ.get("TRICOUPLE_DATA") or "~/.cache/tricouple").expanduser()
    return home / (wanted.folder or wanted.name)


def _read(wanted: Source, part: str, notes: list[str]) -> list[Entry]:
    name = getattr(wanted, part)
    if name is None:
        raise ValueError(f"data={wanted.name} needs data.{part}: a file of captions")
    root = root_of(wanted)
    if not root.is_dir():
        above = f", or TRICOUPLE_DATA to the folder that has {wanted.folder}/" * bool(wanted.folder)
        raise DataError(f"{root}: there is no such folder: set data.root{above}")
    images = root / getattr(wanted, f"{part}_images")
    problems: Problems
    if wanted.format == "coco":
        entries, problems = read_coco(root / name, images)
    elif wanted.format == "csv":
        entries, problems = read_table(
            root / name,
            images,
            image_column=wanted.image_column,
            caption_column=wanted.caption_column,
            separator=wanted.separator,
        )
    else:
        entries, problems = read_shards(root / name)
    notes += problems.settle(skip=wanted.skip)
    if not entries:
        raise DataError(f"{root / name} has no image with a caption")
    return entries


def _held_out(
    entries: list[Entry], size: int, seed: int, setting: str, file: str
) -> tuple[list[Entry], list[Entry]]:
    """Part the images in two at random: the rest, and some that are held out."""
    if not 0 < size < len(entries):
        raise ValueError(
            f"{setting} is {size} of {len(entries)} images: name a file as {file}, or hold out "
            f"between 1 and {len(entries) - 1} images"
        )
    shuffled = _drawn(entries, seed)
    return shuffled[size:], shuffled[:size]


def _drawn(entries: Sequence[Entry], seed: int) -> list[Entry]:
    order = torch.randperm(len(entries), generator=torch.Generator().manual_seed(seed))
    return [entries[index] for index in order.tolist()]


def _captioned(entries: list[Entry], side: int, cache: str | None) -> CaptionedImages:
    pictures = Pictures(tuple(entry.picture for entry in entries), side)
    images = pictures if cache is None else decoded(pictures, Path(cache))
    return CaptionedImages.of(images, [entry.captions for entry in entries])
