"""One run of any kind: begun, continued where it stopped, or found to be finished.

A ``RunKind`` says what is particular to image encoders, or to image and text encoders;
``run_once`` does it from top to bottom.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from tricouple.conf.compose import loss_parameters, loss_words, sharpness_of
from tricouple.conf.schema import RunConfig
from tricouple.conf.words import check
from tricouple.data.images.sets import BatchedSet
from tricouple.experiments.runs.folder import RunFolder, Trained, digest
from tricouple.experiments.runs.record import (
    DIVERGED,
    DONE,
    PARTIAL,
    Record,
    Store,
    make_record,
    write_head,
)
from tricouple.files import write_text
from tricouple.provenance import collect_provenance, line_provenance
from tricouple.training.batches import ShuffledBatches, derived_seed
from tricouple.training.module import DivergenceError, Training
from tricouple.training.trainer import (
    History,
    Measured,
    check_flags,
    curves,
    make_trainer,
    quiet_lightning,
    train_to_the_end,
)


class Loaded(Protocol):
    """The data of a run."""

    @property
    def notes(self) -> Sequence[str]:
        """What was left out or differs from the published data; a command says each once."""

    @property
    def samples(self) -> BatchedSet:
        """What an epoch consists of."""

    @property
    def held_out(self) -> Measured | None:
        """What is followed along training, if there is anything."""


C = TypeVar("C", bound=RunConfig)
D = TypeVar("D", bound=Loaded)


@dataclass(frozen=True)
class RunKind(Generic[C, D]):
    """What is particular to a kind of run."""

    name: str  # of its studies, for their report
    config: type[C]  # the dataclass of its settings
    prefix: tuple[str, ...]  # first words of the names of folders
    # What losses are compared on, for names: data set, setting.
    words: Callable[[C], tuple[str, ...]]
    network: Callable[[C], str]  # name of what is trained
    load: Callable[[C], D]  # load the data; refuse what training or evaluation could only fail at
    # What is trained and kept, with the initial weights of the run's seed.
    encoder: Callable[[C, D], nn.Module]
    # Make what Lightning trains of an encoder, with options of ``Training``.
    method: Callable[[C, D, nn.Module, dict[str, Any]], Training]
    # What the weights are worth, as entries of evaluation.json.
    evaluate: Callable[[C, D, nn.Module, Trained, RunFolder, Console], dict[str, Any]]
    kept: Callable[[Mapping[str, Any]], dict[str, Any]]  # of an evaluation, the entries of a record
    flat: Callable[[C], dict[str, Any]]  # settings that tell runs apart, beside those of every kind
    table: Callable[[Mapping[str, Any]], Table | str]  # an evaluation on the terminal
    chosen_by: str  # the metric that studies choose settings by
    gallery: str | None = None  # file with examples for the report, if evaluations leave one

    def folder(self, config: C) -> RunFolder:
        """The folder that a configuration asks for, or the one its values name."""
        if config.run is not None:
            return RunFolder(Path(config.run))
        parts = [
            *self.prefix,
            *self.words(config),
            *loss_words(config.loss),
            self.network(config),
            f"seed{config.seed}",
            digest(config)[:8],
        ]
        return RunFolder(Path(config.runs) / "-".join(parts))

    def settings(self, config: C) -> dict[str, Any]:
        """The settings that tell runs apart, in one level."""
        training = config.training
        return {
            "data": config.data.name,
            "train_size": config.data.train_size,
            "loss": config.loss["name"],
            "sharpness": sharpness_of(config.loss),
            **loss_parameters(config.loss),
            "epochs": training.epochs,
            "batch_size": training.batch_size,
            "learning_rate": training.learning_rate,
            "weight_decay": training.weight_decay,
            "seed": config.seed,
            "evaluated_on": config.evaluation.part,
            **self.flat(config),
        }


@dataclass(frozen=True)
class Finished:
    """A run with everything done."""

    folder: RunFolder  # where it is
    # The content of its evaluation.json; empty in all processes but the first.
    evaluation: dict[str, Any]
    skipped: bool  # whether nothing had to be computed


def run_once(
    kind: RunKind[C, D], config: C, console: Console, origin: Mapping[str, Any] | None = None
) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    Args:
        kind: Of the run.
        config: Every setting.
        console: Says what happens.
        origin: Provenance of the study that the run belongs to; None for one of its own.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    check(config)
    check_flags(config.trainer)
    folder = kind.folder(config)
    folder.check(config)
    evaluation = folder.read_evaluation()
    if evaluation is not None and _is_whole(kind, config, folder, evaluation):
        console.print(f"[green]Already finished:[/] {folder.path}", soft_wrap=True)
        record = evaluated(kind, config, folder, evaluation)
        if Store(folder.path).records().get(folder.path.name) != record:
            _leave(kind, config, folder, record)  # an earlier version left none, or was killed
        return Finished(folder, evaluation, skipped=True)
    origin = origin or collect_provenance()
    data = kind.load(config)
    for note in data.notes:
        console.print(f"[yellow]{config.data.name}:[/] {note}", soft_wrap=True)
    if folder.encoder.exists():
        folder.claim(config)
        trained: Trained | None = folder.read_trained()
    else:
        training = config.training
        options = {
            "learning_rate": training.learning_rate,
            "weight_decay": training.weight_decay,
            "seed": config.seed,
            "identity": digest(config),
        }
        module = kind.method(config, data, initial_encoder(kind, config, data), options)
        folder.claim(config)
        trained = fit(kind, config, data, module, folder, console, origin)
    if trained is None:  # one process evaluates
        return Finished(folder, {}, skipped=False)
    evaluation = evaluate_run(kind, config, data, trained, folder, console, origin)
    folder.checkpoint.unlink(missing_ok=True)
    return Finished(folder, evaluation, skipped=False)


def fit(
    kind: RunKind[C, D],
    config: C,
    data: D,
    module: Training,
    folder: RunFolder,
    console: Console,
    origin: Mapping[str, Any],
) -> Trained | None:
    """Train from the start, or from the last finished epoch, to the end, and keep the weights.

    Returns:
        The weights, which are on disk as well; None in all processes but the first.
    """
    training = config.training
    history = History(folder.metrics, data.held_out, training.geometry_every)
    resumed = folder.checkpoint.exists()
    verb = "Continuing" if resumed else "Training"
    what = f"{len(data.samples)} images, epochs: {training.epochs}"
    console.print(f"{verb} ({what}): {folder.path}", soft_wrap=True)
    with quiet_lightning():
        trainer = make_trainer(
            config.trainer,
            epochs=training.epochs,
            folder=folder.path,
            history=history,
            checkpoint=folder.checkpoint,
            progress=config.progress,
        )
        batches = ShuffledBatches(data.samples, training.batch_size, config.seed)
        record = _unfinished(kind, config, folder, history, origin)
        if trainer.is_global_zero and not Store(folder.path).runs.exists():
            _leave(kind, config, folder, record)
        try:
            train_to_the_end(trainer, module, batches, folder.checkpoint if resumed else None)
        except BaseException as error:
            if trainer.is_global_zero:
                record = _unfinished(kind, config, folder, history, origin)
                if isinstance(error, DivergenceError):
                    record |= {"status": DIVERGED, "verdict": str(error)}
                with suppress(OSError):  # a full disk may be the error
                    _leave(kind, config, folder, record)
            raise
    if not trainer.is_global_zero:
        return None
    trained = Trained(digest(config), module.encoder.state_dict(), history.rows)
    folder.write_trained(trained)
    return trained


def evaluate_run(
    kind: RunKind[C, D],
    config: C,
    data: D,
    trained: Trained,
    folder: RunFolder,
    console: Console,
    origin: Mapping[str, Any],
) -> dict[str, Any]:
    """Evaluate weights as a configuration says, write evaluation.json and the run's record.

    Returns:
        The content of evaluation.json.
    """
    began = time.monotonic()
    encoder = initial_encoder(kind, config, data)
    trained.restore(encoder, digest(config), folder)
    found = kind.evaluate(config, data, encoder, trained, folder, console)
    content = {
        "run": folder.path.name,
        "epoch": trained.epoch,
        "settings": asdict(config.evaluation),
        **found,
        "curves": curves(trained.rows),
        "seconds": {
            "training": trained.rows[-1]["seconds"],
            "evaluation": round(time.monotonic() - began, 3),
        },
        "config": asdict(config),
        "provenance": line_provenance(origin),
    }
    write_text(folder.evaluation, json.dumps(content, indent=1) + "\n")
    evaluation = folder.read_evaluation()
    assert evaluation is not None
    _leave(kind, config, folder, evaluated(kind, config, folder, evaluation))
    return evaluation


def initial_encoder(kind: RunKind[C, D], config: C, data: D) -> nn.Module:
    """The encoder with the initial weights of the run's seed."""
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return kind.encoder(config, data)


