"""A task of tricouple_lab that trains in milliseconds: four classes of vectors."""

import hashlib
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import nn

from tricouple_lab.config.compose import compose
from tricouple_lab.runs.execute import execute
from tricouple_lab.runs.folder import Record
from tricouple_lab.tasks.base import Data, Evaluation, Model, make_loss

CLASSES = ("north", "east", "south", "west")


class Points:
    """Vectors of one split."""

    def __init__(self, n: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(n) % 4
        means = 1.5 * torch.eye(4, 6)
        self.inputs = means[self.labels] + torch.randn(n, 6, generator=generator)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitems__(self, indices):
        return self.inputs[indices], self.labels[indices]


class Tiny:
    """The task; its configurations are those of the mixture."""

    name = "mixture"
    metric = "embedding/nearest_mean"

    def __init__(
        self,
        n_train: int = 96,
        validation: bool = True,
        noise: float = 0.0,
        change_loss: Callable[..., torch.Tensor] = lambda found, *_: found,
        change_model: Callable[[Model], Model] = lambda model: model,
    ) -> None:
        self.n_train, self.validation, self.noise = n_train, validation, noise
        self.change_loss, self.change_model = change_loss, change_model
        self.calls: list[str] = []

    def load(self, config) -> Data:
        self.calls.append("load")
        splits = {"train": Points(self.n_train, 0), "test": Points(64, 2)}
        if self.validation:
            splits["validation"] = Points(48, 1)
        splits["train"].inputs[0] += self.noise
        digest = hashlib.sha256(splits["train"].inputs.numpy().tobytes()).hexdigest()
        return Data(splits["train"], splits, CLASSES, digest, about={"width": 16})

    def build(self, config, data: Data) -> Model:
        self.calls.append("build")
        return self.change_model(Model(network(16), make_loss(config.loss)))

    def loss(self, config, model: Model, batch, step):
        inputs, labels = batch
        found = model.objective(model.encoder(inputs), labels)
        return self.change_loss(found, model, batch, step)

    @torch.no_grad()
    def evaluate(self, config, data: Data, encoder, split: str, *, full: bool) -> Evaluation:
        assert not encoder.training
        self.calls.append(f"evaluate {split} {full}")
        train, part = data.splits["train"], data.splits[split]
        means = torch.stack([encoder(train.inputs)[train.labels == k].mean(0) for k in range(4)])
        embedding = encoder(part.inputs)
        predicted = torch.cdist(embedding, means).argmin(1)
        share = float((predicted == part.labels).float().mean())
        arrays = {"labels": part.labels, "predicted": predicted, "embedding": embedding}
        return Evaluation(
            {self.metric: share},
            {self.metric: 0.25},
            {key: value.numpy() for key, value in arrays.items()} if full else {},
        )

    def restore(self, config, header):
        return network(header.about["width"]), torch.as_tensor

    def embed(self, config, encoder, items) -> np.ndarray:
        with torch.no_grad():
            return encoder(torch.as_tensor(np.stack(items)).float()).numpy()


class Evil:
    """A pickle that runs a command when it is loaded."""

    def __reduce__(self):
        return os.system, ("touch evil",)


def network(width: int) -> nn.Module:
    """No batch normalisation: several processes compute the same as one."""
    return nn.Sequential(nn.Linear(6, width), nn.ReLU(), nn.Dropout(0.0), nn.Linear(width, 4))


def tiny(folder, *words: str):
    """The configuration of a run of four epochs of three steps."""
    base = ("scale=smoke", "training.epochs=4", "training.batch_size=32", "logger=csv",
            "evaluation.figures=false")  # fmt: skip
    rate = ("training.learning_rate=0.05", "progress=false", "trainer.accelerator=cpu")
    return compose("mixture", [*base, *rate, f"run={folder}", *words])


def trained(folder, *words: str, task: Tiny | None = None, **options) -> tuple[Record, str]:
    """The record of such a run, and what it said."""
    lines: list[str] = []
    record = execute(task or Tiny(), tiny(folder, *words), say=lines.append, **options)
    return record, "\n".join(lines)
