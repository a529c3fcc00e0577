"""A study: a hypothesis written down first, runs that decide, a verdict that a program prints.

A plan names conditions (such as a data set with so much noise), methods, and sharpnesses c. Within
a condition every method has the same steps, seeds and grid. If c is to be chosen, that is done for
each method by itself, on validation data and other seeds than those reported; a grid whose best c
is at its edge is extended. What was chosen is then measured on test data, on ten paired seeds.

Every finished run is a line of ``runs.jsonl``; a study that is started again goes on with what is
missing. ``study.json`` holds the plan. A plan that was changed under its results is refused.
"""

from __future__ import annotations

import json
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, ClassVar

import torch

from tricouple_lab.experiments.runs.record import (
    DIVERGED,
    DONE,
    Record,
    Store,
    make_record,
    open_store,
)
from tricouple_lab.experiments.studies.methods import Budget
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import line_provenance
from tricouple_lab.report.chart import Chart
from tricouple_lab.report.tables import Table

KIND = "study"
CHOOSE, FINAL = "choose", "final"
STEP = 10**0.5  # from one c to the next when a grid is extended

Condition = Mapping[str, Any]
Chosen = Mapping[tuple[str, str], tuple[float, Mapping[int, float]]]  # see Results.chosen


@dataclass(frozen=True)
class Plan:
    """What will be run, fixed before."""

    hypothesis: str  # what is expected, and why
    refuted: str  # what would refute it
    conditions: tuple[Condition, ...]  # what the methods are compared on, flat settings
    methods: tuple[str, ...]  # words of ``methods.METHODS``
    sharpness: tuple[float, ...]  # the grid of c
    # The measure by which each method's c is chosen on validation data; empty to run every c.
    chosen_by: str = ""
    choosing_seeds: tuple[int, ...] = (100, 101, 102)  # for choosing c
    seeds: tuple[int, ...] = tuple(range(10))  # for what is reported
    limits: tuple[float, float] = (0.3, 1000.0)  # how far the grid may be extended
    budget: Budget = field(default_factory=Budget)  # of every run
    changed: str = ""  # why this plan replaced one that had begun; empty for a first plan


def first_look(plan: Plan) -> Plan:
    """The same in seconds: one c, two seeds, a few steps."""
    return replace(
        plan,
        sharpness=(10.0,),
        choosing_seeds=(100,),
        seeds=(0, 1),
        limits=(10.0, 10.0),
        budget=Budget(steps=8, batch_size=64),
    )


@dataclass(frozen=True)
class Trial:
    """One run."""

    condition: Condition
    method: str
    sharpness: float
    seed: int  # of data order and initial weights
    part: str  # ``choose`` (on validation data) or ``final`` (on test data)

    @property
    def id(self) -> str:
        """What tells the runs of a study apart."""
        where = "-".join(map(str, self.condition.values()))
        return f"{where}-{self.method}-c{self.sharpness:g}-seed{self.seed}-{self.part}"


@dataclass(frozen=True)
class Verdict:
    """What a study found."""

    word: str  # ``supported``, ``refuted`` or ``open`` (runs are missing, or it cannot be told)
    sentences: Sequence[str]  # what was measured
    tables: Sequence[Table]
    charts: Sequence[Chart] = ()


class Study(ABC):
    """A question, its plan at each scale, a run of it, and its verdict."""

    name: ClassVar[str]
    title: ClassVar[str]
    hours: ClassVar[str]  # of one core, in words

    @abstractmethod
    def plan(self, scale: str) -> Plan:
        """The plan at scale ``cpu``, or ``smoke`` for a first look at what it does."""

    @abstractmethod
    def measure(self, trial: Trial, budget: Budget) -> dict[str, float]:
        """Do a run and return its measures."""

    @abstractmethod
    def judge(self, plan: Plan, results: Results) -> Verdict:
        """Hold the hypothesis against the runs."""


