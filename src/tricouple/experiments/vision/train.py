"""A run that trains an image encoder."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tricouple import checks
from tricouple.conf.schema import Train
from tricouple.evaluation.geometry import HeldOut
from tricouple.experiments.runs.evaluation import is_evaluated
from tricouple.experiments.runs.once import Finished, fit, run_once
from tricouple.experiments.runs.trained import Trained
from tricouple.experiments.vision.evaluate import evaluate_trained
from tricouple.experiments.vision.images import RunImages, check_trainable, load_images
from tricouple.experiments.vision.method import build_training
from tricouple.experiments.vision.run_folder import digest, folder_of
from tricouple.training.module import Training
from tricouple.training.trainer import check_flags


def train(config: Train, console: Console) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    return run_once(VisionWork(config), console)


class VisionWork:
    """The stages of a run that trains an image encoder."""

    images: RunImages

    def __init__(self, config: Train) -> None:
        self.config = config
        self.folder = folder_of(config)

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        check_values(self.config)

    def is_evaluated(self) -> bool:
        """Whether nothing is left to do."""
        return is_evaluated(self.folder, self.config)

    def load(self, console: Console) -> None:
        """Load the images, and say what differs from the published ones."""
        config = self.config
        self.images = load_images(config)
        for note in self.images.data.notes:
            console.print(f"[yellow]{config.data.name}:[/] {note}")
        check_trainable(config, self.images.data)
        self.images.measured(config.evaluation.part)  # refuses what cannot be, before training

    def build(self) -> Training:
        """The encoder and its method."""
        return build_training(self.config, self.images.data, digest(self.config))

    def fit(self, module: Training, console: Console) -> Trained | None:
        """Train, following the geometry of held-out images."""
        config, data = self.config, self.images.data
        followed = self.images.held_out(config.training.geometry_samples, config.seed)
        held_out = None if followed is None else HeldOut(followed, data.normalisation)
        return fit(self, module, data.train, held_out, console)

    def evaluate(self, trained: Trained, console: Console) -> dict[str, Any]:
        """Probe, k-NN and geometry."""
        return evaluate_trained(self.config, self.folder, trained, self.images, console)


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
