"""Files that are whole or not there, locks, seeds, and what a record says about its origin."""

import contextlib
import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from filelock import FileLock, Timeout

from tricouple_lab.names import UserError

T = TypeVar("T")
PACKAGES = ("tricouple", "torch", "lightning", "timm", "datasets")


def write_atomically(path: Path, write: Callable[[Path], object]) -> None:
    """Let ``write`` fill a temporary file, then rename it to ``path``: readers never see a part.

    An ``OSError`` is one sentence, as of ``written``.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    with written(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            write(part)
            with part.open("rb") as file:
                os.fsync(file.fileno())  # after a power cut the file is the old or the new one
            part.chmod(0o644)  # safetensors creates files that only their owner can read
            os.replace(part, path)
        finally:
            with contextlib.suppress(OSError):
                part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    write_atomically(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    """Write NumPy's format .npz atomically, whatever the name ends in."""
    import numpy as np

    def save(part: Path) -> None:
        with part.open("wb") as file:
            np.savez_compressed(file, **arrays)

    write_atomically(path, save)


@contextlib.contextmanager
def written(path: Path) -> Iterator[None]:
    """Turn what goes wrong while a file or folder is written into one sentence.

    torch and safetensors report a full disk by errors of their own.
    """
    try:
        yield
    except Exception as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if any(word in reason for word in ("PytorchStreamWriter", "iostream error")):
            reason = "the disk may be full"
        elif not isinstance(error, OSError) and type(error).__name__ != "SafetensorError":
            raise
        place, free = next((p for p in [path, *path.parents] if p.exists()), Path(".")), ""
        with contextlib.suppress(OSError):
            free = f", {shutil.disk_usage(place).free / 1e6:.0f} MB free"
        reason = " ".join(reason.split())
        raise OSError(f"{path}: cannot be written ({reason}{free})") from error


@contextlib.contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; it ends with the process, also after ``kill -9``."""
    lock = FileLock(folder / ".lock")
    with written(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            raise UserError(f"{folder}: another process is training this run") from None
    try:
        yield
    finally:
        lock.release()


def cache_folder() -> Path:
    """Where results that can be computed again are kept: TRICOUPLE_CACHE or ~/.cache/tricouple."""
    return Path(os.environ.get("TRICOUPLE_CACHE") or "~/.cache/tricouple").expanduser()


def cached(key: str, compute: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Return tensors by name: those kept under a key, else those that ``compute`` returns.

    The key must say all that they depend on, such as digests of data and weights.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file, save_file

    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    file = cache_folder() / "features" / f"{name}.safetensors"
    try:
        return load_file(file)
    except (OSError, SafetensorError):  # not there, or damaged
        found = compute()
    with contextlib.suppress(OSError):  # a full or read-only disk
        write_atomically(file, lambda part: save_file(found, part))
    return found


def reported(parts: Iterable[T], size: int, total: int, what: str) -> Iterator[T]:
    """Yield parts of ``size`` samples; every ten seconds, print to stderr how many are done."""
    last = time.monotonic()
    for done, part in enumerate(parts, 1):
        yield part
        if time.monotonic() - last > 10:
            last = time.monotonic()
            print(f"features of {min(done * size, total)} of {total} {what}", file=sys.stderr)


def derived_seed(*place: int | str) -> int:
    """Return a seed below 2⁶³ for one place in a run, such as (seed, "views", epoch, step).

    No random state is ever saved: a continued run draws what the uninterrupted one would draw.
    """
    return int.from_bytes(hashlib.sha256(repr(place).encode()).digest()[:8], "big") >> 1


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a file of tensors and plain values onto the CPU; no code in it can run."""
    import pickle
    import zipfile

    import torch

    try:
        with zipfile.ZipFile(path) as archive:  # PyTorch does not look at its checksums
            damaged = archive.testzip()
        if damaged is None:
            content = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(content, dict):
                return content
        reason = "it is damaged"
    except pickle.UnpicklingError:  # its message tells how to run the code
        reason = "it holds more than tensors and plain values"
    except FileNotFoundError:
        reason = "there is no such file"
    except Exception as error:  # zip, zlib, pickle, struct: a damaged file can raise anything
        reason = f"it is damaged: {' '.join(str(error).split())[:100]}"
    raise UserError(f"{path}: cannot be continued, {reason}; --restart begins the run again")


@cache
def commit() -> str | None:
    """Return the commit of this clone, ``…-dirty`` with uncommitted changes; git is asked once."""
    clone = Path(__file__).parents[2]
    if not (clone / ".git").exists():
        return None
    command = ["git", "-C", str(clone), "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        found = subprocess.run(
            [*command, "--exclude=*"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() or None


@cache
def versions() -> dict[str, str]:
    """Return the versions of the packages that decide what a run computes."""
    return {name: version(name) for name in PACKAGES if find_spec(name)}


def provenance() -> dict[str, Any]:
    """Return what is needed to judge or repeat a run."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["tricouple", *sys.argv[1:]]),
        "commit": commit(),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": versions(),
    }
