"""The paper's tables: a row for each loss, columns for data sets and backbones, the best marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from tricouple.report.statistics import MeanStd
from tricouple.report.vision import paper
from tricouple.report.vision.groups import Block, Group, blocks_of, losses_of
from tricouple.report.vision.names import MEASURES


@dataclass(frozen=True)
class Cell:
    """An accuracy in per cent beside the paper's.

    Attributes:
        ours: Over the finished seeds.
        paper: Of the same data set, setting, backbone and loss, at the paper's budget.
        best: Whether no other loss of its column has a higher mean.
    """

    ours: MeanStd
    paper: MeanStd | None
    best: bool


@dataclass(frozen=True)
class Results:
    """One of the paper's tables.

    Attributes:
        setting: Of all its numbers.
        features: Which were measured: penultimate or embedding.
        columns: A block and a measure each.
        names: Of the rows.
        cells: By row and column; None where nothing was run.
    """

    setting: str
    features: str
    columns: tuple[tuple[Block, str], ...]
    names: tuple[str, ...]
    cells: tuple[tuple[Cell | None, ...], ...]


def results(groups: Sequence[Group], features: str = "penultimate") -> list[Results]:
    """The tables of all settings; only what has finished is in them."""
    done = [own for own in groups if own.finished]
    settings = dict.fromkeys(block.setting for block in blocks_of(done))
    return [_results([g for g in done if g.block.setting == s], s, features) for s in settings]


def percent(value: MeanStd) -> str:
    """Write an accuracy as the paper does.

    Example:
        >>> percent(MeanStd(99.2134, 0.094, 3)), percent(MeanStd(97.5, float("nan"), 1))
        ('99.21 ± 0.09', '97.50')
    """
    if not math.isfinite(value.mean):
        return "–"
    return f"{value.mean:.2f}" + (f" ± {value.std:.2f}" if math.isfinite(value.std) else "")


def _results(groups: list[Group], setting: str, features: str) -> Results:
    columns = tuple((block, measure) for block in blocks_of(groups) for measure in MEASURES)
    rows = {name: [g for g in groups if g.name == name] for name in _names(groups)}
    by_column = [_column(list(rows.values()), *column, features) for column in columns]
    cells = tuple(tuple(column[row] for column in by_column) for row in range(len(rows)))
    return Results(setting, features, columns, tuple(rows), cells)


def _names(groups: list[Group]) -> list[str]:
    """The rows: losses in the order of the paper, each with its variants."""
    named = {loss: [own.name for own in groups if own.loss == loss] for loss in losses_of(groups)}
    return [name for names in named.values() for name in dict.fromkeys(names)]


def _column(
    rows: list[list[Group]], block: Block, measure: str, features: str
) -> list[Cell | None]:
    own = [next((g for g in row if g.block == block), None) for row in rows]
    ours = [None if g is None else g.percent(f"{features}/{measure}") for g in own]
    # Digits that are not shown do not decide, and one loss alone is not the best of anything.
    shown = [round(value.mean, 2) for value in ours if value and math.isfinite(value.mean)]
    top = max(shown) if len(shown) > 1 else math.inf
    return [
        None
        if g is None or value is None
        else Cell(value, paper.accuracy(block, g.loss, measure), round(value.mean, 2) == top)
        for g, value in zip(own, ours, strict=True)
    ]
