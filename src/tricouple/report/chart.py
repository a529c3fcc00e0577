"""Charts as data: panels of lines, clouds of points and grids of values, with words for each.

``draw_plotly`` draws them for the page, ``draw_matplotlib`` as PNG; ``page.chart_html`` is the HTML
of a chart.

Example:
    >>> line = Line("residual", x=(1, 2, 4), y=(1e-3, 1e-6, 1e-9))
    >>> panel = Panel("Descent", "The residual falls from 1e-3 to 1e-9.", [line],
    ...               x=Axis("sweeps"), y=Axis("residual", log=True))
    >>> list(Chart("descent", "It converges", "On random costs.", [panel]).styles)
    ['residual']
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tricouple.report.palette import Style, numbered
from tricouple.report.tables import Table

Choice = Mapping[str, str]  # what the reader can choose → the option for which something is shown
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """An axis.

    Attributes:
        title: The quantity.
        log: Whether it is logarithmic.
        ticks: The values that have a tick, where they are few settings; words make it categorical.
        limits: Its ends; None: those of the data.
        floor: Where a logarithmic axis shows zero and what is below.
        whole: Whether only whole numbers make sense; for the horizontal one.
    """

    title: str = ""
    log: bool = False
    ticks: Sequence[Any] = ()
    limits: tuple[float, float] | None = None
    floor: float = 0.0
    whole: bool = False


@dataclass(frozen=True)
class Line:
    """A line, or points without one.

    Attributes:
        name: What the legend calls it; lines of one name share an entry.
        x: Where.
        y: How much; NaN where there is nothing.
        style: Colour, dash and symbol; None: by its place in the panel.
        band: Lower and upper edge of the band around it, if it has one.
        bars: Half the height of the bars at its points, if it has some.
        points: Whether points alone are drawn.
        ring: A place (x, y) to mark by a ring.
        when: The choices of the reader for which it is shown.
    """

    name: str
    x: Sequence[Any] | Array
    y: Sequence[float] | Array
    style: Style | None = None
    band: tuple[Sequence[float] | Array, Sequence[float] | Array] | None = None
    bars: Sequence[float] | Array | None = None
    points: bool = False
    ring: tuple[float, float] | None = None
    when: Choice = field(default_factory=dict)


@dataclass(frozen=True)
class Cloud:
    """Samples in the plane, coloured and shaped by class.

    Attributes:
        at: Where they are, (n, 2), or (frames, n, 2) for a movie.
        labels: Their classes, (n,).
        size: Of a dot.
        spokes: Ends of lines from the centre, (K, 2), one for each class in order.
        steps: The training step of each frame.
        names: What the legend calls the classes 0, 1, …; empty: no legend.
        when: The choices of the reader for which it is shown.
    """

    at: Array
    labels: npt.NDArray[np.int64]
    size: float = 6.0
    spokes: Array | None = None
    steps: Sequence[int] = ()
    names: Sequence[str] = ()
    when: Choice = field(default_factory=dict)


@dataclass(frozen=True)
class Grid:
    """A matrix as colours.

    Attributes:
        values: Shape (rows, columns), NaN where there is nothing.
        limits: The values of the first and the last colour.
        rows: Names of the rows; empty: numbers.
        columns: Names of the columns; empty: numbers.
        colours: "signed" (white is zero), "dark" (dark is much) or "share" (white is none).
        log: Whether colours follow the logarithm.
        texts: What is written into the cells, as (rows, columns) of words; empty: nothing.
        unit: What the values are.
    """

    values: Array
    limits: tuple[float, float]
    rows: Sequence[str] = ()
    columns: Sequence[str] = ()
    colours: str = "dark"
    log: bool = False
    texts: Sequence[Sequence[str]] = ()
    unit: str = ""


@dataclass(frozen=True)
class Panel:
    """One plot.

    Attributes:
        title: Above it.
        alt: Its content in words, for those who do not see it.
        marks: What is drawn.
        x: The horizontal axis.
        y: The vertical axis.
        reach: Of a square plot without axes, for points within ±reach; 0 for a plot with axes.
        circle: Whether a square plot shows the unit circle.
    """

    title: str
    alt: str
    marks: Sequence[Line | Cloud | Grid]
    x: Axis = Axis()
    y: Axis = Axis()
    reach: float = 0.0
    circle: bool = False

    @property
    def lines(self) -> list[tuple[Line, Style]]:
        """Its lines and how they are drawn, names of one kind alike."""
        own = [mark for mark in self.marks if isinstance(mark, Line)]
        places = {name: place for place, name in enumerate(dict.fromkeys(m.name for m in own))}
        return [(line, line.style or numbered(places[line.name])) for line in own]


@dataclass(frozen=True)
class Chart:
    """Panels under one caption.

    Attributes:
        id: Anchor in the page.
        title: What it shows.
        caption: How to read it, plain text.
        panels: The plots; none means that there is nothing to show yet.
        tables: The numbers behind it, folded away below.
    """

    id: str
    title: str
    caption: str
    panels: Sequence[Panel]
    tables: Sequence[Table] = ()

    @property
    def styles(self) -> dict[str, Style]:
        """The legend: names and how they are drawn."""
        return {line.name: look for panel in self.panels for line, look in panel.lines}

    @property
    def steps(self) -> tuple[int, ...]:
        """The training steps of its movies, in order."""
        clouds = [mark for panel in self.panels for mark in panel.marks if isinstance(mark, Cloud)]
        return tuple(sorted({step for cloud in clouds for step in cloud.steps}))

    def chosen(self, choice: Choice) -> Chart:
        """Return what a reader sees who makes this choice; panels without content are left out."""
        panels = [replace(panel, marks=[m for m in panel.marks if _shown(m, choice)])
                  for panel in self.panels]  # fmt: skip
        return replace(self, panels=[panel for panel in panels if panel.marks])


def shown_values(values: Sequence[float] | Array, axis: Axis) -> Array:
    """Return values as an axis shows them: a logarithmic one has no zero.

    Example:
        >>> shown_values([0.0, 10.0], Axis(log=True, floor=0.1)).tolist()
        [0.1, 10.0]
    """
    numbers = np.asarray(values, dtype=np.float64)
    if not axis.log:
        return numbers
    if axis.floor > 0:
        return np.where(np.isnan(numbers), math.nan, np.maximum(numbers, axis.floor))
    return np.where(numbers > 0, numbers, math.nan)


def _shown(mark: Line | Cloud | Grid, choice: Choice) -> bool:
    when = {} if isinstance(mark, Grid) else mark.when
    return all(choice.get(key, value) == value for key, value in when.items())
