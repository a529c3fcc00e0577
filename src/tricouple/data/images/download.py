"""Fetching published data sets with torchvision, and comparing files with the published ones."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tricouple.data.images.errors import DataError
from tricouple.torchvision_ops import declare_missing

TINY_IMAGENET = (
    "http://cs231n.stanford.edu/tiny-imagenet-200.zip",
    "90528d7ca1a48142e341f4ef8d21d0de",
)
_PATIENCE = 30.0  # seconds that a server may stay silent


def torchvision_datasets() -> Any:
    """The module ``torchvision.datasets``, imported when it is needed."""
    declare_missing()
    from torchvision import datasets

    return datasets


def fetch(name: str, root: Path, expected: str, start: Callable[[Path], object]) -> None:
    """Download a data set into a folder.

    Args:
        name: What the user calls the data set.
        root: The folder that data sets live in.
        expected: Which files should be where, for the user who has to get them by hand.
        start: Downloads into the folder and returns when all is there.

    Raises:
        DataError: If the download fails; it says which files go where.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with _impatient_sockets():
            start(root)
    except Exception as error:  # servers, archives and disks fail in many ways
        reason = " ".join(f"{type(error).__name__}: {error}".split())  # on one line
        raise DataError(f"{missing(name, expected)}. The download failed: {reason}") from error


def missing(name: str, expected: str) -> str:
    """The message for a data set that is not where it was looked for."""
    return (
        f"data {name!r} was not found. Expected {expected}. "
        "Put the files there, or name another folder with root or TRICOUPLE_DATA"
    )


def differs(path: Path, md5: str) -> bool:
    """Whether a file is another one than the published one."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "md5").hexdigest() != md5


@contextmanager
def _impatient_sockets() -> Iterator[None]:
    """Behind some firewalls connections never answer; torchvision would wait forever."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(_PATIENCE)
    try:
        yield
    finally:
        socket.setdefaulttimeout(before)
