"""The table of hyper-parameters: PushPull on CIFAR-10, one setting at a time.

With a linear ψ the loss knows τ and ε only through c = 1/(τε): the cells (τ, ε) and (ε, τ) are one
loss, and the same runs with the same seed have to give the same numbers. In the paper they do not.
IOT over ε, which the paper only describes in words, is here as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tricouple_lab.experiments.reproduce.items import (
    NOTHING,
    Item,
    Request,
    Shown,
    fill,
    finished,
    papers,
    trained,
)
from tricouple_lab.experiments.runs.record import Record
from tricouple_lab.names import AXES, MEASURES, loss_name
from tricouple_lab.report.numbers import MeanStd, listing, percent, plain
from tricouple_lab.report.tables import Table

AXIS = {
    "learning_rate": (5e-4, 1e-3, 5e-3, 0.01, 0.03, 0.1),
    "n_iters": (1, 2, 5, 10),
    "temperature": (0.01, 0.1, 1, 10),
    "epsilon": (0.01, 0.1, 0.5, 1, 10),
}
BASE = {"learning_rate": 5e-3, "n_iters": 10, "temperature": 0.1, "epsilon": 0.1}
BUDGET = {
    "smoke": ("data=digits", "data.max_train_size=256", "training.epochs=1",
              "training.batch_size=64", "evaluation.probe_epochs=5"),
    "cpu": ("data=cifar10", "data.max_train_size=2560", "training.epochs=5"),
    "paper": ("data=cifar10",),
}  # fmt: skip
SEEDS = {"smoke": (0,), "cpu": (0, 1, 2), "paper": (0,)}


@dataclass(frozen=True)
class Cell:
    """One cell of the table: a loss, and how it differs from the paper's setting."""

    loss: str
    axis: str
    value: float

    @property
    def id(self) -> str:
        """Of its runs, before their seed."""
        return f"{self.loss}-{self.axis}-{self.value:g}"

    @property
    def settings(self) -> dict[str, float]:
        """All four settings."""
        return {**BASE, self.axis: self.value}

    @property
    def sharpness(self) -> str:
        """The c of its loss, in six digits."""
        tau = self.settings["temperature"] if self.loss == "pushpull" else 1.0
        return f"{1 / (tau * self.settings['epsilon']):.6g}"

    def words(self) -> list[str]:
        """The words of its runs."""
        own = {name: f"{value:g}" for name, value in self.settings.items()}
        scales = {"pushpull": ("epsilon_pos", "epsilon_neg"), "iot": ("epsilon",)}[self.loss]
        return [
            f"loss={self.loss}",
            *([f"loss.temperature={own['temperature']}"] if self.loss == "pushpull" else []),
            *(f"loss.{name}={own['epsilon']}" for name in scales),
            f"loss.sharpness={self.sharpness}",
            f"loss.n_iters={own['n_iters']}",
            f"training.learning_rate={own['learning_rate']}",
        ]


CELLS = (
    *(Cell("pushpull", axis, value) for axis, values in AXIS.items() for value in values),
    *(Cell("iot", "epsilon", value) for value in AXIS["epsilon"]),
)


@dataclass(frozen=True)
class Ablation(Item):
    """All cells, several seeds."""

    def run(self, request: Request) -> None:
        """Train and evaluate what is missing; cells with the same settings share a run folder."""
        wanted: dict[str, Callable[[], Record]] = {
            f"{cell.id}-seed{seed}": partial(_measure, cell, seed, request)
            for seed in SEEDS[request.scale]  # a whole table first, then more of it
            for cell in CELLS
        }
        fill(request, "ablation", wanted)

    def show(self, folder: Path) -> Shown:
        """A table an axis, the paper's numbers beside, and the pairs that have to coincide."""
        runs = finished(folder / "ablation")
        if not runs:
            return NOTHING
        found = {
            (cell, measure): MeanStd.of(
                100 * run["metrics"][f"penultimate/{measure}"]
                for run in runs
                if run["id"].rpartition("-seed")[0] == cell.id
            )
            for cell in CELLS
            for measure in MEASURES
        }
        paper = {(row["axis"], float(row["value"])): row for row in papers("paper_ablation.csv")}
        tables = []
        for loss, axis in dict.fromkeys((cell.loss, cell.axis) for cell in CELLS):
            rows = []
            for cell in CELLS:
                if (cell.loss, cell.axis) == (loss, axis):
                    theirs = paper.get((axis, float(cell.value))) if loss == "pushpull" else None
                    rows.append((
                        plain(cell.value), plain(float(cell.sharpness)),
                        *(text for measure in MEASURES for text in (
                            percent(found[cell, measure]), theirs[measure] if theirs else "–")),
                    ))  # fmt: skip
            head = (AXES[axis], "c", "linear probe", "paper", "k-NN", "paper")
            tables.append(Table(f"{loss_name(loss)}: {AXES[axis]}", head, rows))
        first = runs[0]["config"]
        budget = (
            f"{first['data']}, {first['backbone']}, {first['epochs']} epochs, {runs[0]['steps']} "
            f"steps at batches of {first['batch_size']}; {len(runs)} runs. The paper: CIFAR-10, "
            "ResNet-18, 400 epochs."
        )
        return Shown([*_coincidences(found, paper), budget], tables)


def _measure(cell: Cell, seed: int, request: Request) -> Record:
    words = [*BUDGET[request.scale], *cell.words(), f"seed={seed}"]
    record = trained(request, "ablation", words)
    extra = {"axis": cell.axis, "value": cell.value}
    return record | {"config": record["config"] | extra}


def _coincidences(
    found: dict[tuple[Cell, str], MeanStd], paper: dict[tuple[str, float], dict[str, str]]
) -> Iterator[str]:
    """The pairs (τ, ε) ↔ (ε, τ): one loss here, far apart in the paper."""
    gaps, both = [], ("temperature", "epsilon")
    for value in (0.01, 1, 10):
        pair = [found[Cell("pushpull", axis, value), "linear"] for axis in both]
        theirs = [float(paper[axis, float(value)]["linear"]) for axis in both]
        gaps.append(
            f"c = {1 / (0.1 * value):g}: {percent(pair[0])} and {percent(pair[1])} here, "
            f"{theirs[0]:.2f} and {theirs[1]:.2f} in the paper"
        )
    told = "(τ, ε) and (ε, τ) are one loss with a linear ψ, so their runs have to coincide"
    yield f"{told}: {'; '.join(gaps)}."
    own = {
        axis: [found[Cell("pushpull", axis, value), "linear"].mean for value in values]
        for axis, values in AXIS.items()
    }
    spans = [f"{AXES[axis]} {max(v) - min(v):.1f} points" for axis, v in own.items()]
    yield f"How much the linear probe moves along each axis: {listing(spans)}."


ITEM = Ablation(
    "ablation",
    "Hyper-parameters of PushPull: learning rate, sweeps, τ and ε",
    ("tab:hyperparameter_results",),
    "CIFAR-10 (scale smoke: nothing)",
    {"smoke": "two minutes, on digits", "cpu": "an hour", "paper": "days of a GPU"},
)
