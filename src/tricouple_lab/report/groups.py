"""Runs that differ only in their seed: their mean ± std, their curves, what is missing of them."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tricouple_lab.names import AXES, DATA, LOSSES, SETTINGS, loss_name, rank
from tricouple_lab.report.chart import Array, Style, style
from tricouple_lab.report.numbers import MeanStd, listing, plain
from tricouple_lab.report.read import Run, Study, StudyError

# What the configuration of a run has to say, and the type of it.
Needs = Mapping[str, type | tuple[type, ...]]

# They follow from the sharpness.
_DERIVED = ("temperature", "epsilon", "epsilon_pos", "epsilon_neg", "regularisation")
_SHORT = {"sharpness": "c", "train_size": "images", "max_train_size": "images at most"}


@dataclass(frozen=True)
class Curve:
    """A quantity over x (steps or positions) with its mean and its band over seeds.

    The band is mean ± std. Where it would reach below the smallest seed it is cut there: on a
    logarithmic axis a band that crosses zero could not be drawn, and no seed was seen below.
    """

    x: Array
    mean: Array
    low: Array
    high: Array

    @classmethod
    def over(cls, seeds: Sequence[Mapping[float, float]]) -> Curve:
        """Mean and band over seeds, which need not all have every x, nor a number there."""
        x = sorted({at for seed in seeds for at in seed})
        values = [[v for seed in seeds if np.isfinite(v := seed.get(at, np.nan))] for at in x]
        columns = [MeanStd.of(column) for column in values]
        mean = np.array([column.mean for column in columns])
        spread = np.array([column.spread for column in columns])
        lowest = np.array([min(column, default=np.nan) for column in values])
        return cls(np.array(x, np.float64), mean, np.maximum(mean - spread, lowest), mean + spread)

    @property
    def end(self) -> float:
        """The last mean, NaN if there is none."""
        return float(self.mean[-1]) if len(self.mean) else math.nan


@dataclass(frozen=True)
class Group:
    """The seeds of one setting: all of their configuration but the seed is the same."""

    runs: tuple[Run, ...]  # one for each seed
    place: str = ""  # what losses are compared on there, in words; empty where it is one thing
    # What tells it from other groups of its loss in its place; empty if nothing does.
    label: str = ""
    variant: int = 0  # how many groups of its loss with other labels come before it

    @property
    def config(self) -> dict[str, Any]:
        """The settings, those of the first seed."""
        return self.runs[0].config

    @property
    def loss(self) -> str:
        """The key of its loss."""
        return loss_of(self.runs[0])

    @property
    def short_name(self) -> str:
        """The loss in words, and what tells it apart; ψ is left to the reader's choice."""
        return loss_name(self.loss) + (f", {self.label}" if self.label else "")

    @property
    def name(self) -> str:
        """The loss in words with its ψ, and what tells it apart."""
        name = loss_name(self.loss, self.config.get("shaping"))
        return name + (f", {self.label}" if self.label else "")

    @property
    def full_name(self) -> str:
        """The name and the place."""
        return f"{self.name}, {self.place}" if self.place else self.name

    @property
    def style(self) -> Style:
        """How it is drawn."""
        return style(self.loss, self.variant)

    @property
    def sharpness(self) -> float:
        """c, NaN for a loss without."""
        value = self.config.get("sharpness")
        return float(value) if isinstance(value, int | float) else math.nan

    @property
    def c(self) -> str:
        """The sharpness as tables write it."""
        return plain(self.sharpness) if math.isfinite(self.sharpness) else "–"

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end: the ones whose last value is a result."""
        return tuple(run for run in self.runs if run.status == "done")

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs to draw: the finished ones, or what there is until one has finished."""
        return self.finished or self.runs

    @property
    def seeds(self) -> tuple[int, ...]:
        """The seeds that have finished."""
        return tuple(run.config["seed"] for run in self.finished)

    def last(self, name: str) -> MeanStd:
        """The last value of a curve over the finished seeds."""
        return MeanStd.of(run.final(name) for run in self.finished)

    def first(self, name: str) -> MeanStd:
        """The first recorded value of a curve over the finished seeds."""
        curves = [run.curves.get(name, np.empty(0)) for run in self.finished]
        return MeanStd.of(float(curve[0]) for curve in curves if len(curve))

    def metric(self, name: str) -> MeanStd:
        """A measure of the trained encoder over the finished seeds."""
        return MeanStd.of(run.metrics.get(name, math.nan) for run in self.finished)

    def percent(self, name: str) -> MeanStd:
        """A share over the finished seeds, in per cent."""
        return self.metric(name).times(100)

    def has(self, name: str) -> bool:
        """Whether a quantity was recorded during training."""
        return any(name in run.curves for run in self.shown)

    def curve(self, name: str, x: str = "step") -> Curve:
        """A quantity over training; at each x over the seeds that recorded it."""
        curves = [run.curves for run in self.shown if name in run.curves]
        return Curve.over([dict(zip(own[x], own[name], strict=True)) for own in curves])


