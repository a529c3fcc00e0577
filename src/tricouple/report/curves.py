"""The two charts that every study of losses has: over training, and over the sharpness c."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tricouple.names import AXES, LOSSES, QUANTITIES, loss_name
from tricouple.report.chart import Axis, Choice, Line, Panel
from tricouple.report.groups import Group, at, places_of
from tricouple.report.numbers import MeanStd, number, percent, plain
from tricouple.report.palette import style
from tricouple.report.tables import Table


def during_training(
    groups: Sequence[Group],
    names: Iterable[str],
    *,
    x: str = "step",
    log: Sequence[str] = (),
    when: Callable[[Group], Choice] = lambda own: {},
) -> list[Panel]:
    """Return a panel for each quantity that was recorded; its words are where the lines end.

    Args:
        groups: What to draw.
        names: The quantities.
        x: What to draw them over: "step" or "epoch".
        log: The quantities that have a logarithmic axis.
        when: The choices of the reader for which a group is shown.
    """
    panels = []
    for name in names:
        own = [each for each in groups if each.has(name)]
        if not own:
            continue
        title = QUANTITIES[name]
        ends = "; ".join(f"{each.full_name}: {number(each.curve(name, x).end)}" for each in own)
        panels.append(
            Panel(
                title,
                f"{title} over training, ends at: {ends}.",
                [band_line(each, name, x, when(each)) for each in own],
                x=Axis(f"training {x}", whole=x == "epoch"),
                y=Axis(log=name in log),
            )
        )
    return panels


def band_line(own: Group, name: str, x: str, when: Choice) -> Line:
    """A group over training, with its spread over seeds as a band."""
    curve = own.curve(name, x)
    several = len(own.shown) > 1
    return Line(
        own.short_name,
        curve.x,
        curve.mean,
        own.style,
        low=curve.low if several else None,
        high=curve.high if several else None,
        when=when,
    )


@dataclass(frozen=True)
class OverSharpness:
    """A loss in a place: its groups of seeds by increasing c, one for each c."""

    groups: tuple[Group, ...]

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
        wanted = LOSSES[self.loss].paper_sharpness if self.loss in LOSSES else None
        return next((point for point in self.points(measure) if point[0] == wanted), None)


def over_sharpness(groups: Iterable[Group], measure: str) -> tuple[OverSharpness, ...]:
    """Every loss that ran at two values of c or more, place after place.

    A study has runs for this, all else equal. In a folder of runs other settings may have been
    varied as well: then each c is shown at the best of them by `measure`.
    """
    done = [own for own in groups if own.finished and own.sharpness > 0]
    found = []
    for place in places_of(done):
        for loss in dict.fromkeys(own.loss for own in at(done, place)):
            mine = [own for own in at(done, place) if own.loss == loss]
            ordered = sorted(mine, key=lambda own: (own.sharpness, own.metric(measure).mean))
            best = tuple({own.sharpness: own for own in ordered}.values())
            if len(best) > 1:
                found.append(OverSharpness(best))
    return tuple(found)


def sharpness_panels(
    lines: Sequence[OverSharpness], measures: Mapping[str, str], *, ring: bool
) -> list[Panel]:
    """Return a panel for each place: a share over c.

    Args:
        lines: What to draw.
        measures: What the reader can choose to see: key of the metrics → words.
        ring: Whether a ring marks the paper's c.
    """
    first = next(iter(measures))
    title = AXES["sharpness"] + ("; ring: the paper's" if ring else "")
    panels = []
    for place in dict.fromkeys(line.place for line in lines):
        own = [line for line in lines if line.place == place]
        ticks = sorted({c for line in own for key in measures for c, _ in line.points(key)})
        words = "; ".join(_words(line, first, ring) for line in own)
        where = f" on {place}" if place else ""
        drawn = [_drawn(line, key, ring) for line in own for key in measures if line.points(key)]
        if len(measures) == 1:  # nothing to choose
            drawn = [replace(line, when={}) for line in drawn]
        panels.append(
            Panel(
                place or measures[first],
                f"{measures[first]}, % over c{where}. {words}.",
                drawn,
                x=Axis(title, log=True, ticks=ticks),
                y=Axis("%" if not place else "accuracy, %"),
            )
        )
    return panels


def sharpness_table(lines: Sequence[OverSharpness], key: str, words: str, *, ring: bool) -> Table:
    """Return the same as numbers, a column for each c."""
    values = sorted({c for line in lines for c, _ in line.points(key)})
    rows, bold = [], set()
    for row, line in enumerate(lines):
        points = {c: percent(value) for c, value in line.points(key)}
        means = {c: round(value.mean, 2) for c, value in line.points(key)}
        best = max(means.values(), default=math.nan)
        bold |= {(row, column) for column, c in enumerate(values, 2) if means.get(c) == best}
        marked = line.at_papers(key) if ring else None
        if marked:
            points[marked[0]] += " ◯"
        rows.append((loss_name(line.loss), line.place, *(points.get(c, "–") for c in values)))
    head = ("loss", "compared on", *(f"c = {plain(c)}" for c in values))
    paper = ", the paper's c marked by ◯" if ring else ""
    caption = f"{words}, %; the best c of each row in bold{paper}"
    return Table(caption, head, rows, words=2, bold=bold)


def _drawn(line: OverSharpness, key: str, ring: bool) -> Line:
    x, values = zip(*line.points(key), strict=True)
    marked = line.at_papers(key) if ring else None
    several = any(value.count > 1 for value in values)
    return Line(
        loss_name(line.loss),
        x,
        [value.mean for value in values],
        style(line.loss),
        bars=[value.spread for value in values] if several else None,
        ring=(marked[0], marked[1].mean) if marked else None,
        when={"measure": key},
    )


def _words(line: OverSharpness, key: str, ring: bool) -> str:
    values = ", ".join(f"{percent(value)} at c = {plain(c)}" for c, value in line.points(key))
    marked = line.at_papers(key) if ring else None
    where = f" (the paper's c = {plain(marked[0])})" if marked else ""
    return f"{loss_name(line.loss)}: {values}{where}"
