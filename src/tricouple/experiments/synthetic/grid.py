"""Which runs a study has: the main comparison, and maps along one setting at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tricouple.experiments.synthetic.config import TAKES, RunConfig

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
