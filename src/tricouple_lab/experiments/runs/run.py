"""One run of any kind: begun, continued where it stopped, or found to be finished.

``run_once`` does it from top to bottom.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from operator import methodcaller
from typing import Any, Generic

import torch
from rich.console import Console
from rich.markup import escape
from torch import nn

from tricouple_lab.conf.words import check
from tricouple_lab.experiments.runs.folder import RunError, RunFolder, Trained
from tricouple_lab.experiments.runs.identity import (
    Listing,
    changes,
    data_name,
    digest,
    resolved,
)
from tricouple_lab.experiments.runs.kind import C, D, RunKind
from tricouple_lab.experiments.runs.record import (
    DIVERGED,
    DONE,
    PARTIAL,
    Record,
    Store,
    make_record,
    write_head,
)
from tricouple_lab.files import write_atomically, write_text
from tricouple_lab.options import first_process, launched_together
from tricouple_lab.provenance import collect_provenance, line_provenance
from tricouple_lab.training.module import DivergenceError, ShuffledBatches, derived_seed
from tricouple_lab.training.processes import (
    announce,
    check_study,
    note_on_processes,
    training_begins,
)
from tricouple_lab.training.trainer import (
    History,
    Row,
    check_flags,
    curves,
    make_trainer,
    quiet_lightning,
    train_to_the_end,
)


@dataclass(frozen=True)
class Finished:
    """A run as a command leaves it."""

    folder: RunFolder
    # The content of its evaluation.json; empty in all processes but the first, and if training was
    # cut short.
    evaluation: dict[str, Any]
    skipped: bool = False  # whether nothing had to be computed
    cut_short: bool = False  # whether a limit ended training: the same command continues


def run_once(
    kind: RunKind[C, D], config: C, console: Console, origin: Mapping[str, Any] | None = None
) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    The origin is the provenance of the study that the run belongs to; None for one of its own.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    check(config)
    check_flags(config.trainer)
    folder = kind.folder(config)
    run = Run(kind, config, folder, console)
    if not first_process():
        if training_begins():
            Fitting(run, kind.load(config)).train()
        return Finished(folder, {})
    files = kind.listing(config)
    if finished := run.finished(files):
        return finished
    study, origin = origin is not None, origin or collect_provenance()
    data = kind.load(config)
    files = kind.listing(config)  # once more: they may just have been downloaded
    for note in data.notes:
        console.print(f"[yellow]{escape(data_name(config))}:[/] {escape(note)}", soft_wrap=True)
    fitting = None
    if not folder.encoder.exists():
        fitting = Fitting(run, data)
        if study:
            check_study(fitting.trainer)
    with folder.held(console):
        if finished := run.finished(files):
            return finished  # by another process that had the folder
        folder.claim(config, files)
        trained = run.trained()
        before = None if trained is None else folder.provenance()
        if trained is None:
            trained = (fitting or Fitting(run, data)).fit(origin)
        if trained.epoch < config.training.epochs:
            console.print(
                f"Stopped after {trained.epoch} of {config.training.epochs} epochs: the same "
                f"command continues {folder.path}",
                soft_wrap=True,
                markup=False,
            )
            return Finished(folder, {}, cut_short=True)
        content = run.evaluate(data, trained, origin, before)
        folder.checkpoint.unlink(missing_ok=True)
    return Finished(folder, content)


def initial_encoder(kind: RunKind[C, D], config: C, data: D) -> nn.Module:
    """The encoder with the initial weights of the run's seed."""
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return kind.encoder(config, data)