def evaluated(
    kind: RunKind[C, D], config: C, folder: RunFolder, evaluation: Mapping[str, Any]
) -> Record:
    """The record of an evaluated run; one of an unfinished training is partial."""
    return make_record(
        folder.path.name,
        part="final",
        status=DONE if evaluation["epoch"] == config.training.epochs else PARTIAL,
        config=kind.settings(config),
        seconds=sum(evaluation["seconds"].values()),
        steps=evaluation["curves"]["step"][-1],
        **kind.kept(evaluation),
        curves=evaluation["curves"],
        provenance=evaluation["provenance"],
    )


def _unfinished(
    kind: RunKind[C, D],
    config: C,
    folder: RunFolder,
    history: History,
    origin: Mapping[str, Any],
) -> Record:
    """The record of a training that has come as far as its history."""
    last = history.rows[-1] if history.rows else {"seconds": 0.0, "step": 0}
    return make_record(
        folder.path.name,
        part="final",
        status=PARTIAL,
        config=kind.settings(config),
        seconds=last["seconds"],
        steps=int(last["step"]),
        curves=curves(history.rows),
        provenance=line_provenance(origin),
    )


def _leave(kind: RunKind[C, D], config: C, folder: RunFolder, record: Record) -> None:
    """Make the folder of a run a study of one, which ``tricouple report`` reads."""
    head = {"scale": config.scale.name}
    write_head(folder.path, kind.name, folder.path.name, head, record["provenance"])
    Store(folder.path).append(record)


def _is_whole(
    kind: RunKind[C, D], config: C, folder: RunFolder, evaluation: Mapping[str, Any]
) -> bool:
    """Whether all of the training was evaluated, in the way that the configuration asks for."""
    return (
        evaluation.get("epoch") == config.training.epochs
        and evaluation.get("settings") == asdict(config.evaluation)
        and (kind.gallery is None or (folder.path / kind.gallery).is_file())
    )
