"""What is particular to a kind of run: encoders of images, of images and texts, or of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from torch import nn

from tricouple_lab.conf.compose import loss_parameters, loss_words, sharpness_of
from tricouple_lab.conf.schema import RunConfig
from tricouple_lab.data.images.sets import BatchedSet
from tricouple_lab.experiments.runs.folder import RunFolder, Trained
from tricouple_lab.experiments.runs.identity import (
    Listing,
    data_name,
    digest,
    former_digest,
    listing,
    published,
    resolved,
)
from tricouple_lab.training.module import Training
from tricouple_lab.training.trainer import Measured


@dataclass(frozen=True, eq=False)
class Loaded:
    """What a run trains on; a subclass has what it is measured on."""

    notes: Sequence[str]  # what was left out or differs from published data; said once a command
    samples: BatchedSet  # what an epoch consists of
    held_out: Measured | None  # what is followed along training, if there is anything


C = TypeVar("C", bound=RunConfig)
D = TypeVar("D", bound=Loaded)


@dataclass(frozen=True)
class RunKind(Generic[C, D]):
    """What is particular to a kind of run; it goes to the workers of a study, so no lambdas."""

    name: str  # of its studies, for their report
    config: type[C]  # the dataclass of its settings
    prefix: tuple[str, ...]  # first words of the names of folders
    network: Callable[[C], str]  # name of what is trained
    files: Callable[[C], Sequence[Path]]  # of one's own that it trains on
    # Of published data: their folder, and the files there that ``load`` reads.
    published: Callable[[C], tuple[Path, Sequence[Path]]]
    load: Callable[[C], D]  # load the data; refuse what training or evaluation could only fail at
    # What is trained and kept, with the initial weights of the run's seed.
    encoder: Callable[[C, D], nn.Module]
    # Make what Lightning trains of an encoder, with options of ``Training``.
    method: Callable[[C, D, nn.Module, dict[str, Any]], Training]
    # What the weights are worth, as entries of evaluation.json; and the bytes of a ``gallery``.
    evaluate: Callable[[C, D, nn.Module, Trained, Console], dict[str, Any]]
    kept: Callable[[Mapping[str, Any]], dict[str, Any]]  # of an evaluation, the entries of a record
    flat: Callable[[C], dict[str, Any]]  # settings that tell runs apart, beside those of every kind
    table: Callable[[Mapping[str, Any]], Table | str]  # an evaluation on the terminal
    chosen_by: str  # the metric that studies choose settings by
    chosen_on: str = "validation images"  # and on what
    gallery: bool = False  # whether studies keep the examples that evaluations leave
    setting: Callable[[C], str] | None = None  # what losses are compared on beside the data
    # What it takes to use the encoder without the data.
    about: Callable[[C, D], dict[str, Any]] | None = None

    def folder(self, config: C) -> RunFolder:
        """The folder that a configuration asks for, or the one its values name."""
        if config.run is not None:
            return RunFolder(Path(config.run))

        def named(data: str, digest: str) -> RunFolder:
            parts = [
                *self.prefix,
                data,
                *([self.setting(config)] if self.setting else []),
                *loss_words(config.loss),
                self.network(config),
                f"seed{config.seed}",
                digest[:8],
            ]
            return RunFolder(Path(config.runs) / "-".join(parts))

        before = named(config.data.name, former_digest(config))  # as the version before named it
        return before if before.path.exists() else named(data_name(config), digest(config))

    def listing(self, config: C) -> Listing:
        """The files that a run is about, and the weights that it starts from."""
        config = resolved(config)
        found = listing(self.files(config))
        if config.data.own:
            return found
        return found | published(config.data.name, *self.published(config))

    def settings(self, config: C) -> dict[str, Any]:
        """The settings that tell runs apart, in one level."""
        training = config.training
        return {
            "data": data_name(config),
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


def result_table(evaluation: Mapping[str, Any], told: str, head: Sequence[str]) -> Table:
    """A table for rows of an evaluation, whose first column has words, the others numbers."""
    seconds, sharpness = sum(evaluation["seconds"].values()), evaluation["sharpness"]
    c = "" if sharpness is None else f"; sharpness c = {sharpness:g}"
    caption = f"epochs: {evaluation['epoch']}, {seconds:.0f} s{c}; {told}"
    found = Table(title=escape(evaluation["run"]), caption=caption)
    for number, heading in enumerate(head):
        found.add_column(heading, justify="right" if number else "left")
    return found


def device_of(config: RunConfig) -> torch.device:
    """Where features are computed: where training was, but on one device."""
    wanted = config.trainer.get("accelerator")
    if wanted in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return torch.device("cuda")
    if wanted in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return torch.device("mps")
    return torch.device("cpu")
