"""The two charts that every study of losses has: over training, and over the sharpness c."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tricouple.names import AXES, LOSSES, QUANTITIES, loss_name
from tricouple.report.chart import Axis, Chart, Choice, Line, Panel, style
from tricouple.report.groups import Curve, Group
from tricouple.report.numbers import MeanStd, number, percent, plain
from tricouple.report.tables import Table


def during_training(
    groups: Sequence[Group],
    names: Iterable[str],
    *,
    x: str = "step",
    log: Sequence[str] = (),
    when: Callable[[Group], Choice] = lambda own: {},
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
                y=Axis(log=name in log),
            )
        )
    return panels


def band_line(own: Group, curve: Curve, when: Choice) -> Line:
    """A curve of a group, with its spread over seeds as a band."""
    band = (curve.low, curve.high) if len(own.shown) > 1 else None
    return Line(own.short_name, curve.x, curve.mean, own.style, band, when=when)


@dataclass(frozen=True)
class OverSharpness:
    """A loss in a place: its groups of seeds by increasing c, one for each c; the c to mark."""

    groups: tuple[Group, ...]
    papers: float | None

    @property
    def loss(self) -> str:
        """The key of the loss."""
        return self.groups[0].loss

    @property
    def place(self) -> str:
        """What it was compared on."""
        return self.groups[0].place

    def points(self, measure: str) -> list[tuple[float, MeanStd]]:
        """Sharpness and share in per cent, where it was measured."""
        found = [(own.sharpness, own.percent(measure)) for own in self.groups]
        return [(c, value) for c, value in found if math.isfinite(value.mean)]

    def at_papers(self, measure: str) -> tuple[float, MeanStd] | None:
        """The point at the paper's c, None where there is none."""
        return next((point for point in self.points(measure) if point[0] == self.papers), None)


def over_sharpness(
    groups: Iterable[Group], measure: str, *, ring: bool
) -> tuple[OverSharpness, ...]:
    """Every loss that ran at two values of c or more, place after place; a ring marks the paper's.

    A study has runs for this, all else equal. In a folder of runs other settings may have been
    varied as well: then each c is shown at the best of them by `measure`.
    """
    found: dict[tuple[str, str], list[Group]] = {}
    for own in groups:
        if own.finished and own.sharpness > 0:
            found.setdefault((own.place, own.loss), []).append(own)
    lines = []
    for (_, loss), mine in found.items():
        ordered = sorted(mine, key=lambda own: (own.sharpness, own.metric(measure).mean))
        best = tuple({own.sharpness: own for own in ordered}.values())
        papers = LOSSES[loss].paper_sharpness if ring and loss in LOSSES else None
        lines.append(OverSharpness(best, papers))
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
    panels = []
    for place in dict.fromkeys(line.place for line in lines):
        own = [line for line in lines if line.place == place]
        ticks = sorted({c for line in own for key in measures for c, _ in line.points(key)})
        words = "; ".join(_words(line, first) for line in own)
        panels.append(
            Panel(
                place or measures[first],
                f"{measures[first]}, % over c{f' on {place}' if place else ''}. {words}.",
                [
                    _drawn(line, key, {"measure": key} if len(measures) > 1 else {})
                    for line in own
                    for key in measures
                    if line.points(key)
                ],
                x=Axis(
                    AXES["sharpness"] + ("; ring: the paper's" if ring else ""),
                    log=True,
                    ticks=ticks,
                ),
                y=Axis("%" if not place else "accuracy, %"),
            )
        )
    tables = [_sharpness_table(lines, key, words, ring) for key, words in measures.items()]
    return Chart("sharpness", title, caption, panels, tables if panels else [])


def _sharpness_table(lines: Sequence[OverSharpness], key: str, words: str, ring: bool) -> Table:
    """A row for each loss, a column for each c."""
    values = sorted({c for line in lines for c, _ in line.points(key)})
    rows, bold = [], set()
    for row, line in enumerate(lines):
        points = {c: percent(value) for c, value in line.points(key)}
        means = {c: round(value.mean, 2) for c, value in line.points(key)}
        best = max(means.values(), default=math.nan)
        bold |= {(row, column) for column, c in enumerate(values, 2) if means.get(c) == best}
        if marked := line.at_papers(key):
            points[marked[0]] += " ◯"
        rows.append((loss_name(line.loss), line.place, *(points.get(c, "–") for c in values)))
    head = ("loss", "compared on", *(f"c = {plain(c)}" for c in values))
    paper = ", the paper's c marked by ◯" if ring else ""
    caption = f"{words}, %; the best c of each row in bold{paper}"
    return Table(caption, head, rows, words=2, bold=bold)


def _drawn(line: OverSharpness, key: str, when: Choice) -> Line:
    x, values = zip(*line.points(key), strict=True)
    marked = line.at_papers(key)
    several = any(value.count > 1 for value in values)
    return Line(
        loss_name(line.loss),
        x,
        [value.mean for value in values],
        style(line.loss),
        bars=[value.spread for value in values] if several else None,
        ring=(marked[0], marked[1].mean) if marked else None,
        when=when,
    )


def _words(line: OverSharpness, key: str) -> str:
    values = ", ".join(f"{percent(value)} at c = {plain(c)}" for c, value in line.points(key))
    marked = line.at_papers(key)
    where = f" (the paper's c = {plain(marked[0])})" if marked else ""
    return f"{loss_name(line.loss)}: {values}{where}"