def group(
    runs: Iterable[Run],
    needs: Needs,
    place: Callable[[dict[str, Any]], str] = lambda config: "",
    order: Callable[[dict[str, Any]], Hashable] = lambda config: (),
) -> tuple[Group, ...]:
    """Gather the seeds of every setting, place after place, losses in the order of the paper.

    A place is what losses are compared on, in words; `order` sorts places. A run whose
    configuration does not say what it `needs` to is refused.
    """
    found: dict[tuple[str, str, str | None], dict[str, list[Run]]] = {}
    for run in runs:
        check(run, needs)
        cell = (place(run.config), loss_of(run), run.config.get("shaping"))
        found.setdefault(cell, {}).setdefault(setting(run.config, {"seed"}), []).append(run)
    groups = []
    for (where, _, _), settings in found.items():
        members = sorted(settings.values(), key=lambda own: _numbers(own[0].config))
        for variant, label in enumerate(labels([own[0].config for own in members])):
            ordered = tuple(sorted(members[variant], key=lambda run: run.config["seed"]))
            groups.append(Group(ordered, where, label, variant))
    return tuple(sorted(groups, key=lambda own: (order(own.config), _rank(own), own.variant)))


def setting(config: Mapping[str, Any], free: Collection[str]) -> str:
    """All of a configuration but what is free, as one word."""
    rest = {key: value for key, value in config.items() if key not in free}
    return json.dumps(rest, sort_keys=True, default=str)


def labels(configs: Sequence[dict[str, Any]]) -> list[str]:
    """What tells configurations apart, in words.

    Example:
        >>> labels([{"sharpness": 3.0, "epochs": 5}, {"sharpness": 10.0, "epochs": 5}])
        ['c = 3', 'c = 10']
    """
    keys = [key for key in dict.fromkeys(key for own in configs for key in own) if key != "seed"]
    told = [key for key in keys if any(own.get(key) != configs[0].get(key) for own in configs)]
    if "sharpness" in told:
        told = [key for key in told if key not in _DERIVED]
    words = AXES | _SHORT
    return [
        listing([f"{words.get(key, key)} = {plain(own.get(key))}" for key in told])
        for own in configs
    ]


def by_place(groups: Iterable[Group]) -> dict[str, list[Group]]:
    """What some groups are compared on, in their order, each with the groups there."""
    found: dict[str, list[Group]] = {}
    for own in groups:
        found.setdefault(own.place, []).append(own)
    return found


def loss_of(run: Run) -> str:
    """The key of the loss of a run; studies of methods call it that."""
    return str(run.config.get("loss", run.config.get("method")))


def check(run: Run, needs: Needs) -> None:
    """Refuse a run that does not say what it is a run of."""
    for key, kind in needs.items():
        if not isinstance(run.config.get(key), kind):
            where = f"runs.jsonl, line {run.line}: "
            word = kind.__name__ if isinstance(kind, type) else "number"
            found = repr(run.config.get(key))
            raise StudyError(f"{where}config of run {run.id} needs {key} ({word}), found {found}")


def steps_of(groups: Iterable[Group]) -> str:
    """How many steps of the optimiser the runs took, in words.

    Example:
        >>> steps_of([])
        'an unknown number of steps'
    """
    counts = sorted({run.steps for own in groups for run in own.shown if run.steps})
    if not counts:
        return "an unknown number of steps"
    return f"{counts[0]} to {counts[-1]} steps" if len(counts) > 1 else f"{counts[0]} steps"


def one_seed(groups: Sequence[Group]) -> Iterator[str]:
    """A warning where every setting was run once."""
    done = [own for own in groups if own.finished]
    if done and all(len(own.finished) == 1 for own in done):
        yield "One seed a setting: small differences may be chance."


