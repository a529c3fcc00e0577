"""The settings of one run, and their defaults: the paper's where it gives them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from tricouple import checks

TAKES = {
    "neg_mmiot": ("temperature", "epsilon", "n_iters", "shaping"),
    "pushpull": ("temperature", "epsilon", "n_iters", "shaping"),
    "iot": ("epsilon", "n_iters"),
    "infonce": ("temperature",),
    "byol": (),
    "vicreg": (),
}
"""The methods, and which of the settings below each takes; the rest is that of its own paper."""

SAMPLERS = ("class_uniform", "shuffled")
SCHEDULES = ("cosine", "constant")


@dataclass(frozen=True)
class RunConfig:
    """Everything that one training run depends on.

    The paper gives K, samples of a class, data dimension, κ, ε, sweeps, learning rate, AdamW and a
    three-layer MLP. It does not give batch size, carry-over, number of steps, widths, weight decay
    or a schedule: those below are ours, the same for every method. The cosine schedule is there
    because at a constant rate the optimiser never settles, whatever the method.
    """

    method: str = "neg_mmiot"  # a key of ``TAKES``
    # ψ, ``"linear"`` or ``"log_sigmoid"``; None for methods that have none.
    shaping: str | None = "linear"
    n_classes: int = 10  # K
    # Seed of mixture, samples, encoder and batches. All methods share them at one seed.
    seed: int = 0
    per_class: int = 50  # training samples of a class, of the largest one if unbalanced
    data_dim: int = 100  # d, dimension of the data
    kappa: float = 5.0  # κ, variance of the data outside the subspace of the means
    imbalance: float = 1.0  # largest class over smallest
    # ``"class_uniform"`` (the paper's Algorithm 4) or ``"shuffled"``, ordinary batches of the same
    # size.
    sampler: str = "class_uniform"
    batch_per_class: int = 4  # b; a batch has K·b samples
    carry_over: float = 0.5  # ρ of Algorithm 4
    hidden: int = 256  # width of the encoder
    dim: int = 64  # dimension of the embeddings
    epsilon: float = 0.5  # ε of Neg-MMIOT, PushPull (both plans) and IOT
    temperature: float = 1.0  # τ of Neg-MMIOT, PushPull and InfoNCE
    n_iters: int = 10  # Sinkhorn sweeps of Neg-MMIOT, PushPull and IOT
    steps: int = 3000  # optimiser steps
    learning_rate: float = 8e-4  # of AdamW
    weight_decay: float = 0.01  # of AdamW
    schedule: str = "cosine"  # ``"cosine"`` to zero, or ``"constant"``

    def __post_init__(self) -> None:
        checks.one_of("method", self.method, tuple(TAKES))
        checks.one_of("sampler", self.sampler, SAMPLERS)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        if "shaping" in TAKES[self.method]:
            checks.one_of("shaping", self.shaping, ("linear", "log_sigmoid"))
        elif self.shaping is not None:
            raise ValueError(f"shaping is {self.shaping!r}, but {self.method} has none: use None")
        for name in ("n_classes", "per_class", "data_dim", "hidden", "dim", "n_iters", "steps"):
            checks.count(name, getattr(self, name))
        for name in ("kappa", "epsilon", "temperature", "learning_rate"):
            checks.positive_number(name, getattr(self, name))
        checks.non_negative_number("weight_decay", self.weight_decay)
        for message in self._obstacles():
            raise ValueError(message)

    def _obstacles(self) -> Iterator[str]:
        """What makes a run impossible though every setting alone would do."""
        if self.n_classes < 2:
            yield f"n_classes is {self.n_classes}: 2 or more are needed for a negative"
        if self.data_dim < self.n_classes - 1:
            yield (
                f"data_dim is {self.data_dim}: the means of {self.n_classes} classes need "
                f"{self.n_classes - 1} or more"
            )
        if not 1 <= self.imbalance <= self.per_class / 2:
            yield (
                f"imbalance is {self.imbalance}: with {self.per_class} samples in the largest "
                f"class it can be 1 to {self.per_class / 2:g}, so that the smallest has 2"
            )
        if self.batch_per_class < 2:
            yield f"batch_per_class is {self.batch_per_class}: 2 or more make a positive pair"
        if self.batch_per_class > self.per_class:
            yield (
                f"batch_per_class is {self.batch_per_class}, but a class has only "
                f"{self.per_class} samples: use {self.per_class} or fewer"
            )
        if not 0 <= self.carry_over <= 1:
            yield f"carry_over must be between 0 and 1, got {self.carry_over}"
        if self.imbalance > 1 and self.sampler == "class_uniform":
            yield (
                f"imbalance is {self.imbalance}, but class-uniform batches would hide it: "
                'use sampler="shuffled"'
            )

    @property
    def sharpness(self) -> float | None:
        """What a linear loss knows of τ and ε: c = 1/(τε), 1/ε for IOT and 1/τ for InfoNCE."""
        taken = [name for name in ("temperature", "epsilon") if name in TAKES[self.method]]
        return 1 / math.prod(getattr(self, name) for name in taken) if taken else None

    def flat(self) -> dict[str, Any]:
        """All settings, and the sharpness, as a run file has them."""
        return asdict(self) | {"sharpness": self.sharpness}

    def shared(self) -> dict[str, Any]:
        """What all runs of a study's main part have in common."""
        own = {"method", "shaping", "n_classes", "seed"}
        return {name: value for name, value in asdict(self).items() if name not in own}
