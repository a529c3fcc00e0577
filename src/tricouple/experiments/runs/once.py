"""One run of any kind: begun, continued where it stopped, or found to be finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from rich.console import Console

from tricouple.data.images.sets import BatchedSet
from tricouple.experiments.runs.run_folder import RunConfig, RunFolder, digest
from tricouple.experiments.runs.trained import Trained, load_trained, save_trained
from tricouple.training.batches import ShuffledBatches
from tricouple.training.history import History, Measured
from tricouple.training.module import Training
from tricouple.training.trainer import make_trainer, quiet_lightning, train_to_the_end


@dataclass(frozen=True)
class Finished:
    """A run with everything done.

    Attributes:
        folder: Where it is.
        evaluation: The content of its evaluation.json.
        skipped: Whether nothing had to be computed.
    """

    folder: RunFolder
    evaluation: dict[str, Any]
    skipped: bool


class Work(Protocol):
    """What a kind of run does at each stage; they come in this order."""

    @property
    def config(self) -> RunConfig:
        """Every setting."""

    @property
    def folder(self) -> RunFolder:
        """Where the run is."""

    def check(self) -> None:
        """Refuse numbers that make no sense, by their names."""

    def is_evaluated(self) -> bool:
        """Whether the whole training was evaluated, as the configuration asks for."""

    def load(self, console: Console) -> None:
        """Load the data; refuse what training or evaluation could only fail at."""

    def build(self) -> Training:
        """The Lightning module, with freshly initialised weights."""

    def fit(self, module: Training, console: Console) -> Trained | None:
        """Train to the end; None in all processes but the first."""

    def evaluate(self, trained: Trained, console: Console) -> dict[str, Any]:
        """Write evaluation.json and return its content."""


def run_once(work: Work, console: Console) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    work.check()
    folder, config = work.folder, work.config
    folder.check(config)
    if work.is_evaluated():
        console.print(f"[green]Already finished:[/] {folder.path}", soft_wrap=True)
        evaluation = folder.read_evaluation()
        assert evaluation is not None
        return Finished(folder, evaluation, skipped=True)
    work.load(console)
    if folder.encoder.exists():
        trained: Trained | None = load_trained(folder)
        folder.claim(config)
    else:
        module = work.build()
        folder.claim(config)
        trained = work.fit(module, console)
    if trained is None:  # one process evaluates
        return Finished(folder, {}, skipped=False)
    evaluation = work.evaluate(trained, console)
    folder.checkpoint.unlink(missing_ok=True)
    return Finished(folder, evaluation, skipped=False)


def fit(
    work: Work,
    module: Training,
    samples: BatchedSet,
    held_out: Measured | None,
    console: Console,
) -> Trained | None:
    """Train from the start, or from the last finished epoch, to the end, and keep the weights.

    Returns:
        The weights, which are on disk as well; None in all processes but the first.
    """
    config, folder = work.config, work.folder
    training = config.training
    history = History(folder.metrics, held_out, training.geometry_every)
    resumed = folder.checkpoint.exists()
    verb = "Continuing" if resumed else "Training"
    what = f"{len(samples)} images, epochs: {training.epochs}"
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
        batches = ShuffledBatches(samples, training.batch_size, config.seed)
        train_to_the_end(trainer, module, batches, folder.checkpoint if resumed else None)
    if not trainer.is_global_zero:
        return None
    trained = Trained(digest(config), module.encoder.state_dict(), history.rows)
    save_trained(folder, trained)
    return trained
