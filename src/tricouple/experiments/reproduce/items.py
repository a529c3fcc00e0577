"""What there is to reproduce: an item is what stands under one or more labels of the paper."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from tricouple.conf.compose import configure
from tricouple.conf.schema import Train
from tricouple.experiments.runs.record import DONE, Record, Store, open_store
from tricouple.report.chart import Chart
from tricouple.report.tables import Table

LOSSES = ("infonce", "invaspread", "iot", "pushpull", "neg_mmiot")  # of the paper's image tables


@dataclass(frozen=True)
class Request:
    """How an item is to be run.

    Attributes:
        folder: Of results; every item, or several that share runs, has a folder below.
        scale: ``smoke``, ``cpu`` or ``paper``.
        console: Says what happens.
        workers: Processes, for items that are studies.
        origin: Provenance of the command.
    """

    folder: Path
    scale: str
    console: Console
    workers: int
    origin: Mapping[str, Any]


@dataclass(frozen=True)
class Shown:
    """What an item has to show.

    Attributes:
        verdict: Ours beside the paper's, in sentences; what is missing if nothing is there.
        tables: Ours beside the paper's.
        charts: Pictures.
    """

    verdict: Sequence[str]
    tables: Sequence[Table] = ()
    charts: Sequence[Chart] = ()


NOTHING = Shown(["Nothing has been run yet."])


@dataclass(frozen=True)
class Item(ABC):
    """One item.

    Attributes:
        name: The word for it.
        title: What it is.
        labels: Of the paper.
        needs: Data that have to be there.
        time: How long it takes on two cores, by scale.
    """

    name: str
    title: str
    labels: tuple[str, ...]
    needs: str
    time: Mapping[str, str]

    @abstractmethod
    def run(self, request: Request) -> None:
        """Do what is not done yet."""

    @abstractmethod
    def show(self, folder: Path) -> Shown:
        """Read what is there, and set it beside the paper."""


def fill(request: Request, name: str, wanted: Mapping[str, Callable[[], Record]]) -> None:
    """Do the runs that a folder of results does not have yet.

    Args:
        request: Where, and at what scale: a folder holds runs of one.
        name: Of the folder below.
        wanted: Runs by id; each returns its record.
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
    from tricouple.experiments.runs.run import run_once
    from tricouple.experiments.vision import VISION

    shared = [f"scale={request.scale}", "setting=scl", "backbone=resnet18"]
    quiet = [f"runs={Path('runs') / name}", "evaluation.figures=false", "progress=false"]
    config = configure([*shared, *words, *quiet], Train)
    folder = VISION.folder(config)
    run_once(VISION, config, request.console, request.origin)
    return Store(folder.path).records()[folder.path.name] | {"part": "final"}


def finished(folder: Path) -> list[Record]:
    """The finished runs of a folder of results."""
    return [run for run in Store(folder).records().values() if run["status"] == DONE]
