"""Files that are either whole or not there, and tensors read without running code from them."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import torch


class WriteError(OSError):
    """A file could not be written; what was there before is unharmed."""


class CheckpointError(ValueError):
    """A file that is no usable checkpoint; the message names it."""


def write_atomically(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Write a file so that whoever looks sees the old content or the new, never a part.

    Args:
        path: The file.
        write: Called with a binary file to fill.

    Raises:
        WriteError: If the disk is full or the folder not writable; the old file is still there.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "note.txt"
        >>> write_atomically(path, lambda file: file.write(b"whole"))
        >>> path.read_text()
        'whole'
    """
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    with _explained(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_atomically(path, lambda file: file.write(text.encode()))


def save_tensors(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain values atomically."""
    write_atomically(path, lambda file: torch.save(content, file))


def load_tensors(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values onto the CPU.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds anything else.
    """
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, RuntimeError, EOFError, pickle.UnpicklingError) as error:
        raise CheckpointError(f"{path} is not a checkpoint, or damaged: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a checkpoint: it holds a {type(content).__name__}")
    return content


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, RuntimeError) as error:
        # torch reports a failed write as a RuntimeError of its archive writer.
        cause = error if isinstance(error, OSError) else error.__context__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        before = "the file from before is unharmed" if path.exists() else "nothing was written"
        raise WriteError(f"cannot write {path}: {reason}; {before}") from error
