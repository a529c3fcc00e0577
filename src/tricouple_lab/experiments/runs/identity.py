"""What a run is: the settings that decide its weights, and the files that it is trained on.

Of files of one's own a run remembers how many there are, their names, sizes and times, by folder.
Of a published data set it remembers the same without times and places: a whole copy is the same
everywhere, a partial one is not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from tricouple_lab.conf.schema import RunConfig, Text, Train
from tricouple_lab.names import DATA
from tricouple_lab.training.trainer import SPEED_ONLY

C = TypeVar("C", bound=RunConfig)

# Of each folder with files of one's own, by its path, and of a published data set, by its name: how
# many, how large, and a digest of what is known of each.
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
    return {folder: _summary(entries) for folder, entries in sorted(folders.items())}


def published(name: str, folder: Path, files: Iterable[Path]) -> Listing:
    """What there is of a published data set; nothing if it is not here yet.

    Example:
        >>> published("cifar10", Path("cifar-10-batches-py"), [])
        {}
    """
    entries = [
        (Path(os.path.relpath(path, folder)).as_posix(), path.stat().st_size) for path in files
    ]
    return {name: _summary(entries)} if entries else {}


def _summary(entries: Sequence[tuple[Any, ...]]) -> dict[str, Any]:
    return {
        "files": len(entries),
        "bytes": sum(entry[1] for entry in entries),
        "digest": hashlib.sha256(repr(sorted(entries)).encode()).hexdigest()[:16],
    }


def of_ones_own(listed: Listing) -> Listing:
    """The part of a listing that is no published data set."""
    return {place: found for place, found in listed.items() if Path(place).is_absolute()}


def changes(there: Listing, here: Listing) -> Iterator[str]:
    """How the files here differ from those there, a clause a folder or published data set.

    One that only one side knows of is no change: it was not noted by an earlier version, or is not
    downloaded yet.
    """
    own = of_ones_own({**there, **here})
    for place in sorted({**there, **here}):
        old, new = there.get(place), here.get(place)
        if old is None or new is None:
            if place in own:
                yield f"{place} is {'new' if old is None else 'gone or empty'}"
        elif not isinstance(old, dict) or old.get("files") != new["files"]:
            then = old.get("files") if isinstance(old, dict) else "other"
            yield f"{place} has {new['files']} files, {then} then"
        elif old != new:
            dates = ", sizes or dates" if place in own else " or sizes"
            yield f"files in {place} have other names{dates}"


def data_name(config: RunConfig) -> str:
    """The name of the data set in folders and reports: of one's own, that of its folder."""
    data = config.data
    if not data.own or data.place is None:
        return data.name
    name = re.sub(r"[^\w.-]+", "_", Path(data.place).expanduser().resolve().name).strip("._-")
    return f"{data.name}-{name}" if name in DATA or not name else name


def resolved(config: C) -> C:
    """The configuration with paths that mean the same from every directory."""

    def whole(part: Any, *names: str) -> Any:
        found = {name: getattr(part, name) for name in names if getattr(part, name, None)}
        paths = {name: str(Path(text).expanduser().resolve()) for name, text in found.items()}
        return replace(part, **paths)

    parts = {"data": whole(config.data, "root", "eval_root", "path", "test_path")}
    if isinstance(config, Train):
        parts["backbone"] = whole(config.backbone, "weights")
    if isinstance(config, Text) and Path(config.model.path or "").is_dir():
        parts["model"] = whole(config.model, "path")
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
    flags = {k: v for k, v in parts["trainer"].items() if k not in SPEED_ONLY}
    # Several processes train as one does; these two are in the names of folders.
    parts["trainer"] = flags | {"devices": 1, "num_nodes": 1}
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
