"""What losses reach over the sharpness c, drawn with matplotlib, for any kind of study."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter

from tricouple.report.ink import ink
from tricouple.report.statistics import MeanStd
from tricouple.report.words import axis_value


@dataclass(frozen=True)
class Series:
    """A loss over c.

    Attributes:
        name: What to call it.
        method: Whose colours it has.
        points: Sharpness and value, by increasing sharpness.
        ringed: The point to ring; None for no ring.
    """

    name: str
    method: str
    points: Sequence[tuple[float, MeanStd]]
    ringed: tuple[float, MeanStd] | None = None


def draw(axis: Axes, series: Sequence[Series]) -> None:
    """Draw losses over a logarithmic axis with a tick at every c that was tried."""
    for own in series:
        look = ink(own.method)
        x, y = zip(*own.points, strict=True)
        spread = [value.spread for value in y]
        means = [value.mean for value in y]
        axis.errorbar(x, means, yerr=spread, capsize=2, label=own.name, **look)
        if own.ringed:
            where = ([own.ringed[0]], [own.ringed[1].mean])
            axis.plot(*where, "o", markersize=12, markerfacecolor="none", color=look["color"])
    ticks = sorted({c for own in series for c, _ in own.points})
    axis.set_xscale("log")
    axis.set_xticks(ticks, list(map(axis_value, ticks)))
    axis.xaxis.set_minor_formatter(NullFormatter())
