"""The two charts that every study of losses has: over training, and over the sharpness c."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tricouple_lab.names import AXES, LOSSES, QUANTITIES, loss_name
from tricouple_lab.report.chart import Axis, Chart, Choice, Line, Panel, style
from tricouple_lab.report.groups import Curve, Group, steps_of
from tricouple_lab.report.numbers import MeanStd, number, percent, plain
from tricouple_lab.report.tables import Table

# Quantities as heads of columns.
SHORT = {"nc1": "NC1", "nc2_std": "NC2 std", "nc2_deviation": "NC2 deviation", "alpha": "α",
         "beta": "β", "directions": "directions", "knn": "k-NN",
         "effective_rank": "effective rank"}  # fmt: skip
HELD_OUT = (
    "Over the epochs, means over seeds, band ± one standard deviation; all but the loss on "
    "held-out {}. Losses are on scales of their own: compare shapes, not heights."
)


def during_training(
    groups: Sequence[Group],
    names: Iterable[str],
    when: Callable[[Group], Choice] = lambda own: {},
    *,
    x: str = "epoch",
) -> list[Panel]:
    """Return a panel for each quantity that was recorded; its words are where the lines end."""
    panels = []
    for name in names:
        curves = [(own, own.curve(name, x)) for own in groups if own.has(name)]
        if not curves:
            continue
        title = QUANTITIES[name]
        ends = "; ".join(f"{own.full_name}: {number(curve.end)}" for own, curve in curves)
        panels.append(
            Panel(
                title,
                f"{title} over training, ends at: {ends}.",
                [band_line(own, curve, when(own)) for own, curve in curves],
                x=Axis(f"training {x}", whole=x == "epoch"),
                y=Axis(log=name.startswith("nc")),
            )
        )
    return panels


def last_table(groups: Sequence[Group], names: Sequence[str]) -> Table:
    """Return where quantities over the epochs end."""
    rows = [
        (own.name, own.place, own.c, *(number(own.curve(name, "epoch").end) for name in names))
        for own in groups
    ]
    head = ("loss", "compared on", "c", *(QUANTITIES[name] for name in names))
    caption = f"Last recorded values after {steps_of(groups)}, mean over seeds"
    return Table(caption, head, rows, words=2)


def band_line(own: Group, curve: Curve, when: Choice) -> Line:
    """A curve of a group, with its spread over seeds as a band."""
    band = (curve.low, curve.high) if len(own.shown) > 1 else None
    return Line(own.short_name, curve.x, curve.mean, own.style, band, when=when)


@dataclass(frozen=True)
class OverSharpness:
    """A loss in a place: its groups of seeds by increasing c, one for each c; the c to mark."""

    loss: str
    place: str
    groups: tuple[Group, ...]
    papers: float | None

    def points(self, measure: str) -> dict[float, MeanStd]:
        """The share in per cent at each c where it was measured."""
        found = {own.sharpness: own.percent(measure) for own in self.groups}
        return {c: value for c, value in found.items() if math.isfinite(value.mean)}


def over_sharpness(
    groups: Iterable[Group], measure: str, *, ring: bool = False
) -> tuple[OverSharpness, ...]:
    """Every loss that ran at two values of c or more, place after place; a ring marks the paper's.

    A study has runs for this, all else equal. In a folder of runs other settings may have been
    varied as well: then each c is shown at the best of them by `measure`.
    """
    found: dict[tuple[str, str], list[Group]] = {}
    for own in groups:
        if own.finished and own.sharpness > 0:
            found.setdefault((own.loss, own.place), []).append(own)
    lines = []
    for (loss, place), mine in found.items():
        ordered = sorted(mine, key=lambda own: (own.sharpness, own.metric(measure).mean))
        best = tuple({own.sharpness: own for own in ordered}.values())
        papers = LOSSES[loss].paper_sharpness if ring and loss in LOSSES else None
        lines.append(OverSharpness(loss, place, best, papers))
    return tuple(line for line in lines if len(line.groups) > 1)


def sharpness_chart(
    lines: Sequence[OverSharpness], measures: Mapping[str, str], title: str, caption: str
) -> Chart:
    """Return a share over c, a panel for each place, and the same as numbers.

    Which share is the reader's choice where there are several `measures` (key → words); the words
    of a panel are about the first.
    """
    first = next(iter(measures))
    ring = any(line.papers for line in lines)
    axis = AXES["sharpness"] + ("; ring: the paper's" if ring else "")
    panels = []
    for place in dict.fromkeys(line.place for line in lines):
        own = [line for line in lines if line.place == place]
        ticks = sorted({c for line in own for key in measures for c in line.points(key)})
        words = "; ".join(_words(line, first) for line in own)
        drawn = [
            _drawn(line, key, {"measure": key} if len(measures) > 1 else {})
            for line in own
            for key in measures
            if line.points(key)
        ]
        panels.append(
            Panel(
                place or measures[first],
                f"{measures[first]}, % over c{f' on {place}' if place else ''}. {words}.",
                drawn,
                x=Axis(axis, log=True, ticks=ticks),
                y=Axis("accuracy, %" if place else "%"),
            )
        )
    tables = [_sharpness_table(lines, key, words, ring) for key, words in measures.items()]
    return Chart("sharpness", title, caption, panels, tables)


def _sharpness_table(lines: Sequence[OverSharpness], key: str, words: str, ring: bool) -> Table:
    """A row for each loss, a column for each c."""
    values = sorted({c for line in lines for c in line.points(key)})
    rows, bold = [], set()
    for row, line in enumerate(lines):
        points = line.points(key)
        means = {c: round(value.mean, 2) for c, value in points.items()}
        best = max(means.values(), default=math.nan)
        bold |= {(row, column) for column, c in enumerate(values, 2) if means.get(c) == best}
        cells = {c: percent(value) + " ◯" * (c == line.papers) for c, value in points.items()}
        rows.append((loss_name(line.loss), line.place, *(cells.get(c, "–") for c in values)))
    head = ("loss", "compared on", *(f"c = {plain(c)}" for c in values))
    paper = ", the paper's c marked by ◯" if ring else ""
    caption = f"{words}, %; the best c of each row in bold{paper}"
    return Table(caption, head, rows, words=2, bold=bold)


def _drawn(line: OverSharpness, key: str, when: Choice) -> Line:
    points = line.points(key)
    several = any(value.count > 1 for value in points.values())
    return Line(
        loss_name(line.loss),
        list(points),
        [value.mean for value in points.values()],
        style(line.loss),
        bars=[value.spread for value in points.values()] if several else None,
        ring=(line.papers, points[line.papers].mean) if line.papers in points else None,
        when=when,
    )


def _words(line: OverSharpness, key: str) -> str:
    points = line.points(key)
    values = ", ".join(f"{percent(value)} at c = {plain(c)}" for c, value in points.items())
    where = f" (the paper's c = {plain(line.papers)})" if line.papers in points else ""
    return f"{loss_name(line.loss)}: {values}{where}"
