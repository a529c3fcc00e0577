"""Runs of the vision study that differ only in their seed."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from tricouple.report import seeds
from tricouple.report.read import Run, Study, StudyError
from tricouple.report.statistics import Curve, MeanStd
from tricouple.report.vision.names import BACKBONES, DATA, LOSSES, SETTINGS, loss_name, rank
from tricouple.report.words import axis_value, listing

# Parts of a study; the runs of a folder of runs are all of the last kind.
SHARPNESS, FINAL, MAIN = "sharpness", "final", "main"

# They follow from the sharpness.
_DERIVED = ("temperature", "epsilon", "epsilon_pos", "epsilon_neg", "regularisation")
_SHORT = {"sharpness": "c", "learning_rate": "learning rate", "train_size": "images",
          "max_train_size": "images at most"}  # fmt: skip


@dataclass(frozen=True)
class Block:
    """What losses are compared on: a column of the paper's tables."""

    setting: str
    data: str
    backbone: str

    @property
    def columns(self) -> str:
        """Data set and backbone in words."""
        return f"{DATA.get(self.data, self.data)}, {BACKBONES.get(self.backbone, self.backbone)}"

    def __str__(self) -> str:
        return f"{self.columns}, {SETTINGS.get(self.setting, self.setting)}"

    @property
    def order(self) -> tuple[object, ...]:
        """Sorts as the paper does: SCL before UCL, MNIST first, small backbones first."""
        return (
            rank(self.setting, SETTINGS),
            rank(self.data, DATA),
            rank(self.backbone, BACKBONES),
        )


@dataclass(frozen=True)
class Group:
    """The seeds of a loss in a block, all other settings equal.

    Attributes:
        block: What it was compared on.
        loss: Its name on the command line.
        variant: What tells it from other runs of this loss in this block; empty if nothing does.
        runs: One for each seed.
    """

    block: Block
    loss: str
    variant: str
    runs: tuple[Run, ...]

    @property
    def name(self) -> str:
        """The loss in words, and the variant where there are several."""
        return loss_name(self.loss) + (f", {self.variant}" if self.variant else "")

    @property
    def method(self) -> str:
        """The loss by the name that styles know."""
        return LOSSES.get(self.loss, self.loss)

    @property
    def config(self) -> dict[str, Any]:
        """The settings, those of the first seed."""
        return self.runs[0].config

    @property
    def images(self) -> int | None:
        """How many images it was trained on; None for all of its data set."""
        counted = self.metric("images").mean
        if math.isfinite(counted):
            return int(counted)
        size = self.config.get("train_size")
        return None if size is None else int(size) - int(self.config.get("validation_size") or 0)

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end."""
        return seeds.finished(self.runs)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs to draw: the finished ones, or what there is until one has finished."""
        return self.finished or self.runs

    def metric(self, name: str) -> MeanStd:
        """A measure over the finished seeds."""
        return seeds.metric(self.runs, name)

    def percent(self, name: str) -> MeanStd:
        """An accuracy over the finished seeds, in per cent."""
        share = self.metric(name)
        return MeanStd(100 * share.mean, 100 * share.std, share.count)

    def curve(self, name: str) -> Curve:
        """A quantity over the epochs."""
        return seeds.curve_over(self.shown, name, "epoch")


def final_groups(study: Study) -> tuple[Group, ...]:
    """The runs that the tables are about."""
    return group([*study.part(FINAL), *study.part(MAIN)])


def group(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Gather the seeds of every block, loss and setting, in the order of the paper."""
    found: dict[tuple[Block, str], dict[str, list[Run]]] = {}
    for run in runs:
        block, loss = block_of(run), run.config["loss"]
        rest = {key: value for key, value in run.config.items() if key != "seed"}
        key = json.dumps(rest, sort_keys=True, default=str)
        found.setdefault((block, loss), {}).setdefault(key, []).append(run)
    groups = []
    for (block, loss), variants in found.items():
        members = list(variants.values())
        for own, name in zip(members, variant_names([m[0].config for m in members]), strict=True):
            ordered = tuple(sorted(own, key=lambda run: run.config["seed"]))
            groups.append(Group(block, loss, name, ordered))
    return tuple(sorted(groups, key=_order))


def blocks_of(groups: Iterable[Group]) -> tuple[Block, ...]:
    """The blocks of some groups, each once, in the order of the paper."""
    return tuple(sorted({own.block for own in groups}, key=lambda block: block.order))


def losses_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """The losses of some groups, each once, in the order of the paper."""
    return tuple(sorted({own.loss for own in groups}, key=lambda loss: rank(loss, LOSSES)))


def block_of(run: Run) -> Block:
    """The block of a run.

    Raises:
        StudyError: If the run does not say what it is a run of.
    """
    kinds = {"setting": str, "data": str, "backbone": str, "loss": str, "seed": int}
    for key, kind in kinds.items():
        if not isinstance(run.config.get(key), kind):
            where = f"runs.jsonl, line {run.line}: " if run.line else ""
            raise StudyError(
                f"{where}config of run {run.id} needs {key} ({kind.__name__}), "
                f"found {run.config.get(key)!r}"
            )
    return Block(*(run.config[key] for key in ("setting", "data", "backbone")))


def variant_names(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What tells configurations apart, in words.

    Example:
        >>> variant_names([{"sharpness": 3.0, "epochs": 5}, {"sharpness": 10.0, "epochs": 5}])
        ['c = 3', 'c = 10']
    """
    keys = [key for key in dict.fromkeys(key for own in configs for key in own) if key != "seed"]
    told = [key for key in keys if any(own.get(key) != configs[0].get(key) for own in configs)]
    if "sharpness" in told:
        told = [key for key in told if key not in _DERIVED]
    return [
        listing([f"{_SHORT.get(key, key)} = {axis_value(own.get(key))}" for key in told])
        for own in configs
    ]


def _order(own: Group) -> tuple[object, ...]:
    numbers = [own.config.get(key) for key in ("sharpness", "learning_rate")]
    return (
        own.block.order,
        rank(own.loss, LOSSES),
        *(number if isinstance(number, int | float) else 0.0 for number in numbers),
        own.variant,
    )
