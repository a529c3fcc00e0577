"""What there is to reproduce: an item is what stands under one or more labels of the paper."""

from __future__ import annotations

import csv
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tricouple_lab.conf.compose import configure
from tricouple_lab.conf.schema import Train
from tricouple_lab.experiments.runs.record import DONE, Record, Store, make_record, open_store
from tricouple_lab.provenance import line_provenance
from tricouple_lab.report.chart import Chart
from tricouple_lab.report.page import asset
from tricouple_lab.report.tables import Table

LOSSES = ("infonce", "invaspread", "iot", "pushpull", "neg_mmiot")  # of the paper's image tables


@dataclass(frozen=True)
class Request:
    """How an item is to be run."""

    folder: Path  # of results; every item, or several that share runs, has a folder below
    scale: str  # ``smoke``, ``cpu`` or ``paper``
    console: Console  # says what happens
    workers: int  # processes, for items that are studies
    origin: Mapping[str, Any]  # provenance of the command


@dataclass(frozen=True)
class Shown:
    """What an item has to show: ours beside the paper's."""

    verdict: Sequence[str]  # in sentences; what is missing if nothing is there
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


NOTHING = Shown(["Nothing has been run yet."])


@dataclass(frozen=True)
class Item(ABC):
    """One item."""

    name: str  # the word for it
    title: str  # what it is
    labels: tuple[str, ...]  # of the paper
    needs: str  # data that have to be there
    time: Mapping[str, str]  # how long it takes on two cores, by scale

    @abstractmethod
    def run(self, request: Request) -> None:
        """Do what is not done yet."""

    @abstractmethod
    def show(self, folder: Path) -> Shown:
        """Read what is there, and set it beside the paper."""


def fill(request: Request, name: str, wanted: Mapping[str, Callable[[], Record]]) -> None:
    """Do the runs, each a call that returns its record, that a folder does not have yet by id.

    A folder holds runs of one scale.
    """
    config = {"scale": request.scale}
    store = open_store(request.folder / name, name, name, config, request.origin, extend=False)
    known = store.records()
    for number, (key, run) in enumerate(wanted.items(), 1):
        if key not in known:
            store.append(run() | {"id": key})
            request.console.print(f"{name}: {number} of {len(wanted)}: {key}", markup=False)


def trained(request: Request, name: str, words: Sequence[str]) -> Record:
    """The record of a ResNet-18 trained with labels, as some words say, and evaluated."""
    from tricouple_lab.experiments.runs.run import run_once
    from tricouple_lab.experiments.vision import VISION

    shared = [f"scale={request.scale}", "setting=scl", "backbone=resnet18"]
    quiet = [f"runs={Path('runs') / name}", "evaluation.figures=false", "progress=false"]
    config = configure([*shared, *words, *quiet], Train)
    folder = VISION.folder(config)
    run_once(VISION, config, request.console, request.origin)
    return Store(folder.path).records()[folder.path.name] | {"part": "final"}


def measured(
    request: Request, start: float, config: Mapping[str, object], steps: int, **metrics: float
) -> Record:
    """The record of something that was measured from ``start`` on, without an id."""
    return make_record(
        "",
        part="final",
        status=DONE,
        config=config,
        seconds=time.perf_counter() - start,
        steps=steps,
        provenance=line_provenance(request.origin),
        metrics=metrics,
    )


def papers(name: str) -> list[dict[str, str]]:
    """The rows of a table of the paper."""
    return list(csv.DictReader(asset(name).splitlines()))


def finished(folder: Path) -> list[Record]:
    """The finished runs of a folder of results."""
    return [run for run in Store(folder).records().values() if run["status"] == DONE]
