"""Image files and tables of images: decoded once to 8-bit squares, kept in the cache.

Each picture is cut to its central square and resized; ``datasets`` reads tables of images.
"""

import contextlib
import hashlib
import io
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tricouple_lab import names
from tricouple_lab.config.schema import ImageData
from tricouple_lab.data.hub import load_tables
from tricouple_lab.data.sources import GREY, ImageSplit, Sets
from tricouple_lab.files import cache_folder, write_atomically
from tricouple_lab.names import UserError

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
# What Pillow may read: others are for documents, and some of them start programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_AT_A_TIME = 256


def own_folder(config: ImageData) -> Sets:
    """Folders named after classes, below ``root`` or below ``root/train`` and ``root/test``.

    Images that lie in ``root`` itself, or in ``root/train``, without class folders have no labels.
    """
    root = Path(config.root).expanduser()
    if not config.root or not root.is_dir():
        raise UserError(f"data.root={config.root}: expected a folder with a folder per class")
    tests = [root / name for name in ("test", "val") if (root / name).is_dir()]
    parts = {"train": root}
    if (root / "train").is_dir() and tests:
        parts = {"train": root / "train", "test": tests[0]}
    splits, notes, classes = {}, [], tuple[str, ...]()
    for part, top in parts.items():
        files = image_files(top)
        if not files:
            raise UserError(f"{top}: no images ({', '.join(SUFFIXES)}) found")
        # The folder below ``top`` that each file lies in; none for a file in ``top`` itself.
        places = [file.relative_to(top.resolve()).parts[:-1][:1] for file in files]
        if part == "train":
            classes = tuple(sorted({name for place in places for name in place}))
            if not classes:
                notes.append(
                    f"{top} has no class folders: setting=ucl can learn from these images; "
                    "without labels only the geometry of the embeddings is measured"
                )
            elif () in places:
                beside = places.count(())
                notes.append(f"{beside} images outside the class folders are left out")
        unknown = {name for place in places for name in place} - {*classes}
        if unknown and classes:
            raise UserError(f"{top / min(unknown)}: a class of test images without training images")
        codes = [classes.index(place[0]) if place and classes else -1 for place in places]
        labels = torch.tensor(codes)
        split = ImageSplit.whole(decoded_files(files, config.image_size), labels)
        splits[part] = split.rows(np.flatnonzero(labels >= 0)) if classes else split
    return Sets(splits, classes, tuple(notes))


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


def tables(config: ImageData, folder: Path) -> Sets:
    """A data set in the layout of the hub below ``folder/NAME``, or of the hub itself."""
    from tricouple_lab.data.layouts import PUBLISHED

    place, row = folder / config.name, names.IMAGES[config.name].hub
    looked_for = f"{folder}/{PUBLISHED[config.name][0]}"
    rows = load_tables(config.name, place, row, looked_for, "data=digits, which needs no files")
    parts = {"train": "train"}
    for name in ("validation", "valid", "test"):
        if name in rows:
            parts["test"] = name
    if "train" not in rows:
        raise UserError(f"{place}: expected a split called train, found {', '.join(rows)}")
    image, label = _columns(rows["train"], str(place))
    labels = {part: np.asarray(rows[name][label]) for part, name in parts.items()}
    classes = getattr(rows["train"].features[label], "names", None)
    if classes is None:
        classes = np.unique(labels["train"]).tolist()
        labels = {part: pd.Index(classes).get_indexer(own) for part, own in labels.items()}
    splits = {}
    for part, name in parts.items():
        if (labels[part] < 0).any():
            raise UserError(f"{place}: a class of the {part} images has no training images")
        table = rows[name].select_columns([image]).rename_column(image, "image")
        channels = 1 if config.name in GREY else 3
        pixels = decoded(table, config.image_size, channels, f"{place}, {part}")
        splits[part] = ImageSplit.whole(pixels, torch.tensor(labels[part]))
    return Sets(splits, tuple(map(str, classes)))


def _columns(rows: Any, place: str) -> tuple[str, str]:
    """Return the names of the columns that hold images and their classes."""
    import datasets

    features = rows.features
    images = [n for n, kind in features.items() if isinstance(kind, datasets.Image)]
    images += [name for name in ("image", "img") if name in features]
    labels = [name for name in ("label", "fine_label", "labels") if name in features]
    labels += [n for n, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        found = ", ".join(features)
        raise UserError(f"{place}: expected columns of images and of labels, found {found}")
    return images[0], labels[0]


def decoded(rows: Any, side: int, channels: int, place: str) -> Tensor:
    """Decode the column ``image`` of a ``datasets.Dataset``, which a message calls ``place``.

    Returns uint8 of shape (n, channels, side, side), mapped into memory from the cache.
    """
    import datasets

    files = [Path(file["filename"]) for file in rows.cache_files]
    rows = rows.cast_column("image", datasets.Image(decode=False))

    def read() -> Iterator[tuple[Any, str]]:
        for number, row in enumerate(rows):
            path, content = row["image"]["path"], row["image"]["bytes"]
            yield (
                (path, path)
                if content is None
                else (io.BytesIO(content), f"{place}, image {number}")
            )

    return _cached(len(rows), side, channels, files, read)


def decoded_files(files: Sequence[Path], side: int, channels: int = 3) -> Tensor:
    """Decode image files in their order; as ``decoded``."""
    named = [(file, str(file)) for file in files]
    return _cached(len(files), side, channels, files, lambda: iter(named))


def _cached(
    n: int,
    side: int,
    channels: int,
    files: Sequence[Path],
    read: Callable[[], Iterator[tuple[Any, str]]],
) -> Tensor:
    """Decode what ``read`` gives, (file, name in a message), or map it from the cache."""
    key = hashlib.sha256(f"{n} {channels} {side}".encode())
    for file in files:
        about = file.stat()
        key.update(repr((str(file), about.st_size, about.st_mtime_ns)).encode())
    path = cache_folder() / "pixels" / f"{key.hexdigest()[:24]}.npy"
    shape = n, channels, side, side
    found = _mapped(path, shape) if files else None
    if found is not None:
        return found

    def fill(pixels: np.ndarray) -> np.ndarray:
        rows = read()
        with ThreadPoolExecutor() as pool, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Pillow's remarks on metadata
            for start in range(0, n, _AT_A_TIME):
                part = islice(rows, _AT_A_TIME)
                images = list(pool.map(lambda row: decode(row[0], row[1], channels, side), part))
                pixels[start : start + len(images)] = images
        return pixels

    def write(part: Path) -> None:
        fill(np.lib.format.open_memmap(part, mode="w+", dtype=np.uint8, shape=shape)).flush()  # type: ignore[attr-defined]

    with contextlib.suppress(OSError):  # a read-only or full disk: without a cache
        write_atomically(path, write)
        found = _mapped(path, shape)
        assert found is not None
        return found
    return torch.from_numpy(fill(np.empty(shape, np.uint8)))


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
        reason = f"{type(error).__name__}: {error}"
        raise UserError(f"{name}: cannot be read as an image ({reason}); remove it") from None


def pixels_of(item: Any, channels: int, side: int) -> Tensor:
    """Return the central square of a path or PIL image as uint8, shape (channels, side, side)."""
    if isinstance(item, Image.Image):
        return torch.from_numpy(square_pixels(item, channels, side))
    return torch.from_numpy(decode(item, str(item), channels, side))


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
