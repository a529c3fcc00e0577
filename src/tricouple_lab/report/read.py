"""Read results: a folder with ``study.json`` and ``runs.jsonl``, a run, or a folder of runs.

Whatever cannot be understood is refused with the file, and for a run the line, that is wrong. What
is merely not there yet (unfinished runs, no snapshots) is no error: the page says what is missing.
"""

from __future__ import annotations

import json
import math
import zipfile
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from tricouple_lab.names import KEYS_BEFORE
from tricouple_lab.report.numbers import directions, listing

Array: TypeAlias = npt.NDArray[np.float64]
Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

STATUSES = ("done", "partial", "diverged")


class StudyError(ValueError):
    """A study folder that cannot be read; the message names the file and what is wrong."""


@dataclass(frozen=True)
class Run:
    """One training run."""

    id: str  # its name, unique in the study
    part: str  # which part of the study it belongs to, such as "main" or "maps/epsilon"
    config: dict[str, Any]  # every setting of the run, flat
    status: str  # "done", "partial" (still running or cut short) or "diverged"
    seconds: float  # time it took
    verdict: str | None  # what the study calls the outcome, if it says so
    # Recorded quantities, each as long as ``curves["step"]``; NaN where undefined.
    curves: dict[str, Array]
    spectrum: Array  # eigenvalues of the class-mean covariance at the end, descending; may be empty
    steps: int = 0  # how many steps the optimiser took; 0 if that is not known
    # What was measured of the result, by name; NaN where undefined.
    metrics: dict[str, float] = field(default_factory=dict)
    # Versions, commit and machine of this run.
    provenance: dict[str, Any] = field(default_factory=dict)
    line: int = 0  # where it stands in runs.jsonl

    def final(self, name: str) -> float:
        """The last value of a quantity, NaN if there is none; directions are of the spectrum."""
        if name == "directions":
            return directions(self.spectrum)
        values = self.curves.get(name, np.empty(0))
        return float(values[-1]) if len(values) else float("nan")


@dataclass(frozen=True)
class Snapshot:
    """Embeddings of the same samples at several steps: (S,), (S, n, d) and (n,)."""

    steps: npt.NDArray[np.int64]
    embeddings: Array
    labels: npt.NDArray[np.int64]


@dataclass(frozen=True)
class Study:
    """A study folder in memory; snapshots are large and read when asked for."""

    folder: Path  # where it was read
    kind: str  # what was studied, such as "synthetic"
    name: str  # its title
    config: dict[str, Any]  # what its runs have in common
    provenance: dict[str, Any]  # versions, commit, machine and command
    runs: tuple[Run, ...]  # the last record of every run
    # What the study means by each verdict, if it says so.
    verdicts: dict[str, str] = field(default_factory=dict)
    planned: int | None = None  # how many runs it is going to have, if it says so
    skipped: tuple[str, ...] = ()  # what else lies in its folder and is no run, a sentence each

    def part(self, *names: str) -> tuple[Run, ...]:
        """The runs of some parts, part after part."""
        return tuple(run for name in names for run in self.runs if run.part == name)

    def snapshot(self, run: Run) -> Snapshot | None:
        """The embeddings kept during a run, None if it kept none."""
        path = self.folder / "snapshots" / f"{run.id}.npz"
        found = read_arrays(path, "snapshot", ("steps", "embeddings", "labels"))
        if not found:
            return None
        steps, labels = found["steps"].astype(np.int64), found["labels"].astype(np.int64)
        shape = found["embeddings"].shape
        if len(shape) != 3 or shape[:2] != (len(steps), len(labels)):
            raise StudyError(
                f"{path}: embeddings of shape {shape} do not match {len(steps)} steps "
                f"and {len(labels)} labels"
            )
        return Snapshot(steps, found["embeddings"].astype(np.float64), labels)


def read_study(folder: Path) -> Study:
    """Read a study, the folder of a run, or a folder of runs of one kind as if it were a study.

    Raises:
        StudyError: If there is none, or one of its files is broken.
    """
    studies = read_studies(folder)
    if len(studies) > 1:
        kinds = listing([study.kind for study in studies])
        raise StudyError(f"{folder} holds runs of {kinds}: report them one by one")
    return studies[0]


def read_studies(folder: Path, kinds: Collection[str] = ()) -> list[Study]:
    """Read a folder as `read_study` does, or one with runs of several kinds: a study of each.

    In a folder of runs, others than these kinds, folders that are no run and those that cannot be
    read are left out; the first study says which.

    Raises:
        StudyError: If there is none, or the files of the study itself are broken.
    """
    if not folder.is_dir():
        raise StudyError(f"{folder}: no such folder")
    if (whole := _read_one(folder)) is not None:
        return [whole]
    parts: list[Study] = []
    skipped: list[str] = []
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or not path.is_dir():
            continue
        try:
            part = _read_one(path)
            if part is None:
                skipped.append(f"{path} is no run.")
            elif kinds and part.kind not in kinds:
                words = listing(sorted(kinds))
                skipped.append(f'{path} is of kind "{part.kind}", none of {words}.')
            else:
                parts.append(part)
        except StudyError as error:
            skipped.append(f"{error}.")
    if not parts:
        why = f": {skipped[0].removesuffix('.')}" if skipped else ""
        raise StudyError(f"{folder} is not a study: it has no study.json and no runs{why}")
    found = sorted({part.kind for part in parts})
    studies = []
    for kind in found:
        own = [part for part in parts if part.kind == kind]
        name = folder.resolve().name + (f", {kind}" if len(found) > 1 else "")
        newest = max(own, key=lambda part: str(part.provenance.get("date")))
        runs = tuple(run for part in own for run in part.runs)
        studies.append(Study(folder, kind, name, {}, newest.provenance, runs))
    return [replace(studies[0], skipped=tuple(skipped)), *studies[1:]]