@dataclass(frozen=True)
class Results:
    """The runs of a study, as its verdict reads them."""

    records: Sequence[Record]  # the finished lines of ``runs.jsonl``

    def final(self, measure: str) -> dict[tuple[str, str, float], dict[int, float]]:
        """A measure by condition (as text), method and c, seed by seed; 0 where it diverged."""
        found: dict[tuple[str, str, float], dict[int, float]] = defaultdict(dict)
        for record in self.records:
            if record["part"] == FINAL:
                config = record["config"]
                key = config["condition"], config["method"], float(config["sharpness"])
                found[key][config["seed"]] = float(record["metrics"].get(measure) or 0.0)
        return dict(found)

    def chosen(self, measure: str) -> Chosen:
        """The same for each method's own c: c, and the measure seed by seed."""
        return {(where, how): (c, own) for (where, how, c), own in self.final(measure).items()}


def describe(condition: Condition) -> str:
    """A condition as tables and ``config`` write it.

    Example:
        >>> describe({"data": "banking77", "noise": 0.2})
        'data banking77, noise 0.2'
    """
    return ", ".join(f"{name} {value}" for name, value in condition.items())


@dataclass(frozen=True)
class Conduct:
    """Does a study: everything that is missing, method by method."""

    study: Study
    plan: Plan  # at the scale that was asked for
    store: Store  # of its results
    origin: Mapping[str, Any]  # provenance of the command
    known: dict[str, Record] = field(default_factory=dict)  # runs that are done

    def go(self, condition: Condition, method: str) -> Iterator[Record]:
        """Yield the runs of a method in a condition that were not there."""
        self.known.update(self.store.records())
        grid = sorted(self.plan.sharpness)
        if self.plan.chosen_by:
            scores: dict[float, float] = {}
            while True:
                for c in grid:
                    if c not in scores:
                        seeds = self.plan.choosing_seeds
                        trials = [Trial(condition, method, c, seed, CHOOSE) for seed in seeds]
                        yield from self.missing(trials)
                        scores[c] = fmean(self.score(trial) for trial in trials)
                best = max(grid, key=lambda c: scores[c])
                low, high = self.plan.limits
                if best == grid[0] and best / STEP >= low:
                    grid = [float(f"{best / STEP:.3g}"), *grid]
                elif best == grid[-1] and best * STEP <= high:
                    grid = [*grid, float(f"{best * STEP:.3g}")]
                else:
                    break
            grid = [best]
        yield from self.missing(
            [Trial(condition, method, c, seed, FINAL) for c in grid for seed in self.plan.seeds]
        )

    def finish(self, condition: Condition, method: str) -> int:
        """Do what is missing of a method in a condition, and count it."""
        return sum(1 for _ in self.go(condition, method))

    def score(self, trial: Trial) -> float:
        """The measure that c is chosen by; 0 for a run that diverged."""
        return float(self.known[trial.id]["metrics"].get(self.plan.chosen_by) or 0.0)

    def missing(self, trials: Sequence[Trial]) -> Iterator[Record]:
        """Do the trials that have no record, and yield them."""
        for trial in trials:
            if trial.id not in self.known:
                record = self.known[trial.id] = self.run(trial)
                self.store.append(record)
                yield record

    def run(self, trial: Trial) -> Record:
        """Do one trial."""
        torch.manual_seed(trial.seed)
        start = time.perf_counter()
        status, metrics = DONE, {}
        try:
            metrics = self.study.measure(trial, self.plan.budget)
        except FloatingPointError:
            status = DIVERGED
        return make_record(
            trial.id,
            part=trial.part,
            status=status,
            config={
                **trial.condition,
                "condition": describe(trial.condition),
                "method": trial.method,
                "sharpness": trial.sharpness,
                "seed": trial.seed,
                **asdict(self.plan.budget),
            },
            seconds=time.perf_counter() - start,
            steps=self.plan.budget.steps,
            provenance=line_provenance(self.origin),
            metrics=metrics,
        )


def open_study(out: Path, study: Study, plan: Plan, scale: str, origin: Mapping[str, Any]) -> Store:
    """The folder of a study; one whose plan is another is refused.

    Raises:
        CommandError: If the folder holds another study, or this one with another plan.
    """
    config = json.loads(json.dumps({"scale": scale, **asdict(plan)}))
    if not plan.changed:
        del config["changed"]
    try:
        return open_store(out, KIND, study.name, config, origin, extend=False)
    except CommandError as error:
        raise CommandError(
            f"{error}; a plan is not changed under its results: a new plan is a new study"
        ) from error
