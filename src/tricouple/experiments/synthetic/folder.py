"""A study folder: ``study.json``, ``runs.jsonl`` (a line a run, appended) and ``snapshots/``.

``study.json`` is ``{"kind", "name", "config", "verdicts", "provenance"}``; ``config`` holds what
all runs of the main part share, ``verdicts`` says what each verdict means. If an id occurs on
several lines of ``runs.jsonl``, the last one counts.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tricouple.experiments.synthetic.verdict import MEANINGS
from tricouple.options import CommandError, require_writable

KIND = "synthetic"


class StudyFolder:
    """Where a study keeps its results; made by ``open_folder``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.runs = path / "runs.jsonl"

    def records(self) -> dict[str, dict[str, Any]]:
        """The last record of every run, by id."""
        if not self.runs.exists():
            return {}
        with self.runs.open(encoding="utf-8") as lines:
            records = [json.loads(line) for line in lines]
        return {record["id"]: record for record in records}

    def append(self, record: Mapping[str, Any]) -> None:
        """Add a run; it is on the disk when this returns."""
        line = json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        with self.runs.open("a", encoding="utf-8") as file:
            file.write(line + "\n")
            file.flush()
            os.fsync(file.fileno())

    def write_snapshots(
        self,
        run_id: str,
        *,
        steps: npt.NDArray[Any],
        embeddings: npt.NDArray[Any],
        labels: npt.NDArray[Any],
    ) -> None:
        """Write embeddings (S, n, dim) of a run at S steps, with the labels (n,)."""
        folder = self.path / "snapshots"
        folder.mkdir(exist_ok=True)
        with _replacing(folder / f"{run_id}.npz") as partial, partial.open("wb") as file:
            np.savez_compressed(file, steps=steps, embeddings=embeddings, labels=labels)

    def drop_torn_line(self) -> None:
        """Remove the end of a line whose writing was cut off: its run is to be done again."""
        if self.runs.exists():
            content = self.runs.read_bytes()
            whole = content.rfind(b"\n") + 1
            if whole < len(content):
                os.truncate(self.runs, whole)


def open_folder(
    path: Path, name: str, config: dict[str, Any], provenance: dict[str, Any]
) -> StudyFolder:
    """Make a new study folder, or go on with one of the same study.

    Raises:
        CommandError: If the folder cannot be written, or holds anything else. Nothing is changed.
    """
    study = path / "study.json"
    if path.is_dir() and any(path.iterdir()):
        _require_same_study(path, name, config)
        require_writable(study)
    else:
        require_writable(study)
        content = {
            "kind": KIND,
            "name": name,
            "config": config,
            "verdicts": MEANINGS,
            "provenance": provenance,
        }
        with _replacing(study) as partial:
            text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
            partial.write_text(text, encoding="utf-8")
    folder = StudyFolder(path)
    folder.drop_torn_line()
    return folder


def _require_same_study(path: Path, name: str, config: dict[str, Any]) -> None:
    study = path / "study.json"
    if not study.exists():
        raise CommandError(f"{path} holds other files and no study: choose another folder (--out)")
    try:
        found = json.loads(study.read_text(encoding="utf-8"))
        kind, old_name, old = found["kind"], found["name"], dict(found["config"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CommandError(f"cannot read {study}: not the JSON of a study ({error})") from error
    if (kind, old_name) != (KIND, name):
        raise CommandError(
            f"{path} holds another study, {old_name!r} of kind {kind!r}: "
            "choose another folder (--out)"
        )
    changed = [key for key in {**old, **config} if old.get(key) != config.get(key)]
    if changed:
        differences = ", ".join(f"{key} {old.get(key)} → {config.get(key)}" for key in changed)
        raise CommandError(
            f"{path} holds a study with other settings ({differences}): "
            "choose another folder (--out)"
        )


@contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A path to write to that takes the place of `path` at the end: all of a file or nothing."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