def _read_one(folder: Path) -> Study | None:
    """A folder that is a study or a run; None for others."""
    path = folder / "study.json"
    if not path.is_file():
        if (folder / "config.yaml").is_file():
            todo = f"tricouple evaluate {folder} makes it readable"
            raise StudyError(f"{folder} is a run of an earlier version: {todo}")
        return None
    head = _object(_text(path), str(path))
    if not isinstance(head.get("kind"), str):
        raise StudyError(f'{path}: "kind" must be a text, found {head.get("kind")!r}')
    return Study(
        folder=folder,
        kind=head["kind"],
        name=str(head.get("name") or folder.resolve().name),
        config=_part(head, "config", str(path)),
        provenance=_part(head, "provenance", str(path)),
        runs=read_runs(folder / "runs.jsonl"),
        verdicts={name: str(text) for name, text in _part(head, "verdicts", str(path)).items()},
        planned=head["planned"] if isinstance(head.get("planned"), int) else None,
    )


def read_runs(path: Path) -> tuple[Run, ...]:
    """Read runs.jsonl; the last line of an id wins, and a missing file holds no runs."""
    if not path.is_file():
        return ()
    runs: dict[str, Run] = {}
    for number, line in enumerate(_text(path).split("\n"), 1):
        if line.strip():
            run = _run(_object(line, f"{path}, line {number}"), number, path)
            runs[run.id] = run
    return tuple(runs.values())


def read_arrays(path: Path, kind: str, names: Sequence[str] = ()) -> Arrays:
    """Read the arrays that a run left in a file, all if none is named; none without the file."""
    if not path.is_file():
        return {}
    try:
        with np.load(path) as file:
            return {name: file[name] for name in names or file.files}
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise StudyError(f"{path}: not a {kind}: {error}") from error


def _run(record: dict[str, Any], number: int, path: Path) -> Run:
    """Check a record, which stands in line `number` of a file."""
    where = f"{path}, line {number}"
    if not isinstance(record.get("id"), str):
        raise StudyError(f'{where}: "id" must be a text, found {record.get("id")!r}')
    if "/" in record["id"] or record["id"] in ("", ".", ".."):
        raise StudyError(f'{where}: "id" names a file, and {record["id"]!r} cannot be one')
    status = record.get("status")
    if status not in STATUSES:
        raise StudyError(
            f'{where}: "status" must be one of {", ".join(STATUSES)}, found {status!r}'
        )
    verdict = record.get("verdict")
    config = _part(record, "config", where)
    for key in ("loss", "method"):
        if str(config.get(key)) in KEYS_BEFORE:
            config = config | {key: KEYS_BEFORE[config[key]]}
    recorded = _part(record, "curves", where).items()
    curves = {name: _numbers(values, f"{where}: curve {name}") for name, values in recorded}
    length = len(curves.get("step", ()))
    for name, values in curves.items():
        if len(values) != length:
            raise StudyError(f"{where}: curve {name} has {len(values)} values for {length} steps")
    metrics = _part(record, "metrics", where)
    measured = _numbers(list(metrics.values()), f"{where}: metrics").tolist()
    taken = curves.get("step", np.empty(0))
    steps = record.get("steps") or (float(taken[-1]) if len(taken) else config.get("steps"))
    return Run(
        id=record["id"],
        part=str(record.get("part", "main")),
        config=config,
        status=status,
        seconds=_number(record.get("seconds"), f"{where}: seconds"),
        verdict=None if verdict is None else str(verdict),
        curves=curves,
        spectrum=_numbers(record.get("spectrum") or [], f"{where}: spectrum"),
        steps=int(_number(steps, f"{where}: steps")),
        metrics=dict(zip(metrics, measured, strict=True)),
        provenance=_part(record, "provenance", where),
        line=number,
    )


def _number(value: Any, where: str) -> float:
    if value is None:
        return 0.0
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise StudyError(f"{where} must be a number, found {value!r}")
    return float(value)


def _numbers(values: Any, where: str) -> Array:
    # JSON has no NaN: null stands for it, and numpy reads None as NaN.
    try:
        numbers = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        numbers = np.empty((0, 0))
    if numbers.ndim != 1:
        raise StudyError(f"{where} must be a list of numbers or null")
    return numbers


def _part(record: dict[str, Any], key: str, where: str) -> dict[str, Any]:
    value = record.get(key) or {}
    if not isinstance(value, dict):
        raise StudyError(f'{where}: "{key}" must be an object, found {value!r}')
    return value


def _object(text: str, where: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise StudyError(f"{where}: expected an object, found {type(value).__name__}")
    return value


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise StudyError(f"cannot read {path}: {error}") from error
