"""Image files, and images inside tar archives, as a tensor that is decoded when it is indexed."""

from __future__ import annotations

import hashlib
import io
import math
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from tricouple_lab.files import beside

SUFFIXES = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")
MEMORY_BUDGET = 2 << 30  # bytes of decoded images; larger sets are decoded batch by batch

# What Pillow may read: others are for documents and more, and some of them start programs.
_FORMATS = ("BMP", "GIF", "JPEG", "PNG", "PPM", "TIFF", "WEBP")
_GREY = ("1", "L", "LA", "I", "I;16", "I;16B", "I;16L")


class DataError(ValueError):
    """Files that are missing, unreadable or not what they should be; the message names them."""


@dataclass(frozen=True)
class Member:
    """An image inside an uncompressed tar archive, and where its bytes are."""

    path: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.path}/{self.name}"

    def open(self) -> io.BytesIO:
        """The bytes of the image."""
        with self.path.open("rb") as archive:
            archive.seek(self.offset)
            return io.BytesIO(archive.read(self.size))


@dataclass(frozen=True)
class ImageFiles:
    """Images on disk that answer ``files[indices]`` like a tensor of shape (n, c, size, size).

    Each image is scaled until its short side is ``size`` and cut to the square in its centre.
    """

    paths: tuple[Path | Member, ...]  # one file, or member of an archive, an image
    channels: int  # 1 for grey images, 3 for colour; files of the other kind are converted
    size: int  # side of the decoded squares

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """The shape of the tensor that these files amount to."""
        return len(self.paths), self.channels, self.size, self.size

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, indices: Tensor) -> Tensor:
        chosen = self.take(indices).paths
        return torch.stack([decode(path, self.channels, self.size) for path in chosen])

    def take(self, indices: Tensor) -> ImageFiles:
        """The files of a subset, still on disk."""
        chosen = tuple(self.paths[index] for index in indices.tolist())
        return ImageFiles(chosen, self.channels, self.size)

    def in_memory(self) -> Tensor | ImageFiles:
        """All images as one 8-bit tensor if the budget allows, these files otherwise."""
        if math.prod(self.shape) > MEMORY_BUDGET:
            return self
        images = np.empty(self.shape, np.uint8)
        if damaged := self._decode_into(images):
            raise damaged[0]
        return torch.from_numpy(images)

    def cached(self, folder: Path, notes: list[str]) -> Tensor:
        """All images as one 8-bit tensor that lies in a file: each is decoded and resized once.

        If the same images were decoded before, their file in the folder is used. Notes get a
        sentence if it is damaged and made again.

        Raises:
            DataError: If images are damaged; it names the first and counts them.
            OSError: If the file cannot be written.
        """
        path = folder / f"{self._digest()}.npy"
        images = self._stored(path)
        if images is None:
            if path.exists():
                notes.append(f"{path} was damaged and has been made again")
            folder.mkdir(parents=True, exist_ok=True)
            aside = beside(path)
            try:
                images = np.lib.format.open_memmap(
                    aside, mode="w+", dtype=np.uint8, shape=self.shape
                )
                if damaged := self._decode_into(images):
                    raise DataError(f"{damaged[0]} ({len(damaged)} of {len(self)} are damaged)")
                images.flush()
                os.replace(aside, path)
            finally:
                aside.unlink(missing_ok=True)
            images = self._stored(path)
        return torch.from_numpy(images)

    def _stored(self, path: Path) -> np.ndarray | None:
        """The decoded images in a file; None if it is not there, or damaged."""
        try:
            # Copy on write: nobody writes, but PyTorch warns of memory that cannot be written.
            found: np.ndarray = np.load(path, mmap_mode="c", allow_pickle=False)
        except (OSError, ValueError, EOFError):
            return None
        return found if found.shape == self.shape and found.dtype == np.uint8 else None

    def _decode_into(self, images: np.ndarray) -> list[DataError]:
        """Decode everything, in several threads; returns what is wrong with damaged images."""
        damaged: dict[int, DataError] = {}

        def read(index: int) -> None:
            try:
                images[index] = decode(self.paths[index], self.channels, self.size).numpy()
            except DataError as error:
                damaged[index] = error

        with ThreadPoolExecutor(usable_cores()) as pool:  # decoders work outside Python's lock
            list(pool.map(read, range(len(self)), chunksize=64))
        return [damaged[index] for index in sorted(damaged)]

    def _digest(self) -> str:
        """A name that changes when an image does, found without reading them."""
        found = hashlib.sha256(str(self.size).encode())
        for source in self.paths:
            path = source.path if isinstance(source, Member) else source
            offset = source.offset if isinstance(source, Member) else 0
            about = path.stat()
            found.update(repr((str(source), offset, about.st_size, about.st_mtime_ns)).encode())
        return found.hexdigest()[:24]


