"""Run the cells of a study that are not done yet, in parallel, and keep what comes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from tricouple.experiments.synthetic.config import RunConfig
from tricouple.experiments.synthetic.folder import StudyFolder
from tricouple.experiments.synthetic.grid import Cell
from tricouple.experiments.synthetic.pool import train_all
from tricouple.experiments.synthetic.record import RunInProgress
from tricouple.provenance import collect_provenance


class Watcher(Protocol):
    """Who is told how a study goes on."""

    def measured(self, run: RunInProgress) -> None:
        """A run has a new measurement."""

    def finished(self, record: dict[str, Any]) -> None:
        """A run is over and kept."""


def unfinished(cells: Sequence[Cell], records: dict[str, dict[str, Any]]) -> list[Cell]:
    """The cells without a record, or with one of an interrupted run."""
    return [
        cell for cell in cells if records.get(cell.id, {"status": "partial"})["status"] == "partial"
    ]


def run_cells(
    folder: StudyFolder,
    cells: Sequence[Cell],
    watcher: Watcher,
    *,
    workers: int,
    snapshots: bool = False,
) -> None:
    """Train what is not done yet and append each run to the folder.

    Cells with the same settings, such as the middle of every map, are trained once. If this is
    interrupted, the runs at work are kept as partial ones, to be done again next time.

    Args:
        folder: Where the results go.
        cells: The runs of the study.
        watcher: Told about progress.
        workers: Processes at a time.
        snapshots: Whether to keep embeddings of the main part's first seed.
    """
    records = folder.records()

    def keep_record(record: dict[str, Any]) -> None:
        folder.append(record)
        watcher.finished(record)

    groups: dict[RunConfig, list[Cell]] = {}
    for cell in unfinished(cells, records):
        twin = find_twin(cell, records)
        if twin is None:
            groups.setdefault(cell.config, []).append(cell)
        else:
            keep_record(copied(twin, cell))
    first_seed = min((cell.config.seed for cell in cells), default=0)
    keep = [
        snapshots and any(cell.part == "main" and cell.config.seed == first_seed for cell in group)
        for group in groups.values()
    ]
    twins = list(groups.values())
    provenance = run_provenance()
    active: dict[int, RunInProgress] = {}

    def store(task: int) -> None:
        run = active.pop(task)
        now = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "load": round(os.getloadavg()[0], 2),
        }
        record = run.record(provenance | now)
        keep_record(record)
        for cell in twins[task][1:]:
            keep_record(copied(record, cell))
        if keep[task] and run.embeddings:
            folder.write_snapshots(run.cell.id, **run.snapshots())

    events = train_all(list(groups), workers=workers, keep_embeddings=keep)
    try:
        with closing(events):
            for event in events:
                if event.measurement is None:
                    store(event.task)
                    continue
                run = active.setdefault(event.task, RunInProgress(twins[event.task][0]))
                run.add(event.measurement, event.seconds, event.embeddings)
                watcher.measured(run)
    except KeyboardInterrupt:
        for task in list(active):
            store(task)
        raise


def find_twin(cell: Cell, records: dict[str, dict[str, Any]]) -> dict[str, Any] | None:
    """The record of a finished run that was trained with the settings of a cell."""
    settings = cell.config.flat()
    for record in records.values():
        trained = record["status"] != "partial" and "same_as" not in record
        if trained and record["config"] == settings:
            return record
    return None


def copied(record: dict[str, Any], cell: Cell) -> dict[str, Any]:
    """The record of a cell whose settings another one was trained with."""
    return record | {"id": cell.id, "part": cell.part, "same_as": record["id"], "seconds": 0.0}


def run_provenance() -> dict[str, Any]:
    """What a single run has to say: which code, told to do what, on which machine."""
    origin = collect_provenance()
    kept = ("commit", "diff", "command", "system", "cpu", "cores", "python")
    return {key: origin[key] for key in kept if key in origin} | {
        "torch": origin["versions"]["torch"],
        "tricouple": origin["versions"]["tricouple"],
    }


def write_page(folder: Path) -> Path:
    """Write the page of a study, finished or not, and return where it is."""
    from tricouple.report.kinds import write_report  # plotting libraries, needed at the end only

    return write_report(folder)