@dataclass(frozen=True)
class Run(Generic[C, D]):
    """A run, its settings and its folder; what is in it, and what is put there."""

    kind: RunKind[C, D]
    config: C
    folder: RunFolder
    console: Console  # says what happens

    def finished(self, files: Listing) -> Finished | None:
        """The run if nothing is left to do; refuse a folder of other settings or data."""
        folder, kind = self.folder, self.kind
        folder.check(self.config, files)
        evaluation = folder.read_evaluation()
        if not (
            # All of the training was evaluated, in the way that the configuration asks for.
            evaluation.get("epoch") == self.config.training.epochs
            and evaluation.get("settings") == asdict(self.config.evaluation)
            and not any(changes(evaluation.get("files", {}), files))
            and (folder.gallery.is_file() or not kind.gallery)
        ):
            return None
        try:
            record = self.evaluated(evaluation)
            kind.table(evaluation)
        except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
            raise RunError(
                f"{folder.evaluation} is damaged ({type(error).__name__}: {error}): delete it, and "
                "the same command evaluates again"
            ) from error
        if launched_together():
            announce(False)
        found = escape(str(folder.path))
        self.console.print(f"[green]Already finished:[/] {found}", soft_wrap=True)
        if Store(folder.path).records().get(folder.path.name) != record:
            self.leave(record)  # an earlier version left none, or was killed
        return Finished(folder, evaluation, skipped=True)

    def trained(self) -> Trained | None:
        """The final weights, None if training has to begin or to continue."""
        folder, epochs = self.folder, self.config.training.epochs
        if not folder.encoder.exists():
            if folder.checkpoint.exists():
                folder.read_trained(self.config)  # refuses what is damaged or of another run
            return None
        trained = folder.read_trained(self.config)
        if trained.epoch < epochs:
            raise RunError(
                f"{folder.encoder} has {trained.epoch} of {epochs} epochs, and an earlier version "
                "did not keep what would continue them: delete the folder, or choose another one "
                "with run=FOLDER"
            )
        return trained

    def evaluate(
        self, data: D, trained: Trained, origin: Mapping[str, Any], before: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Evaluate weights as the configuration says, write evaluation.json and the run's record.

        The origin is the provenance of this command, ``before`` that of the one that trained if
        that is another. Returns the content of evaluation.json.
        """
        kind, config, folder = self.kind, self.config, self.folder
        began = time.monotonic()
        encoder = initial_encoder(kind, config, data)
        trained.restore(encoder, folder)
        found = kind.evaluate(config, data, encoder, trained, self.console)
        if gallery := found.pop("gallery", None):
            write_atomically(folder.gallery, methodcaller("write", gallery))
        provenance = line_provenance(origin)
        if before:
            own = {name: provenance[name] for name in ("date", "command", "commit")}
            provenance = {**before, "evaluation": own}
        content = {
            "run": folder.path.name,
            "epoch": trained.epoch,
            "settings": asdict(config.evaluation),
            "files": kind.listing(config),
            **found,
            "curves": curves(trained.rows),
            "seconds": {
                "training": trained.rows[-1]["seconds"],
                "evaluation": round(time.monotonic() - began, 3),
            },
            "config": asdict(resolved(config)),
            "provenance": provenance,
        }
        write_text(folder.evaluation, json.dumps(content, indent=1) + "\n")
        evaluation = folder.read_evaluation()
        self.leave(self.evaluated(evaluation))
        return evaluation

    def evaluated(self, evaluation: Mapping[str, Any]) -> Record:
        """The record of an evaluated run; one of an unfinished training is partial."""
        return self.record(
            status=DONE if evaluation["epoch"] == self.config.training.epochs else PARTIAL,
            seconds=sum(evaluation["seconds"].values()),
            steps=evaluation["curves"]["step"][-1],
            **self.kind.kept(evaluation),
            files=evaluation.get("files", {}),
            curves=evaluation["curves"],
            provenance=evaluation["provenance"],
        )

    def unfinished(self, rows: list[Row], origin: Mapping[str, Any]) -> Record:
        """The record of a training that has come as far as the rows of its history."""
        last = rows[-1] if rows else {"seconds": 0.0, "step": 0}
        return self.record(
            status=PARTIAL,
            seconds=last["seconds"],
            steps=int(last["step"]),
            curves=curves(rows),
            provenance=line_provenance(origin),
        )

    def record(self, **found: Any) -> Record:
        """What ``make_record`` makes of this run."""
        name, config = self.folder.path.name, self.kind.settings(self.config)
        return make_record(name, part="final", config=config, **found)

    def leave(self, record: Record) -> None:
        """Make the folder of a run a study of one, which ``tricouple report`` reads."""
        path, head = self.folder.path, {"scale": self.config.scale.name}
        write_head(path, self.kind.name, path.name, head, record["provenance"])
        Store(path).append(record)


class Fitting(Generic[C, D]):
    """A training that is ready to begin: whatever can be refused has been, and nothing written."""

    def __init__(self, run: Run[C, D], data: D) -> None:
        config, folder, training = run.config, run.folder, run.config.training
        self.run, self.data = run, data
        self.history = History(folder.metrics, data.held_out, training.geometry_every)
        with quiet_lightning():
            self.trainer = make_trainer(
                config.trainer,
                epochs=training.epochs,
                folder=folder.path,
                history=self.history,
                checkpoint=folder.checkpoint,
                progress=config.progress,
            )
        options = {
            "learning_rate": training.learning_rate,
            "weight_decay": training.weight_decay,
            "seed": config.seed,
            "identity": digest(config),
        }
        encoder = initial_encoder(run.kind, config, data)
        if (world := self.trainer.world_size) > 1:
            device = self.trainer.strategy.root_device.type
            said = note_on_processes(world, training.batch_size, encoder, device)
            run.console.print(f"[yellow]{said}[/]", soft_wrap=True)
        self.module = run.kind.method(config, data, encoder, options)

    def train(self) -> None:
        """Train to the end, from the start or from the last finished epoch; any process."""
        config, checkpoint = self.run.config, self.run.folder.checkpoint
        batches = ShuffledBatches(self.data.samples, config.training.batch_size, config.seed)
        resumed = checkpoint if checkpoint.exists() else None
        with quiet_lightning():
            train_to_the_end(self.trainer, self.module, batches, resumed)

    def fit(self, origin: Mapping[str, Any]) -> Trained:
        """Train and keep the weights, as the first process.

        Returns:
            How far it came; the weights are on disk as well if that is the end.
        """
        run, kind, config, folder = self.run, self.run.kind, self.run.config, self.run.folder
        training, resumed = config.training, folder.checkpoint.exists()
        what = f"{len(self.data.samples)} {self.data.samples.noun}, epochs: {training.epochs}"
        said = f"{'Continuing' if resumed else 'Training'} ({what}): {folder.path}"
        run.console.print(said, soft_wrap=True, markup=False)
        if not Store(folder.path).runs.exists():
            run.leave(run.unfinished(self.history.rows, origin))
        if launched_together():
            announce(True)
        try:
            self.train()
        except BaseException as error:
            record = run.unfinished(self.history.rows, origin)
            if isinstance(error, DivergenceError):
                record |= {"status": DIVERGED, "verdict": str(error)}
            with suppress(OSError):  # a full disk may be the error
                run.leave(record)
            raise
        if not folder.checkpoint.exists():
            raise RunError(
                f"no epoch was finished in {folder.path}: allow more with trainer.max_time, "
                "trainer.max_steps"
            )
        # From the file: the processes that trained may have been others than this one.
        about = kind.about(config, self.data) if kind.about else {}
        trained = replace(folder.read_trained(config), about=about)
        if trained.epoch == training.epochs:
            folder.write_trained(trained)
        else:
            run.leave(run.unfinished(trained.rows, origin))
        return trained
