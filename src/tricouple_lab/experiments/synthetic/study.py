"""A study: run the cells that are not done yet, in parallel, keep what comes, and report it.

A line of ``runs.jsonl`` is as ``experiments.runs.record`` says, with ``verdict`` (a key of
``measure.MEANINGS``), ``curves`` (``step`` and the names in ``measure.CURVES``) and ``spectrum``,
the last eigenvalues of the class-mean covariance, descending. Runs with the same settings in
several parts are trained once: the copies have ``same_as``, the id of the original, and no seconds
of their own. Each run has a process of its own with one thread: the tensors are tiny, so threads
would wait for each other.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import torch
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from tricouple_lab.data.gmm import class_sizes
from tricouple_lab.experiments.runs.record import (
    DIVERGED,
    DONE,
    PARTIAL,
    Record,
    Store,
    make_record,
    open_store,
    same_settings,
)
from tricouple_lab.experiments.synthetic.config import Cell, RunConfig
from tricouple_lab.experiments.synthetic.train import CURVES, MEANINGS, Measurement, judge, train
from tricouple_lab.files import write_atomically
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance, line_provenance

KIND = "synthetic"
N_SNAPSHOTS, SNAPSHOT_SAMPLES = 12, 500
COLOURS = {"etf": "green", "rich": "cyan", "reduced": "yellow"}


@dataclass
class RunInProgress:
    """Collects what a worker tells about one run."""

    cell: Cell
    seconds: float = 0.0
    points: list[Measurement] = field(default_factory=list)
    embeddings: list[npt.NDArray[np.float16]] = field(default_factory=list)

    def add(
        self, point: Measurement, seconds: float, embeddings: npt.NDArray[np.float16] | None
    ) -> None:
        """Take in one measurement; embeddings are kept while they are numbers."""
        self.points.append(point)
        self.seconds = seconds
        if embeddings is not None and point.finite:
            self.embeddings.append(embeddings)

    def record(self, provenance: dict[str, Any]) -> Record:
        """The run so far; whether it is done shows in its last step."""
        config, last = self.cell.config, self.points[-1]
        losses = [point.loss for point in self.points]
        if not last.finite:
            status = DIVERGED
        else:
            status = DONE if last.step == config.steps else PARTIAL
        verdict = judge(losses, last.nc2_deviation, last.spectrum, config.dim)
        return make_record(
            self.cell.id,
            part=self.cell.part,
            status=status,
            config=config.flat(),
            seconds=self.seconds,
            steps=last.step,
            provenance=provenance,
            verdict=None if status == PARTIAL else verdict,
            curves={name: [getattr(p, name) for p in self.points] for name in ("step", *CURVES)},
            spectrum=last.spectrum,
        )

    def write_snapshots(self, file: IO[bytes]) -> None:
        """Write some of the embeddings: steps (S,), embeddings (S, n, dim) and labels (n,)."""
        steps = np.array([point.step for point in self.points if point.finite])
        chosen = np.unique(np.linspace(0, len(steps) - 1, N_SNAPSHOTS).round().astype(int))
        config = self.cell.config
        sizes = class_sizes(config.n_classes, config.per_class, config.imbalance)
        labels = np.arange(config.n_classes).repeat(sizes)
        np.savez_compressed(
            file,
            steps=steps[chosen],
            embeddings=np.stack([self.embeddings[place] for place in chosen]),
            labels=labels[snapshot_rows(len(labels))],
        )


def unfinished(cells: Sequence[Cell], records: dict[str, Record]) -> list[Cell]:
    """The cells without a record, or with one of an interrupted run."""
    return [
        cell for cell in cells if records.get(cell.id, {"status": PARTIAL})["status"] == PARTIAL
    ]


class LiveProgress:
    """A bar for the study and one for every run at work; finished runs scroll by above.

    Example:
        >>> with LiveProgress(Console(quiet=True), total=3, done=1) as display:
        ...     display.finished({"id": "a", "status": "done", "verdict": "etf", "seconds": 1.0,
        ...                       "curves": {"nc2_deviation": [1e-4]}})
    """

    def __init__(self, console: Console, total: int, done: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._all = self._progress.add_task("runs", total=total, completed=done, note="")
        self._rows: dict[str, TaskID] = {}

    def __enter__(self) -> LiveProgress:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def measured(self, name: str, point: Measurement, steps: int) -> None:
        """Show the latest figures of a run."""
        if name not in self._rows:
            self._rows[name] = self._progress.add_task(name, total=steps, note="")
        note = f"loss {point.loss:.4f}  NC2 {point.nc2_deviation:.1e}  k-NN {point.knn:.2f}"
        self._progress.update(self._rows[name], completed=point.step, note=note)

    def finished(self, record: Record) -> None:
        """Replace the bar of a run by a line."""
        row = self._rows.pop(record["id"], None)
        if row is not None:
            self._progress.remove_task(row)
        verdict = record["verdict"] or record["status"]
        colour = COLOURS.get(verdict, "red")
        deviation = record["curves"]["nc2_deviation"][-1]
        figure = "" if deviation is None else f"NC2 {deviation:.1e}"
        self._progress.console.print(
            f"[{colour}]{verdict:9}[/] {record['seconds']:6.1f} s  {figure}  {record['id']}",
            highlight=False,
            soft_wrap=True,
        )
        self._progress.advance(self._all)


def run_cells(
    store: Store,
    cells: Sequence[Cell],
    display: LiveProgress,
    *,
    workers: int,
    snapshots: bool = False,
) -> None:
    """Train what is not done yet and append each run to the folder.

    Cells with the same settings, such as the middle of every map, are trained once. If this is
    interrupted, the runs at work are kept as partial ones, to be done again next time. Snapshots
    are embeddings of the main part's first seed.
    """
    records = store.records()

    def keep_record(record: Record) -> None:
        store.append(record)
        display.finished(record)

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
    origin = collect_provenance()
    active: dict[int, RunInProgress] = {}

    def end(task: int) -> None:
        run = active.pop(task)
        record = run.record(line_provenance(origin))
        keep_record(record)
        for cell in twins[task][1:]:
            keep_record(copied(record, cell))
        if keep[task] and run.embeddings:
            path = store.path / "snapshots" / f"{run.cell.id}.npz"
            write_atomically(path, run.write_snapshots)

    events = train_all(list(groups), workers=workers, keep_embeddings=keep)
    try:
        with closing(events):
            for event in events:
                if event.measurement is None:
                    end(event.task)
                    continue
                run = active.setdefault(event.task, RunInProgress(twins[event.task][0]))
                run.add(event.measurement, event.seconds, event.embeddings)
                display.measured(run.cell.id, event.measurement, run.cell.config.steps)
    except KeyboardInterrupt:
        for task in list(active):
            end(task)
        raise


def find_twin(cell: Cell, records: dict[str, Record]) -> Record | None:
    """The record of a finished run that was trained with the settings of a cell."""
    settings = cell.config.flat()
    for record in records.values():
        trained = record["status"] != PARTIAL and "same_as" not in record
        if trained and same_settings(record, settings):
            return record
    return None


def copied(record: Record, cell: Cell) -> Record:
    """The record of a cell whose settings another one was trained with."""
    return record | {"id": cell.id, "part": cell.part, "same_as": record["id"], "seconds": 0.0}


def conduct(
    path: Path, name: str, base: RunConfig, cells: Sequence[Cell], *, workers: int, snapshots: bool
) -> None:
    """Run a study in a folder with live progress, then show its tables and where the page is.

    A folder holds one study, by its name, and runs that share one base.

    Raises:
        CommandError: If the folder cannot be used or a worker fails.
        KeyboardInterrupt: After Ctrl-C, with the results so far kept and reported.
    """
    console = Console()
    origin = collect_provenance()
    store = open_store(path, KIND, name, base.shared(), origin, extend=False, verdicts=MEANINGS)
    done = len(cells) - len(unfinished(cells, store.records()))
    if done:
        console.print(f"{done} of {len(cells)} runs are done already in {path}", markup=False)
    try:
        with LiveProgress(console, total=len(cells), done=done) as display:
            run_cells(store, cells, display, workers=workers, snapshots=snapshots)
    except WorkerError as error:
        raise CommandError(f"a run failed; what was done is kept in {path}\n{error}") from error
    except KeyboardInterrupt:
        show(console, path)
        console.print("Interrupted: the same command goes on from here.")
        raise
    show(console, path)


def show(console: Console, path: Path) -> None:
    """Print what is there, finished or not, and write the page."""
    from tricouple_lab.report.command import KINDS, read_known, write_report  # plotting libraries

    for part in KINDS[KIND].terminal(read_known(path)):
        console.print(part, highlight=False, markup=False)
    console.print("Writing the page …")
    console.print(f"Page: {write_report(path)}", soft_wrap=True, markup=False)


# --- several runs at a time -----------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """What a worker tells: a measurement of the run number `task`, or that it is over."""

    task: int  # position of the run in the list given to ``train_all``
    seconds: float = 0.0  # time since the run began
    measurement: Measurement | None = None  # None once the run is over
    # Unit vectors of some training samples, float16, if they were asked for.
    embeddings: npt.NDArray[np.float16] | None = None
    error: str | None = None  # the traceback, if the run failed


class WorkerError(RuntimeError):
    """A run failed for a reason other than its numbers."""


def train_all(
    configs: Sequence[RunConfig], *, workers: int, keep_embeddings: Sequence[bool]
) -> Generator[Event, None, None]:
    """Train all runs and yield events as they come; closing the generator ends the workers.

    `keep_embeddings` says of each run whether its events carry embeddings.
    """
    context = multiprocessing.get_context("spawn")  # forking a process that has threads may hang
    tasks: Any = context.Queue()
    events: Any = context.Queue()
    for task in enumerate(zip(configs, keep_embeddings, strict=True)):
        tasks.put(task)
    crew = [
        context.Process(target=_work, args=(tasks, events), daemon=True)
        for _ in range(min(workers, len(configs)))
    ]
    # Ctrl-C reaches all processes of a terminal, but only this one decides: children inherit that
    # they are to ignore it, and so does their start, where a handler would come too late.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for worker in crew:
        tasks.put(None)
        worker.start()
    signal.signal(signal.SIGINT, handler)
    try:
        yield from _listen(events, crew, len(configs))
    finally:
        for worker in crew:
            worker.terminate()
        for worker in crew:
            worker.join()


def _listen(events: Any, crew: Sequence[BaseProcess], n_runs: int) -> Iterator[Event]:
    over = 0
    while over < n_runs:
        try:
            event: Event = events.get(timeout=1.0)
        except queue.Empty:
            died = [worker.exitcode for worker in crew if worker.exitcode]
            if died:
                raise WorkerError(f"a worker process ended with exit code {died[0]}") from None
            continue
        if event.error is not None:
            raise WorkerError(event.error)
        over += event.measurement is None
        yield event


def _work(tasks: Any, events: Any) -> None:
    """Train runs until there is none left."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    while (task := tasks.get()) is not None:
        number, (config, keep) = task
        start = time.perf_counter()
        try:
            for measurement, embeddings in train(config):
                if parent is not None and not parent.is_alive():
                    return
                kept = thinned(embeddings) if keep else None
                events.put(Event(number, time.perf_counter() - start, measurement, kept))
            events.put(Event(number))
        except Exception:
            events.put(Event(number, error=traceback.format_exc()))


def thinned(embeddings: torch.Tensor) -> npt.NDArray[np.float16]:
    """Unit vectors of the samples that a snapshot keeps."""
    unit = torch.nn.functional.normalize(embeddings[snapshot_rows(len(embeddings))], dim=1)
    return np.asarray(unit.half().numpy())


def snapshot_rows(n_samples: int) -> slice:
    """Which samples a snapshot keeps: every k-th, at most 500.

    Samples lie class after class, so every class has some.

    Example:
        >>> snapshot_rows(1000)
        slice(None, None, 2)
    """
    return slice(None, None, -(-n_samples // SNAPSHOT_SAMPLES))
