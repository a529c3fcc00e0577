"""A comparison of losses, each at the setting that suits it, found for all in the same way.

Within a block (a data set and a setting), for each loss: the sharpness is chosen at the first
learning rate, then the learning rate at that sharpness, at the first seed and on validation
samples; what was chosen is then measured on the test set, for all seeds. The test set is not looked
at before. Where losses are to be compared at equal sharpness too, the other values of c follow. A
study that leaves no choice has final runs only.

Every finished run is a line of ``runs.jsonl``. A study that is started again reads them, and goes
on with what is missing. Losses do not wait for each other: several processes share them out.
"""

from __future__ import annotations

import gc
import hashlib
import multiprocessing
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Generic

import torch
from rich.console import Console

from tricouple_lab.conf.compose import configure, loss_words
from tricouple_lab.conf.schema import Study
from tricouple_lab.experiments.runs.folder import RunFolder
from tricouple_lab.experiments.runs.identity import changes, data_name
from tricouple_lab.experiments.runs.kind import C, D, RunKind
from tricouple_lab.experiments.runs.record import (
    DONE,
    PARTIAL,
    Record,
    Store,
    open_store,
    same_settings,
)
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.files import locked
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance
from tricouple_lab.training.module import DivergenceError

SHARPNESS, LEARNING_RATE, FINAL, EQUAL = "sharpness", "learning_rate", "final", "equal"


@dataclass(frozen=True)
class Trial:
    """One run that a study wants."""

    part: str  # what it is for: ``sharpness``, ``learning_rate``, ``final`` or ``equal``
    block: tuple[str, ...]  # words of its block
    loss: str  # name of the loss
    sharpness: float | None  # c; None for what the scale gives the loss
    learning_rate: float  # of Adam
    seed: int  # of the run

    def words(self) -> list[str]:
        """The configuration of the run, after the words that all runs share."""
        return [
            *self.block,
            f"loss={self.loss}",
            *([] if self.sharpness is None else [f"loss.sharpness={self.sharpness:g}"]),
            f"training.learning_rate={self.learning_rate:g}",
            f"seed={self.seed}",
            f"evaluation.part={'test' if self.part in (FINAL, EQUAL) else 'validation'}",
        ]


def run_loss(
    study: Study, block: tuple[str, ...], loss: str, measure: Callable[[Trial], float]
) -> None:
    """Choose and measure for one loss of a block.

    ``measure`` does a trial, or remembers it, and returns its accuracy; 0 if it diverged.
    """
    rate, *rates = study.learning_rates
    seed = study.seeds[0]
    sharpness: list[float | None] = [*study.sharpness] or [None]
    grid = [Trial(SHARPNESS, block, loss, c, rate, seed) for c in sharpness]
    chosen = grid[0]
    if len(grid) > 1 or rates:
        scores = {trial: measure(trial) for trial in grid}
        for other in rates:
            best = max(scores, key=scores.__getitem__)  # of equal ones the first
            trial = replace(best, part=LEARNING_RATE, learning_rate=other)
            scores[trial] = measure(trial)
        chosen = max(scores, key=scores.__getitem__)
    for number in study.seeds:
        measure(replace(chosen, part=FINAL, seed=number))
    for c in sharpness if study.equal else []:
        if c != chosen.sharpness:
            for number in study.seeds:
                measure(replace(chosen, part=EQUAL, sharpness=c, seed=number))


def run_study(
    kind: RunKind[C, D], study: Study, out: Path, runs: Path, console: Console, *, workers: int = 1
) -> None:
    """Do everything of a study that is missing, with results in ``out``.

    The folders of runs, in ``runs``, are removed when their loss is done. Losses and blocks are
    dealt out to several workers, each with one thread; one worker is this process, with all its
    threads.

    Raises:
        CommandError: If the folder holds another study, or runs with other settings.
    """
    origin = collect_provenance()
    config = {**asdict(study), "chosen_by": f"{kind.chosen_by} on {kind.chosen_on}"}
    store = open_store(out, kind.name, study.name, config, origin, extend=True)
    trials = Trials(kind, study, store, runs, origin, console if workers == 1 else None)
    tasks = [(tuple(block), loss) for block in study.blocks for loss in study.losses]
    for _ in in_workers(trials.go, tasks, workers, out):
        pass


