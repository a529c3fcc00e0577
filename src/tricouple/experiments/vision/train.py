"""One training run: begun, continued where it stopped, or found to be finished."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from rich.console import Console

from tricouple import checks
from tricouple.conf.schema import Train
from tricouple.experiments.vision.evaluate import evaluate_trained, is_evaluated
from tricouple.experiments.vision.images import RunImages, check_trainable, load_images
from tricouple.experiments.vision.method import build_training
from tricouple.experiments.vision.run_folder import RunFolder, digest, folder_of
from tricouple.experiments.vision.trained import Trained, load_trained, save_trained
from tricouple.training.batches import ShuffledBatches
from tricouple.training.geometry import HeldOut
from tricouple.training.history import History
from tricouple.training.module import Training
from tricouple.training.trainer import (
    check_flags,
    make_trainer,
    quiet_lightning,
    train_to_the_end,
)


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


def train(config: Train, console: Console) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    check_values(config)
    folder = folder_of(config)
    folder.check(config)
    if is_evaluated(folder, config):
        console.print(f"[green]Already finished:[/] {folder.path}", soft_wrap=True)
        evaluation = folder.read_evaluation()
        assert evaluation is not None
        return Finished(folder, evaluation, skipped=True)
    images = load_images(config)
    for note in images.data.notes:
        console.print(f"[yellow]{config.data.name}:[/] {note}")
    check_trainable(config, images.data)
    images.measured(config.evaluation.part)  # refuses what cannot be, before hours of training
    if folder.encoder.exists():
        trained: Trained | None = load_trained(folder)
        folder.claim(config)
    else:
        module = build_training(config, images.data, digest(config))
        folder.claim(config)
        trained = fit(config, images, module, folder, console)
    if trained is None:  # one process evaluates
        return Finished(folder, {}, skipped=False)
    evaluation = evaluate_trained(config, folder, trained, images, console)
    folder.checkpoint.unlink(missing_ok=True)
    return Finished(folder, evaluation, skipped=False)


def check_values(config: Train) -> None:
    """Refuse numbers that make no sense, by their names."""
    check_flags(config.trainer)
    training, evaluation = config.training, config.evaluation
    checks.positive_number("training.learning_rate", training.learning_rate)
    checks.non_negative_number("training.weight_decay", training.weight_decay)
    checks.positive_number("evaluation.probe_learning_rate", evaluation.probe_learning_rate)
    checks.non_negative_number("evaluation.probe_weight_decay", evaluation.probe_weight_decay)
    checks.non_negative_number("data.validation_size", config.data.validation_size)
    for name, value in {
        "training.epochs": training.epochs,
        "training.geometry_every": training.geometry_every,
        "training.geometry_samples": training.geometry_samples,
        "evaluation.neighbours": evaluation.neighbours,
        "evaluation.probe_epochs": evaluation.probe_epochs,
        "evaluation.probe_batch_size": evaluation.probe_batch_size,
    }.items():
        checks.count(name, value)


def fit(
    config: Train, images: RunImages, module: Training, folder: RunFolder, console: Console
) -> Trained | None:
    """Train from the start, or from the last finished epoch, to the end.

    Returns:
        The weights, which are on disk as well; None in all processes but the first.
    """
    training, data = config.training, images.data
    followed = images.held_out(training.geometry_samples, config.seed)
    held_out = None if followed is None else HeldOut(followed, data.normalisation)
    history = History(folder.metrics, held_out, training.geometry_every)
    resumed = folder.checkpoint.exists()
    verb = "Continuing" if resumed else "Training"
    what = f"{len(data.train)} images, epochs: {training.epochs}"
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
        batches = ShuffledBatches(data.train, training.batch_size, config.seed)
        train_to_the_end(trainer, module, batches, folder.checkpoint if resumed else None)
    if not trainer.is_global_zero:
        return None
    trained = Trained(digest(config), module.encoder.state_dict(), history.rows)
    save_trained(folder, trained)
    return trained
