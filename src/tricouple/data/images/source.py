"""What is asked of a reader, and what it answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tricouple.data.images.sets import ImageSet


@dataclass(frozen=True)
class Request:
    """Where to look and what to do if nothing is there.

    Attributes:
        root: The folder that data sets live in; for ``folder``, the images' own.
        download: Whether missing data may be downloaded.
        image_size: Side that images of differing sizes are decoded to; None leaves the choice.
        eval_root: For ``folder``: labelled images to evaluate on.
    """

    root: Path
    download: bool = True
    image_size: int | None = None
    eval_root: Path | None = None


@dataclass(frozen=True, eq=False)
class Found:
    """The images of a data set as they were found, before subsets are drawn."""

    train: ImageSet
    test: ImageSet | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()


def first_folder(candidates: Sequence[Path], names: Sequence[str]) -> Path | None:
    """The first folder that holds one of the named files."""
    for folder in candidates:
        if any((folder / name).is_file() for name in names):
            return folder
    return None


def count_note(what: str, found: int, published: int) -> list[str]:
    """A note if a set is smaller or larger than the published one."""
    return [] if found == published else [f"{found} of {published} {what} images are here"]
