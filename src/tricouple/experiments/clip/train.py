"""A run that trains an image and a text encoder."""

from __future__ import annotations

from typing import Any

from rich.console import Console

from tricouple import checks
from tricouple.conf.schema import Clip
from tricouple.experiments.clip.captions import (
    RunCaptions,
    check_trainable,
    held_out,
    load_captions,
)
from tricouple.experiments.clip.evaluate import evaluate_trained
from tricouple.experiments.clip.method import build_training
from tricouple.experiments.clip.records import write_as_study
from tricouple.experiments.clip.run_folder import GALLERY, folder_of
from tricouple.experiments.runs.evaluation import is_evaluated
from tricouple.experiments.runs.once import Finished, fit, run_once
from tricouple.experiments.runs.run_folder import digest
from tricouple.experiments.runs.trained import Trained
from tricouple.training.module import Training
from tricouple.training.trainer import check_flags


def train(config: Clip, console: Console) -> Finished:
    """Train and evaluate, doing only what is not done yet.

    Raises:
        ValueError: If the configuration or the data make no run.
        DivergenceError: If the loss stopped being a number.
        WriteError: If the disk is full.
    """
    return run_once(ClipWork(config), console)


class ClipWork:
    """The stages of a run on images and captions."""

    captions: RunCaptions

    def __init__(self, config: Clip) -> None:
        self.config = config
        self.folder = folder_of(config)

    def check(self) -> None:
        """Refuse numbers that make no sense."""
        check_values(self.config)

    def is_evaluated(self) -> bool:
        """Whether nothing is left to do."""
        drawn = (self.folder.path / GALLERY).is_file()
        return drawn and is_evaluated(self.folder, self.config)

    def load(self, console: Console) -> None:
        """Load images and captions, and say what was left out."""
        self.captions = load_captions(self.config)
        for note in self.captions.notes:
            console.print(f"[yellow]{self.config.data.name}:[/] {note}", soft_wrap=True)
        check_trainable(self.config, self.captions)

    def build(self) -> Training:
        """The encoders and the loss."""
        return build_training(self.config, digest(self.config))

    def fit(self, module: Training, console: Console) -> Trained | None:
        """Train, following the retrieval of held-out pairs."""
        samples = self.captions.samples(all_captions=self.config.training.captions == "all")
        return fit(self, module, samples, held_out(self.config, self.captions), console)

    def evaluate(self, trained: Trained, console: Console) -> dict[str, Any]:
        """Retrieval, zero-shot classification, geometry."""
        evaluation = evaluate_trained(self.config, self.folder, trained, self.captions)
        write_as_study(self.config, evaluation)
        return evaluation


def check_values(config: Clip) -> None:
    """Refuse numbers that make no sense, by their names."""
    check_flags(config.trainer)
    training = config.training
    checks.positive_number("training.learning_rate", training.learning_rate)
    checks.non_negative_number("training.weight_decay", training.weight_decay)
    checks.non_negative_number("data.validation_size", config.data.validation_size)
    checks.non_negative_number("data.test_size", config.data.test_size)
    checks.non_negative_number("evaluation.gallery", config.evaluation.gallery)
    for name, value in {
        "training.epochs": training.epochs,
        "training.geometry_every": training.geometry_every,
        "training.geometry_samples": training.geometry_samples,
    }.items():
        checks.count(name, value)
