"""Image files and tables of images: decoded once to 8-bit squares, kept in the cache.

``datasets`` finds the rows; each picture is cut to its central square and resized.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import io
import os
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tricouple_lab import names
from tricouple_lab.config.schema import ImageData
from tricouple_lab.data.hub import load_hub
from tricouple_lab.data.sources import GREY, UNLABELLED, Found, ImageSplit
from tricouple_lab.files import cache_folder, write_atomically
from tricouple_lab.names import UserError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What Pillow may read: others are for documents, and some of them start programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_AT_A_TIME = 256


# --- own images -----------------------------------------------------------------------------------


def own_folder(config: ImageData) -> Found:
    """Folders named after classes, below ``root`` or below ``root/train`` and ``root/test``.

    Images that lie in ``root`` itself, or in ``root/train``, without class folders have no labels.
    """
    import datasets

    datasets.disable_progress_bars()
    root = Path(config.root).expanduser()
    if not config.root or not root.is_dir():
        raise UserError(
            f"data.root={config.root}: expected a folder of images, one folder per class"
        )
    parts = {"train": root}
    if (root / "train").is_dir():
        for name in ("test", "val"):
            if (root / name).is_dir():
                parts = {"train": root / "train", "test": root / name}
                break
    files = {part: image_files(top) for part, top in parts.items()}
    for part, found in files.items():
        if not found:
            raise UserError(f"{parts[part]}: no images ({', '.join(SUFFIXES)}) found")
    # Explicit files: from data_dir= the library takes split words anywhere in a path, and a class
    # called "test" would be lost. The files are patterns: a bracket in a name has to be escaped.
    patterns = {part: [glob.escape(str(file)) for file in found] for part, found in files.items()}
    rows = datasets.load_dataset("imagefolder", data_files=patterns, drop_labels=True)
    rows = rows.cast_column("image", datasets.Image(decode=False))
    files = {part: [Path(row["path"]) for row in rows[part]["image"]] for part in parts}
    notes: list[str] = []
    labelled = {part: _classes_of(files[part], parts[part]) for part in parts}
    classes = tuple(sorted(set(filter(None, labelled["train"]))))
    if classes and None in labelled["train"]:
        notes.append(f"{labelled['train'].count(None)} images beside the class folders: left out")
    if not classes:
        notes.append(
            f"{parts['train']} has no class folders: setting=ucl can learn from these images; "
            "without labels only the geometry of the embeddings is measured"
        )
    splits = {}
    for part in parts:
        unknown = sorted(set(filter(None, labelled[part])) - set(classes)) if classes else []
        if unknown:
            raise UserError(
                f"{parts[part] / unknown[0]}: a class of test images without training images"
            )
        pixels = decoded_files(files[part], config.image_size)
        numbers = {name: number for number, name in enumerate(classes)}
        labels = np.array([numbers.get(name or "", UNLABELLED) for name in labelled[part]])
        split = ImageSplit.whole(pixels, torch.from_numpy(labels))
        splits[part] = split.rows(np.flatnonzero(labels != UNLABELLED)) if classes else split
    return Found(splits["train"], splits.get("test"), classes, tuple(notes))


def image_files(top: Path) -> list[Path]:
    """Return the images below a folder, sorted, without hidden files; links are not followed."""
    found = []
    for parent, folders, files in os.walk(top.resolve()):
        folders[:] = [name for name in folders if not name.startswith((".", "__"))]
        found += [
            Path(parent, name)
            for name in files
            if name.lower().endswith(SUFFIXES) and not name.startswith(".")
        ]
    return sorted(file for file in found if file.is_file() and not file.is_symlink())


def _classes_of(files: Sequence[Path], top: Path) -> list[str | None]:
    """Return the folder below ``top`` that each file lies in; None for a file in ``top`` itself."""
    parts = [file.relative_to(top.resolve()).parts for file in files]
    return [first if rest else None for first, *rest in parts]


# --- tables: parquet on disk, the hub -------------------------------------------------------------


def parquet(config: ImageData, folder: Path) -> Found:
    """A data set in the layout of the hub: ``data/train-*.parquet``, ``data/test-*.parquet``."""
    import datasets

    datasets.disable_progress_bars()
    try:
        rows = datasets.load_dataset(str(folder))
    except (OSError, ValueError, RuntimeError) as error:
        reason = " ".join(str(error).split())[:150]
        raise UserError(f"{folder}: datasets cannot read it ({reason}); replace it") from None
    return _tables(config, rows, str(folder))


def from_hub(config: ImageData, folder: Path) -> Found:
    """A data set of the hub, or of its cache on disk."""
    row = names.IMAGES[config.name].hub
    try:
        return _tables(config, load_hub(row), row)
    except ConnectionError as error:
        from tricouple_lab.data.layouts import PUBLISHED

        raise UserError(
            f"data={config.name}: not found as {folder / config.name}/*.parquet or "
            f"{folder}/{PUBLISHED[config.name][0]}, nor on the hub as {row} ({error}); set "
            f"TRICOUPLE_DATA to the folder that has it, or use data=digits, which needs no files"
        ) from None


def _tables(config: ImageData, rows: Any, place: str) -> Found:
    tests = [name for name in ("test", "valid", "validation") if name in rows]
    if "train" not in rows:
        raise UserError(f"{place}: expected a split called train, found {', '.join(rows)}")
    image, label = _columns(rows["train"], place)
    feature = rows["train"].features[label]
    columns = {part: np.asarray(rows[part][label]) for part in ("train", *tests[:1])}
    classes = getattr(feature, "names", None) or np.unique(columns["train"]).tolist()
    numbers = {name: number for number, name in enumerate(classes)}
    splits = {}
    for part, column in columns.items():
        if not hasattr(feature, "names"):
            unknown = set(column.tolist()) - set(numbers)
            if unknown:
                raise UserError(
                    f"{place}: class {min(unknown)} of the {part} images has no training images"
                )
            column = np.array([numbers[name] for name in column.tolist()])
        table = rows[part].select_columns([image]).rename_column(image, "image")
        channels = 1 if config.name in GREY else 3
        pixels = decoded(table, config.image_size, channels, f"{place}, {part}")
        splits[part] = ImageSplit.whole(pixels, torch.from_numpy(column))
    test = splits[tests[0]] if tests else None
    return Found(splits["train"], test, tuple(map(str, classes)))


def _columns(rows: Any, place: str) -> tuple[str, str]:
    """Return the names of the columns that hold images and their classes."""
    import datasets

    features = rows.features
    images = [name for name, feature in features.items() if isinstance(feature, datasets.Image)]
    images += [name for name in ("image", "img") if name in features and name not in images]
    labels = [name for name in ("label", "fine_label", "labels") if name in features]
    labels += [name for name, item in features.items() if isinstance(item, datasets.ClassLabel)]
    if not images or not labels:
        found = ", ".join(features)
        raise UserError(f"{place}: expected columns of images and of labels, found {found}")
    return images[0], labels[0]


# --- decoding -------------------------------------------------------------------------------------


def decoded(rows: Any, side: int, channels: int, place: str) -> Tensor:
    """Decode the column ``image`` of a ``datasets.Dataset``.

    Args:
        rows: A dataset with a column ``image``.
        side: Of the square images, in pixels.
        channels: 1 for grey, 3 for colour.
        place: What a message calls the rows.

    Returns:
        uint8, shape (n, channels, side, side), mapped into memory from the cache.
    """
    import datasets

    files = [Path(file["filename"]) for file in rows.cache_files]
    rows = rows.cast_column("image", datasets.Image(decode=False))

    def read(start: int) -> list[tuple[Any, str]]:
        return [
            (row["path"], row["path"])
            if row["bytes"] is None
            else (io.BytesIO(row["bytes"]), f"{place}, image {number}")
            for number, row in enumerate(rows[start : start + _AT_A_TIME]["image"], start)
        ]

    return _cached(len(rows), side, channels, files, read)


def decoded_files(files: Sequence[Path], side: int, channels: int = 3) -> Tensor:
    """Decode image files in their order; as ``decoded``."""

    def read(start: int) -> list[tuple[Any, str]]:
        return [(file, str(file)) for file in files[start : start + _AT_A_TIME]]

    return _cached(len(files), side, channels, files, read)


def _cached(
    n: int,
    side: int,
    channels: int,
    files: Sequence[Path],
    read: Callable[[int], list[tuple[Any, str]]],
) -> Tensor:
    """Decode what ``read(start)`` gives, (file, name in a message), or map it from the cache."""
    key = hashlib.sha256(f"{n} {channels} {side}".encode())
    for file in files:
        about = file.stat()
        key.update(repr((str(file), about.st_size, about.st_mtime_ns)).encode())
    path = cache_folder() / "pixels" / f"{key.hexdigest()[:24]}.npy"
    shape = n, channels, side, side
    found = _mapped(path, shape) if files else None
    if found is not None:
        return found

    def fill(pixels: np.ndarray) -> None:
        with ThreadPoolExecutor() as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on metadata
            for start in range(0, n, _AT_A_TIME):
                jobs = [pool.submit(decode, *row, channels, side) for row in read(start)]
                for place, job in enumerate(jobs):
                    pixels[start + place] = job.result()

    def write(part: Path) -> None:
        pixels = np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)
        fill(pixels)
        pixels.flush()

    with contextlib.suppress(OSError):  # a read-only or full disk: without a cache
        write_atomically(path, write)
        found = _mapped(path, shape)
        assert found is not None
        return found
    pixels = np.empty(shape, np.uint8)
    fill(pixels)
    return torch.from_numpy(pixels)


def _mapped(path: Path, shape: tuple[int, ...]) -> Tensor | None:
    """Return the array in a file; None if it is not there, or damaged."""
    try:
        # Copy on write: PyTorch warns of memory that cannot be written.
        found: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return torch.from_numpy(found) if found.shape == shape and found.dtype == np.uint8 else None


def decode(source: Any, name: str, channels: int, side: int) -> np.ndarray:
    """Read a file or buffer as uint8 of shape (channels, side, side); errors give its name."""
    try:
        with Image.open(source, "r", _FORMATS) as image:
            image.draft("RGB" if channels == 3 else "L", (side, side))  # JPEGs shrink for free
            return square_pixels(image, channels, side)
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        raise UserError(
            f"{name}: cannot be read as an image ({type(error).__name__}: {error}); remove it"
        ) from None


def square_pixels(image: Image.Image, channels: int, side: int) -> np.ndarray:
    """Return the central square of an image, upright, as uint8 of shape (channels, side, side)."""
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range: convert them to 8 bits")
    upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith("I"):  # 16 bits, which Pillow would clip rather than scale
        upright = Image.fromarray((np.asarray(upright) >> 8).astype(np.uint8))
    if upright.mode == "P":
        upright = upright.convert("RGBA")
    upright = upright.convert("RGB" if channels == 3 else "L")
    square = ImageOps.fit(upright, (side, side), Image.Resampling.BICUBIC)
    return np.array(square).reshape(side, side, channels).transpose(2, 0, 1)
