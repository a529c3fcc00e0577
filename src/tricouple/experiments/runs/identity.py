"""What a run is: the settings that decide its weights, and the files that it is trained on.

A published data set is known by its name; of files of one's own a run remembers how many there are,
their names, sizes and times, by folder.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tricouple.conf.schema import RunConfig, Train
from tricouple.names import DATA
from tricouple.training.trainer import SPEED_ONLY

C = TypeVar("C", bound=RunConfig)

# Of each folder with files: how many, how large, and a digest of names, sizes and times.
Listing: TypeAlias = dict[str, dict[str, Any]]


def listing(files: Iterable[Path]) -> Listing:
    """What files there are, by folder; enough to see that they have changed, and where.

    Example:
        >>> listing([])
        {}
    """
    folders: dict[str, list[tuple[str, int, int]]] = {}
    for path in files:
        with suppress(FileNotFoundError):
            about = path.stat()
            entry = path.name, about.st_size, about.st_mtime_ns
            folders.setdefault(str(path.parent.resolve()), []).append(entry)
    return {
        folder: {
            "files": len(entries),
            "bytes": sum(size for _, size, _ in entries),
            "digest": hashlib.sha256(repr(sorted(entries)).encode()).hexdigest()[:16],
        }
        for folder, entries in sorted(folders.items())
    }


def changes(there: Listing, here: Listing) -> Iterator[str]:
    """How the files here differ from those there, a clause a folder."""
    for folder in sorted({**there, **here}):
        old, new = there.get(folder), here.get(folder)
        if old is None or new is None:
            yield f"{folder} is {'new' if old is None else 'gone or empty'}"
        elif not isinstance(old, dict) or old.get("files") != new["files"]:
            then = old.get("files") if isinstance(old, dict) else "other"
            yield f"{folder} has {new['files']} files, {then} then"
        elif old != new:
            yield f"files in {folder} have other names, sizes or dates"


def data_name(config: RunConfig) -> str:
    """The name of the data set in folders and reports: of one's own, that of its folder."""
    data = config.data
    if not data.own or data.root is None:
        return data.name
    name = re.sub(r"[^\w.-]+", "_", Path(data.root).expanduser().resolve().name).strip("._-")
    return f"{data.name}-{name}" if name in DATA or not name else name


def resolved(config: C) -> C:
    """The configuration with paths that mean the same from every directory."""

    def whole(part: Any, *names: str) -> Any:
        found = {name: getattr(part, name) for name in names if getattr(part, name, None)}
        paths = {name: str(Path(text).expanduser().resolve()) for name, text in found.items()}
        return replace(part, **paths)

    parts = {"data": whole(config.data, "root", "eval_root")}
    if isinstance(config, Train):
        parts["backbone"] = whole(config.backbone, "weights")
    return replace(config, **parts)


def digest(config: RunConfig) -> str:
    """A hexadecimal number that differs between configurations that train differently."""
    return _digest(identity(config))


def former_digest(config: RunConfig) -> str:
    """The digest that the version before gave: paths as they were typed, all trainer's flags."""
    return _digest(_parts(config))


def _digest(parts: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def identity(config: RunConfig) -> dict[str, Any]:
    """What decides the trained weights: all settings but those of the evaluation and the places."""
    parts = _parts(resolved(config))
    parts["trainer"] = {k: v for k, v in parts["trainer"].items() if k not in SPEED_ONLY}
    return parts


def _parts(config: RunConfig) -> dict[str, Any]:
    parts = asdict(config)
    for name in ("evaluation", "runs", "run", "progress", "scale"):
        del parts[name]
    for name in ("target", "_target_", "sharpness"):  # the first in files of earlier versions
        parts["loss"].pop(name, None)
    for name in config.data.places():
        del parts["data"][name]
    return parts


def differences(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """How the settings here differ from those there, a clause a setting."""
    for name in {**here, **there}:
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            yield from differences(old, new, f"{prefix}{name}.")
        elif old != new:
            yield f"{prefix}{name} is {old} there and {new} here"