def gaps(study: Study, groups: Sequence[Group], *, everywhere: bool = False) -> list[str]:
    """What makes the numbers incomplete, a sentence each; empty for a whole study.

    Its configuration may promise blocks, losses, c and seeds. Without promises, `groups` show what
    may be missing of each other; `everywhere` says that every loss belongs in every place.
    """
    if not study.runs:
        return ["No run has been recorded yet."]
    found = [*_count(study), *_promised(study)]
    if everywhere and not groups:
        found.append("There is no run of the main part: no curves, spectra or tables.")
    for status, words in (("partial", "did not finish"), ("diverged", "diverged")):
        names = [run.id for run in study.runs if run.status == status]
        if names:
            shown = [*names[:5], *([f"{len(names) - 5} more"] if len(names) > 5 else [])]
            found.append(f"{len(names)} of {len(study.runs)} runs {words}: {listing(shown)}.")
    return found if _list(study, "losses") else [*found, *_holes(groups, everywhere)]


def _count(study: Study) -> Iterator[str]:
    planned = study.planned
    losses, blocks = _list(study, "losses"), _list(study, "blocks") or [()]
    if losses:
        rates = max(len(_list(study, "learning_rates")) - 1, 0)
        cs, seeds = len(_list(study, "sharpness")), len(_list(study, "seeds"))
        each = cs + rates + seeds * (cs if study.config.get("equal") else 1)
        planned = len(blocks) * len(losses) * each
    if planned is not None and len(study.runs) < planned:
        yield f"{len(study.runs)} of {planned} planned runs have been recorded."


def _promised(study: Study) -> Iterator[str]:
    """Runs that the study is going to have, block by block and loss by loss."""
    for block in _list(study, "blocks") or [()]:
        words = dict(word.split("=", 1) for word in block if "=" in word)
        words = {key: words[key] for key in ("data", "setting") if key in words}
        title = ", ".join((DATA | SETTINGS).get(value) or value for value in words.values())
        lead = f"{title}: " if title else ""
        own = [r for r in study.runs if all(r.config.get(k) == v for k, v in words.items())]
        if not own and _list(study, "losses"):
            yield f"{lead}no run yet."
            continue
        untried, unfinished = [], []
        for loss in _list(study, "losses"):
            mine = [run for run in own if loss_of(run) == loss]
            tried = [r.config.get("sharpness") for r in mine if r.part == "sharpness"]
            done = [r.config.get("seed") for r in mine if r.part == "final"]
            lacking = [plain(c) for c in _list(study, "sharpness") if c not in tried]
            if lacking:
                untried.append(f"{loss_name(loss)} at c = {listing(lacking)}")
            lacking = [str(seed) for seed in _list(study, "seeds") if seed not in done]
            if lacking:
                unfinished.append(f"{loss_name(loss)} (seed {listing(lacking)})")
        if untried:
            yield f"{lead}not yet run: {'; '.join(untried)}."
        if unfinished:
            yield f"{lead}no final run yet of {'; '.join(unfinished)}."


def _holes(groups: Sequence[Group], everywhere: bool) -> Iterator[str]:
    """Cells of the grid of settings, places and seeds that others suggest, but nobody ran."""
    seeds = {run.config["seed"] for own in groups for run in own.runs}
    for name in dict.fromkeys(own.name for own in groups):
        mine = [own for own in groups if own.name == name]
        for place in by_place(groups) if everywhere else ():
            if place not in by_place(mine):
                yield f"{name}, {place}: no run."
        for own in mine:
            lacking = sorted(seeds - {run.config["seed"] for run in own.runs})
            if lacking:
                yield f"{own.full_name}: seed {listing(lacking)} is missing."


def _list(study: Study, key: str) -> list[Any]:
    value = study.config.get(key)
    return value if isinstance(value, list) else []


def _rank(own: Group) -> tuple[object, ...]:
    """The usual ψ (and losses without one) first, then the order of the table of names."""
    return (own.config.get("shaping") not in (None, "linear"), rank(own.loss, LOSSES))


def _numbers(config: dict[str, Any]) -> tuple[float, ...]:
    values = [config.get(key) for key in ("sharpness", "learning_rate")]
    return tuple(float(v) if isinstance(v, int | float) else 0.0 for v in values)
