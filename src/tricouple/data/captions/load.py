"""Captioned images of any format, cut to size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import torch

from tricouple import checks
from tricouple.conf.clip.schema import Captions
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


def load(wanted: Captions, side: int, seed: int) -> CaptionData:
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


def _shapes(wanted: Captions, side: int) -> CaptionData:
    checks.count("data.test_size", wanted.test_size)
    held_out = [size for size in (wanted.validation_size, wanted.test_size) if size]
    size = N_SHAPES - sum(held_out) if wanted.train_size is None else wanted.train_size
    checks.count("data.train_size", size)
    train, *others = draw_shapes((size, *held_out), side)
    return CaptionData(train, others[0] if wanted.validation_size else None, others[-1])


def root_of(wanted: Captions) -> Path:
    """The folder of a data set.

    Example:
        >>> from tricouple.conf.clip.schema import Clip
        >>> from tricouple.conf.compose import configure
        >>> root_of(configure(["data=coco", "data.root=/photos/coco"], Clip).data).as_posix()
        '/photos/coco'
    """
    if wanted.root is not None:
        return Path(wanted.root).expanduser()
    home = Path(os.environ.get("TRICOUPLE_DATA") or "~/.cache/tricouple").expanduser()
    return home / (wanted.folder or wanted.name)


def _read(wanted: Captions, part: str, notes: list[str]) -> list[Entry]:
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
