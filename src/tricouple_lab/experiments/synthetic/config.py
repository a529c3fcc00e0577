"""The settings of one run, their defaults, and which runs a study has."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
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


# --- which runs a study has -----------------------------------------------------------------------


Variant = tuple[str, str | None]  # a method and its ψ

_SHAPED = [method for method, settings in TAKES.items() if "shaping" in settings]
LINEAR: tuple[Variant, ...] = tuple((m, "linear" if m in _SHAPED else None) for m in TAKES)
LOG_SIGMOID: tuple[Variant, ...] = tuple((method, "log_sigmoid") for method in _SHAPED)


@dataclass(frozen=True)
class Cell:
    """One run of a study: its name, the part it belongs to, and its settings."""

    id: str
    part: str
    config: RunConfig


@dataclass(frozen=True)
class Axis:
    """A setting to vary, its values, and the variants that depend on it."""

    name: str
    values: tuple[Any, ...]
    variants: tuple[Variant, ...]


def _taking(setting: str) -> tuple[Variant, ...]:
    return tuple(variant for variant in LINEAR if setting in TAKES[variant[0]])


# For linear ψ only the product τε counts. Log-sigmoid is on these two axes alone: it is the one
# place where its shape, and not just its slope, can make a difference.
AXES = (
    Axis("epsilon", (0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0), _taking("epsilon") + LOG_SIGMOID),
    Axis("temperature", (0.05, 0.1, 0.2, 0.5, 1.0, 2.0), _taking("temperature") + LOG_SIGMOID),
    Axis("n_iters", (1, 2, 3, 5, 10, 30), _taking("n_iters")),
    Axis("imbalance", (1.0, 2.0, 5.0, 10.0, 25.0), LINEAR),
    Axis("dim", (2, 3, 5, 8, 9, 16, 64), LINEAR),
    Axis("kappa", (0.2, 1.0, 5.0, 25.0, 100.0), LINEAR),
    Axis("schedule", ("cosine", "constant"), LINEAR),
)


def main_cells(
    base: RunConfig,
    classes: Sequence[int],
    seeds: Sequence[int],
    variants: Sequence[Variant] = LINEAR + LOG_SIGMOID,
) -> list[Cell]:
    """All variants at each K with each seed; a whole comparison comes before the next seed.

    InfoNCE runs at the τ of the others, at ε = 0.5 half as sharp as they, and at their sharpness.

    Example:
        >>> [cell.id for cell in main_cells(RunConfig(), [10], [0], LINEAR[:2])]
        ['neg_mmiot-linear-K10-seed0', 'pushpull-linear-K10-seed0']
    """
    return [
        Cell(_name(config, base), "main", config)
        for seed in seeds
        for n_classes in classes
        for variant in variants
        for config in _configs(replace(base, n_classes=n_classes, seed=seed), variant)
    ]


def map_cells(base: RunConfig) -> list[Cell]:
    """One seed along every axis, at the K of `base`; all else as in `base`.

    Classes of different size are drawn in ordinary shuffled batches, since the class-uniform ones
    would hide the difference; the first value of that axis shows what the batches alone change.
    """
    # The log-sigmoid triplet plan costs most: the rest need not wait for it.
    return sorted(_map_cells(base), key=lambda cell: cell.config.shaping == "log_sigmoid")


def _map_cells(base: RunConfig) -> Iterator[Cell]:
    for axis in AXES:
        sampler = "shuffled" if axis.name == "imbalance" else base.sampler
        values = axis.values
        if axis.name == "imbalance":
            values = tuple(value for value in values if value <= base.per_class / 2)
        for value in values:
            changes: dict[str, Any] = {axis.name: value}
            here = replace(base, sampler=sampler, **changes)
            for variant in axis.variants:
                for config in _configs(here, variant, twice=axis.name != "temperature"):
                    name = f"{axis.name}={value}-{_name(config, here)}"
                    yield Cell(name, f"maps/{axis.name}", config)


def _configs(base: RunConfig, variant: Variant, *, twice: bool = True) -> Iterator[RunConfig]:
    """The runs of a variant; InfoNCE, whose sharpness is 1/τ, also at the others' 1/(τε)."""
    method, shaping = variant
    config = replace(base, method=method, shaping=shaping)
    yield config
    if method == "infonce" and twice and base.epsilon != 1:
        yield replace(config, temperature=base.temperature * base.epsilon)


def _name(config: RunConfig, base: RunConfig) -> str:
    sharper = config.temperature != base.temperature
    words = [
        config.method,
        config.shaping,
        f"c{config.sharpness:g}" if sharper else None,
        f"K{config.n_classes}",
        f"seed{config.seed}",
    ]
    return "-".join(word for word in words if word)
