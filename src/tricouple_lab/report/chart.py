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

from tricouple_lab.report.tables import Table

# name: (on a light page, on a dark page)
HUES = {
    "blue": ("#0072b2", "#56b4e9"),
    "vermillion": ("#c44601", "#ff8243"),
    "green": ("#007a58", "#2fd0a2"),
    "purple": ("#a3458b", "#e6a3cb"),
    "orange": ("#a86c00", "#f0b232"),
    "grey": ("#57606a", "#aab4be"),
    "black": ("#1b1f24", "#e6edf3"),
}
SURFACES = {"ink": ("#1b1f24", "#e6edf3"), "paper": ("#ffffff", "#0d1117"),
            "faint": ("#d8dee4", "#30363d"), "quiet": ("#57606a", "#9da7b3")}  # fmt: skip


# name: pixels on, off, on, off … of a line; matplotlib and CSS read the same numbers.
DASHES: dict[str, tuple[int, ...]] = {
    "solid": (),
    "dash": (6, 4),
    "dashdot": (6, 3, 2, 3),
    "dot": (2, 3),
    "longdash": (9, 4),
    "longdashdot": (9, 3, 2, 3),
}
# name (plotly's): the same in matplotlib and as a letter.
SYMBOLS = {
    "circle": ("o", "●"),
    "square": ("s", "■"),
    "diamond": ("D", "◆"),
    "triangle-up": ("^", "▲"),
    "x": ("X", "✖"),
    "cross": ("P", "✚"),
    "star": ("*", "★"),
}


