"""The results of a study: ``study.json``, and ``runs.jsonl`` with a line a run.

``study.json`` is ``{"kind", "name", "config", …, "provenance"}``. A line is ``{"id", "part",
"status", "config", "seconds", "steps", …, "provenance"}``: ``config`` is flat and says all that
tells runs apart; what was found follows, such as ``metrics`` (by name), ``curves`` (equally long
lists), ``spectrum`` and ``verdict``. ``status`` is ``done``, ``partial`` (interrupted, to be done
again) or ``diverged`` (the numbers ended). Numbers have six significant digits, and what is not
finite is null.

Lines are only ever appended, each in one piece and under a lock, so that several processes can
write to one study. If an id occurs on several lines, the last one counts.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from tricouple_lab.files import write_text
from tricouple_lab.options import CommandError, require_writable

Record: TypeAlias = dict[str, Any]

DONE, PARTIAL, DIVERGED = "done", "partial", "diverged"
DIGITS = 6


def make_record(
    name: str,
    *,
    part: str,
    status: str,
    config: Mapping[str, Any],
    seconds: float,
    steps: int,
    provenance: Mapping[str, Any],
    **found: object,
) -> Record:
    """A run as a line has it; its name may become that of a file, ``found`` is what was measured.

    Example:
        >>> run = make_record("a", part="main", status=DONE, config={"c": 1 / 3}, seconds=2.0,
        ...     steps=10, provenance={}, metrics={"knn": float("nan")})
        >>> run["config"], run["metrics"]
        ({'c': 0.333333}, {'knn': None})
    """
    line: Record = shortened(
        {
            "id": name,
            "part": part,
            "status": status,
            "config": config,
            "seconds": seconds,
            "steps": steps,
            **found,
            "provenance": provenance,
        }
    )
    return line


def shortened(value: Any) -> Any:
    """The same with at most six significant digits, and None for what is not finite.

    Example:
        >>> shortened({"loss": [0.123456789, float("inf")], "step": 1000000})
        {'loss': [0.123457, None], 'step': 1000000}
    """
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: shortened(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [shortened(entry) for entry in value]
    return value


def same_settings(record: Record, config: Mapping[str, Any]) -> bool:
    """Whether a run was done with these settings; ones that its version did not record may differ.

    Example:
        >>> same_settings({"config": {"c": 99.99999999}}, {"c": 100.0, "new": True})
        True
    """
    then, now = shortened(record["config"]), shortened(config)
    return all(name in now and now[name] == value for name, value in then.items())


@dataclass(frozen=True)
class Store:
    """The folder of a study's results."""

    path: Path  # of the folder; ``open_store`` prepares it for writing

    @property
    def runs(self) -> Path:
        """The file with a line a run."""
        return self.path / "runs.jsonl"

    def records(self) -> dict[str, Record]:
        """The last record of every run, by id; a line whose writing was cut off is left out.

        Raises:
            CommandError: If a line is no record; the message names it.
        """
        if not self.runs.exists():
            return {}
        with self.runs.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            content = file.read()
        records: dict[str, Record] = {}
        for number, line in enumerate(content[: content.rfind(b"\n") + 1].splitlines(), 1):
            try:
                record = json.loads(line)
                records[record["id"]] = record
            except (ValueError, KeyError, TypeError) as error:
                raise CommandError(
                    f"{self.runs}, line {number} is not a record: {error!r}: delete the line"
                ) from error
        return records

    def append(self, record: Record) -> None:
        """Add a run; it is on the disk when this returns.

        A line that somebody else could not finish is removed: its run is to be done again.
        """
        text = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        self.path.mkdir(parents=True, exist_ok=True)
        with self.runs.open("a+b") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.seek(0)
            file.truncate(file.read().rfind(b"\n") + 1)
            file.write(text.encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def open_store(
    path: Path,
    kind: str,
    name: str,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    *,
    extend: bool,
    **more: object,
) -> Store:
    """Make the folder of a study, or go on with one of the same study.

    A study that may ``extend`` goes on with another config, such as more seeds, and ``study.json``
    says the new one; otherwise a folder holds runs of one config. ``more`` are further entries of
    it.

    Raises:
        CommandError: If the folder cannot be written, or holds anything else. Nothing is changed.
    """
    head = path / "study.json"
    known = path.is_dir() and any(path.iterdir())
    if known:
        _require_same_study(path, kind, name, None if extend else config)
    require_writable(head)
    if extend or not known:
        write_head(path, kind, name, config, provenance, **more)
    return Store(path)


def write_head(
    path: Path,
    kind: str,
    name: str,
    config: Mapping[str, Any],
    provenance: Mapping[str, Any],
    **more: object,
) -> None:
    """Write ``study.json``; the arguments are those of ``open_store``."""
    content = {"kind": kind, "name": name, "config": config, **more, "provenance": provenance}
    write_text(path / "study.json", json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _require_same_study(path: Path, kind: str, name: str, config: Mapping[str, Any] | None) -> None:
    head = path / "study.json"
    if not head.exists():
        raise CommandError(f"{path} holds other files and no study: choose another folder (--out)")
    try:
        found = json.loads(head.read_text(encoding="utf-8"))
        old_kind, old_name, old = found["kind"], found["name"], dict(found["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"cannot read {head}: not the JSON of a study ({error})") from error
    if (old_kind, old_name) != (kind, name):
        raise CommandError(
            f"{path} holds another study, {old_name!r} of kind {old_kind!r}: "
            "choose another folder (--out)"
        )
    if config is None:
        return
    changed = [key for key in {**old, **config} if old.get(key) != config.get(key)]
    if changed:
        differences = ", ".join(f"{key} {old.get(key)} → {config.get(key)}" for key in changed)
        raise CommandError(
            f"{path} holds a study with other settings ({differences}): "
            "choose another folder (--out)"
        )
