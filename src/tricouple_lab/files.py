"""Files that are either whole or not there, and tensors read without running code from them."""

from __future__ import annotations

import fcntl
import os
import pickle
import socket
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

import torch

from tricouple_lab.options import interrupted


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
    aside = beside(path)
    try:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with aside.open("wb") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(aside, path)
        finally:
            aside.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        if interrupted(error):
            raise KeyboardInterrupt from error
        # torch reports a failed write as a RuntimeError of its archive writer.
        cause = error if isinstance(error, OSError) else error.__context__
        reason = cause.strerror if isinstance(cause, OSError) and cause.strerror else str(error)
        before = "the file from before is unharmed" if path.exists() else "nothing was written"
        raise WriteError(f"cannot write {path}: {reason}; {before}") from error


def beside(path: Path) -> Path:
    """Where a file is written before it is whole; two machines may share the disk."""
    return path.with_name(f".{path.name}.{socket.gethostname()}.{os.getpid()}.part")


def remove_debris(folder: Path) -> None:
    """Remove what writers left that were killed; nobody may be writing into the folder."""
    for path in [*folder.glob(".*.part"), *folder.glob(".last.ckpt.*")]:
        path.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically; halves of characters, which no encoding has, as escapes."""
    write_atomically(path, lambda file: file.write(text.encode(errors="backslashreplace")))


@contextmanager
def locked(path: Path, waiting: Callable[[str], object]) -> Iterator[None]:
    """Hold a lock that one process can hold at a time; it ends with the process.

    Args:
        path: The file that is the lock; it is gone afterwards.
        waiting: Called with the process and the machine that hold it, if they have to be waited
            for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        while True:
            file = stack.enter_context(path.open("a+"))
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting(path.read_text() or "starting")
                fcntl.flock(file, fcntl.LOCK_EX)
            except OSError:  # a disk without locks
                break
            # Who had it before removed the file: somebody else may hold a new one.
            if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
                break
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def cache_home() -> Path:
    """Where what can be computed again is kept: TRICOUPLE_CACHE, or ``~/.cache/tricouple``."""
    return Path(os.environ.get("TRICOUPLE_CACHE") or "~/.cache/tricouple").expanduser()


def save_tensors(path: Path, content: dict[str, Any]) -> None:
    """Save tensors and plain values atomically."""
    write_atomically(path, lambda file: torch.save(content, file))


def load_tensors(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values onto the CPU.

    Raises:
        CheckpointError: If the file is missing, damaged, or holds anything else.
    """
    try:
        # PyTorch does not look at the checksums that it writes.
        with zipfile.ZipFile(path) as archive:
            if (damaged := archive.testzip()) is not None:
                raise CheckpointError(f"{path} is damaged: {damaged} has another checksum")
        content = torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except pickle.UnpicklingError as error:  # whose message tells how to run the code in it
        raise CheckpointError(
            f"{path} is not a checkpoint, or damaged: it holds more than tensors and plain values"
        ) from error
    except (OSError, RuntimeError, EOFError, LookupError, TypeError, AttributeError,
            zipfile.BadZipFile, NotImplementedError, zlib.error) as error:  # fmt: skip
        raise CheckpointError(f"{path} is not a checkpoint, or damaged: {error}") from error
    if not isinstance(content, dict):
        raise CheckpointError(f"{path} is not a checkpoint: it holds a {type(content).__name__}")
    return content