@dataclass(frozen=True)
class Style:
    """How a line is drawn: a hue, a dash and a symbol of this table."""

    hue: str
    dash: str
    symbol: str

    @property
    def colour(self) -> str:
        """The colour as a CSS variable, which the page resolves for its theme."""
        return f"var(--{self.hue})"

    @classmethod
    def of_class(cls, label: int) -> Style:
        """How samples of a class are marked: 49 pairs of hue and symbol before one returns."""
        symbol = list(SYMBOLS)[label // len(HUES) % len(SYMBOLS)]
        return cls(list(HUES)[label % len(HUES)], "solid", symbol)


STYLES = {
    "neg_mmiot": Style("blue", "solid", "circle"),
    "pushpull": Style("vermillion", "dash", "square"),
    "iot": Style("green", "dashdot", "diamond"),
    "infonce": Style("purple", "dot", "triangle-up"),
    "byol": Style("orange", "longdash", "x"),
    "vicreg": Style("grey", "longdashdot", "cross"),
    "invaspread": Style("black", "longdash", "star"),
    "iot_uniformity": Style("green", "dot", "cross"),
    "dbot": Style("orange", "dot", "square"),
    "fused_gromov": Style("grey", "dashdot", "diamond"),
    "dbot_published": Style("orange", "longdashdot", "x"),
    "fused_gromov_published": Style("grey", "dash", "triangle-up"),
}


def style(method: str, variant: int = 0) -> Style:
    """Return how a method is drawn; its second setting in one picture has another dash and symbol.

    Example:
        >>> style("infonce"), style("infonce", 1).symbol
        (Style(hue='purple', dash='dot', symbol='triangle-up'), 'x')
    """
    known = STYLES.get(method, Style("black", "solid", "star"))
    dash, symbol = (
        list(table)[(list(table).index(name) + variant) % len(table)]
        for table, name in ((DASHES, known.dash), (SYMBOLS, known.symbol))
    )
    return Style(known.hue, dash, symbol)


def numbered(position: int) -> Style:
    """Return the style of a line that is known by its place alone: all of them differ."""
    hue, dash, symbol = (list(table)[position % len(table)] for table in (HUES, DASHES, SYMBOLS))
    return Style(hue, dash, symbol)


def stylesheet() -> str:
    """Return the palette as CSS variables, light and dark."""
    light, dark = (_variables(theme) for theme in (0, 1))
    return f":root {{ {light} }}\n@media (prefers-color-scheme: dark) {{ :root {{ {dark} }} }}\n"


def _variables(theme: int) -> str:
    values = {name: pair[theme] for name, pair in (HUES | SURFACES).items()}
    for name in HUES:
        red, green, blue = bytes.fromhex(values[name].removeprefix("#"))
        values[f"{name}-band"] = f"rgba({red}, {green}, {blue}, 0.18)"
    return " ".join(f"--{name}: {value};" for name, value in values.items())


# --- charts ---------------------------------------------------------------------------------------


Choice = Mapping[str, str]  # what the reader can choose → the option for which something is shown
Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Axis:
    """An axis."""

    title: str = ""  # the quantity
    log: bool = False  # whether it is logarithmic
    # The values that have a tick, where they are few settings; words make it categorical.
    ticks: Sequence[Any] = ()
    limits: tuple[float, float] | None = None  # its ends; None: those of the data
    floor: float = 0.0  # where a logarithmic axis shows zero and what is below
    whole: bool = False  # whether only whole numbers make sense; for the horizontal one

    def shown(self, values: Sequence[float] | Array) -> Array:
        """Values as it shows them: a logarithmic one has no zero.

        Example:
            >>> Axis(log=True, floor=0.1).shown([0.0, 10.0]).tolist()
            [0.1, 10.0]
        """
        numbers = np.asarray(values, dtype=np.float64)
        if not self.log:
            return numbers
        if self.floor > 0:
            return np.where(np.isnan(numbers), math.nan, np.maximum(numbers, self.floor))
        return np.where(numbers > 0, numbers, math.nan)


@dataclass(frozen=True)
class Line:
    """A line, or points without one."""

    name: str  # what the legend calls it; lines of one name share an entry
    x: Sequence[Any] | Array  # where
    y: Sequence[float] | Array  # how much; NaN where there is nothing
    style: Style | None = None  # colour, dash and symbol; None: by its place in the panel
    # Lower and upper edge of the band around it, if it has one.
    band: tuple[Sequence[float] | Array, Sequence[float] | Array] | None = None
    # Half the height of the bars at its points, if it has some.
    bars: Sequence[float] | Array | None = None
    points: bool = False  # whether points alone are drawn
    ring: tuple[float, float] | None = None  # a place (x, y) to mark by a ring
    when: Choice = field(default_factory=dict)  # the choices of the reader for which it is shown


@dataclass(frozen=True)
class Cloud:
    """Samples in the plane, coloured and shaped by class."""

    at: Array  # where they are, (n, 2), or (frames, n, 2) for a movie
    labels: npt.NDArray[np.int64]  # their classes, (n,)
    size: float = 6.0  # of a dot
    # Ends of lines from the centre, (K, 2), one for each class in order.
    spokes: Array | None = None
    steps: Sequence[int] = ()  # the training step of each frame
    names: Sequence[str] = ()  # what the legend calls the classes 0, 1, …; empty: no legend
    when: Choice = field(default_factory=dict)  # the choices of the reader for which it is shown


@dataclass(frozen=True)
class Grid:
    """A matrix as colours."""

    values: Array  # shape (rows, columns), NaN where there is nothing
    limits: tuple[float, float]  # the values of the first and the last colour
    rows: Sequence[str] = ()  # names of the rows; empty: numbers
    columns: Sequence[str] = ()  # names of the columns; empty: numbers
    # "signed" (white is zero), "dark" (dark is much) or "share" (white is none).
    colours: str = "dark"
    log: bool = False  # whether colours follow the logarithm
    # What is written into the cells, as (rows, columns) of words; empty: nothing.
    texts: Sequence[Sequence[str]] = ()
    unit: str = ""  # what the values are


@dataclass(frozen=True)
class Panel:
    """One plot."""

    title: str  # above it
    alt: str  # its content in words, for those who do not see it
    marks: Sequence[Line | Cloud | Grid]  # what is drawn
    x: Axis = Axis()  # the horizontal axis
    y: Axis = Axis()  # the vertical axis
    # Of a square plot without axes, for points within ±reach; 0 for a plot with axes.
    reach: float = 0.0
    circle: bool = False  # whether a square plot shows the unit circle

    @property
    def lines(self) -> list[tuple[Line, Style]]:
        """Its lines and how they are drawn, names of one kind alike."""
        own = [mark for mark in self.marks if isinstance(mark, Line)]
        places = {name: place for place, name in enumerate(dict.fromkeys(m.name for m in own))}
        return [(line, line.style or numbered(places[line.name])) for line in own]


@dataclass(frozen=True)
class Chart:
    """Panels under one caption."""

    id: str  # anchor in the page
    title: str  # what it shows
    caption: str  # how to read it, plain text
    panels: Sequence[Panel]  # the plots; none means that there is nothing to show yet
    tables: Sequence[Table] = ()  # the numbers behind it, folded away below

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


def _shown(mark: Line | Cloud | Grid, choice: Choice) -> bool:
    when = {} if isinstance(mark, Grid) else mark.when
    return all(choice.get(key, value) == value for key, value in when.items())