@dataclass(frozen=True)
class Trials(Generic[C, D]):
    """The trials of a study: each done once, its record kept."""

    kind: RunKind[C, D]  # of the runs
    study: Study  # what to compare
    store: Store  # of the results
    runs: Path  # folder of the runs
    origin: Mapping[str, Any]  # provenance of the study
    console: Console | None = None  # says what happens; None for one of the process at work

    def go(self, block: tuple[str, ...], loss: str) -> None:
        """Do all of a loss in a block; one process at a time."""
        shown = self.console or Console()
        folders: set[RunFolder] = set()

        def waiting(who: str) -> None:
            task = " ".join((*block, f"loss={loss}"))
            shown.print(f"Another process does {task} ({who}): waiting for it …", markup=False)

        def measure(trial: Trial) -> float:
            words = [*self.study.base, *trial.words(), f"runs={self.runs}"]
            config = configure(words, self.kind.config)
            folders.add(self.kind.folder(config))
            return self.measure(trial, config, shown)

        name = hashlib.sha256(repr((block, loss)).encode()).hexdigest()[:16]
        with locked(self.runs / f".{name}.lock", waiting):
            run_loss(self.study, block, loss, measure)
            for folder in folders:
                shutil.rmtree(folder.path, ignore_errors=True)

    def measure(self, trial: Trial, config: C, console: Console) -> float:
        """The accuracy of a trial, from its record if there is one.

        Raises:
            CommandError: If the record is of a run with other settings.
        """
        name = self.name(trial, config)
        record = self.store.records().get(name)
        if record is None or record["status"] == PARTIAL:
            record = self.compute(trial, config, console) | {"id": name, "part": trial.part}
            self.store.append(record)
            gc.collect()  # trainer and module refer to each other: they would stay in memory
            accuracy = record.get("metrics", {}).get(self.kind.chosen_by)
            console.print(f"{trial.part}: {name}: {accuracy or record['status']}", markup=False)
        elif not same_settings(record, self.kind.settings(config)):
            raise CommandError(
                f"{self.store.runs}: {name} was run with other settings than the study has now: "
                "choose another --out, or delete the line"
            )
        elif "files" in record:
            changed = list(changes(record["files"], self.kind.listing(config)))
            if changed:
                raise CommandError(
                    f"{self.store.runs}: the data have changed since {name}: {changed[0]}: choose "
                    "another --out, or delete the line"
                )
        return float(record["metrics"][self.kind.chosen_by]) if record["status"] == DONE else 0.0

    def name(self, trial: Trial, config: C) -> str:
        """What tells the runs of a study apart; the network only if blocks differ in it."""
        compared = any(word.startswith(("backbone", "model")) for word in trial.block)
        parts = [
            data_name(config),
            *([self.kind.setting(config)] if self.kind.setting else []),
            *([self.kind.network(config)] if compared else []),
            *loss_words(config.loss),
            f"lr{config.training.learning_rate:g}",
            f"seed{config.seed}",
            config.evaluation.part,
        ]
        return "-".join(parts)

    def compute(self, trial: Trial, config: C, console: Console) -> Record:
        """Train and evaluate; a run that diverges is a result too."""
        folder = self.kind.folder(config)
        try:
            cut_short = run_once(self.kind, config, console, self.origin).cut_short
        except DivergenceError as error:
            cut_short = False
            console.print(f"{folder.path}: {error}", soft_wrap=True, markup=False)
        if cut_short:
            raise CommandError("a limit ended a run of the study: start it again to go on")
        record = Store(folder.path).records()[folder.path.name]
        first = trial.seed == self.study.seeds[0]
        if self.kind.gallery and first and trial.part == FINAL and record["status"] == DONE:
            galleries = self.store.path / "galleries"
            galleries.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder.gallery, galleries / f"{self.name(trial, config)}.npz")
        return record


# --- workers --------------------------------------------------------------------------------------


Task = tuple[Any, ...]


def in_workers(
    work: Callable[..., Any], tasks: Sequence[Task], workers: int, out: Path
) -> Iterator[tuple[Task, Any]]:
    """Do ``work(*task)`` for all tasks, and yield each with its result when it is done.

    With one worker this process does the work, with all its threads. Results are kept in ``out``.

    Raises:
        CommandError: If a worker ended by itself.
    """
    if workers == 1:
        for task in tasks:
            yield task, work(*task)
        return
    # Forking a process that has threads may hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=_prepare) as pool:
        waiting = {pool.submit(work, *task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise CommandError(
                    f"a worker ended; what was done is kept in {out}: start the study again to go "
                    "on, with fewer --workers if memory was short"
                ) from error
            raise


def _prepare() -> None:
    """One thread; Ctrl-C reaches all processes of a terminal, but only the first decides."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