def decode(source: Path | Member, channels: int, size: int) -> Tensor:
    """Read an image as an 8-bit tensor of shape (channels, size, size), grey or in colour."""
    with (
        _readable(source),
        Image.open(source.open() if isinstance(source, Member) else source, "r", _FORMATS) as image,
    ):
        image.draft("RGB" if channels == 3 else "L", (size, size))  # JPEGs shrink for free
        return pixels(image, channels, size)


def pixels(image: Image.Image, channels: int, size: int) -> Tensor:
    """An image as an 8-bit tensor of shape (channels, size, size), grey or in colour."""
    upright = ImageOps.exif_transpose(image)
    square = ImageOps.fit(_eight_bit(upright, channels), (size, size), Image.Resampling.BILINEAR)
    # A copy, since arrays of images are read-only.
    found = torch.from_numpy(np.array(square))
    return found.reshape(size, size, channels).permute(2, 0, 1)


def common_format(paths: Sequence[Path]) -> tuple[int, Path, int, bool]:
    """What images have in common, from headers, without decoding.

    That is the smallest short side, the image that has it, the median short side, and whether all
    images are grey.
    """
    sides, grey = [], True
    for path in paths:
        with _readable(path), Image.open(path, "r", _FORMATS) as image:
            sides.append(min(image.size))
            grey &= image.mode in _GREY
    smallest = min(sides)
    return smallest, paths[sides.index(smallest)], sorted(sides)[len(sides) // 2], grey


def find_images(folders: Sequence[Path], notes: list[str]) -> list[tuple[Path, ...]]:
    """The image files below each of some folders, sorted; hidden files and folders are left out.

    Links are followed, after all that is really there; but nothing is taken twice, however many
    ways lead to it, and nothing from above. So a link never moves an image to another class, nor
    from the test set to the training set.

    Notes get a sentence for each folder or file that is left out.
    """
    seen = {_inode(place): place for folder in folders for place in folder.resolve().parents}
    found: list[list[Path]] = [[] for _ in folders]
    ways = [way for way in zip(folders, found, strict=True) if way[0].is_dir()]
    while ways:
        links: list[tuple[Path, list[Path]]] = []
        for start, images in ways:
            for path in _walk(start, seen, notes) if start.is_dir() else [start]:
                if path.is_symlink() and path != start:
                    links.append((path, images))
                elif not path.is_file():  # a pipe would be waited for
                    what = "no file that can be read" if path.exists() else "a link to nothing"
                    raise DataError(f"{path} is {what}: remove it")
                elif _first(path, seen, notes):
                    images.append(path)
        ways = links
    return [tuple(sorted(images)) for images in found]


def _walk(start: Path, seen: dict[tuple[int, int], Path], notes: list[str]) -> Iterator[Path]:
    """The images below a folder, and links to other folders."""

    def unreadable(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    for parent, folders, names in os.walk(start, onerror=unreadable):
        if not _first(Path(parent), seen, notes):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith((".", "__")))
        yield from (Path(parent, name) for name in folders if Path(parent, name).is_symlink())
        yield from (Path(parent, name) for name in sorted(names) if is_image(name))


def _first(path: Path, seen: dict[tuple[int, int], Path], notes: list[str]) -> bool:
    """Whether a folder or a file has not been seen yet, by any name; now it has."""
    before = seen.setdefault(_inode(path), path)
    if before is not path:
        notes.append(f"{path} is left out: it is a second way to {before}")
    return before is path


def _inode(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_dev, about.st_ino


def usable_cores() -> int:
    """How many cores this process may use, which may be fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def is_image(name: str) -> bool:
    """Whether a file's name says that it is an image."""
    return not name.startswith(".") and name.lower().endswith(SUFFIXES)


@contextmanager
def _readable(source: Path | Member) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # decoders raise all sorts of errors on damaged files
        raise DataError(
            f"{source} is not a readable image ({type(error).__name__}: {error}): "
            "replace the file or remove it"
        ) from error


def _eight_bit(image: Image.Image, channels: int) -> Image.Image:
    if image.mode == "F":
        raise ValueError("floating-point pixels have no agreed range: convert them to 8 bits")
    if image.mode.startswith("I"):  # 16 bits, which Pillow would clip rather than scale
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode == "P":
        image = image.convert("RGBA")
    return image.convert("RGB" if channels == 3 else "L")
