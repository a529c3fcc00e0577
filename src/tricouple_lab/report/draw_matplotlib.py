"""Draw a chart with matplotlib: small PNG files on white, the same at every run.

Example:
    >>> from tricouple_lab.report.chart import Chart, Line, Panel
    >>> panel = Panel("loss", "It falls from 2 to 1.", [Line("a", (0, 1), (2, 1))])
    >>> png(Chart("loss", "Loss", "", [panel]))[1:4]
    b'PNG'
"""

from __future__ import annotations

import io
import math
from typing import Any

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullFormatter
from PIL import Image

from tricouple_lab.report.chart import DASHES, HUES, SYMBOLS, Chart, Cloud, Grid, Line, Panel, Style
from tricouple_lab.report.numbers import plain

SETTINGS: dict[Any, Any] = {
    "font.size": 9,
    "axes.grid": True,
    "grid.color": "#d8dee4",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
MAPS = {"signed": "RdBu", "dark": "cividis_r", "share": "Blues"}
ROW, LETTERS = 6, 80  # names that fit beside each other, if they have no more letters


def png(chart: Chart, *, columns: int = 3, height: float = 2.5, dpi: int = 130) -> bytes:
    """Return a chart as a PNG file, 9.5 inches wide, panels of this height in inches.

    A chart without panels has no bytes.
    """
    if not chart.panels:
        return b""
    large, small = io.BytesIO(), io.BytesIO()
    with mpl.rc_context(SETTINGS):
        picture(chart, columns, height).savefig(large, format="png", dpi=dpi, facecolor="white")
    # A few hundred colours are all it has: a palette takes a third of the room.
    Image.open(large).convert("RGB").quantize(256).save(small, format="png", optimize=True)
    return small.getvalue()


def picture(chart: Chart, columns: int = 3, height: float = 2.5) -> Figure:
    """Return a chart as a figure of matplotlib, with one legend below for all panels."""
    columns = min(columns, len(chart.panels))
    rows = math.ceil(len(chart.panels) / columns)
    drawn = Figure(figsize=(9.5, 0.7 + height * rows), layout="constrained")
    axes = [drawn.add_subplot(rows, columns, place + 1) for place in range(len(chart.panels))]
    for axis, panel in zip(axes, chart.panels, strict=True):
        _panel(axis, panel)
        # Panels above each other share the words below the last one.
        if axis in axes[-columns:] or panel.x != chart.panels[-1].x:
            axis.set_xlabel(panel.x.title)
    grids = [mark for panel in chart.panels for mark in panel.marks if isinstance(mark, Grid)]
    if grids:
        _colour_bar(drawn, axes, grids[0])
        drawn.supxlabel(chart.caption, fontsize=9)
    legend = {name: handle for axis in axes
              for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)}  # fmt: skip
    if legend:
        fit = len(legend) <= ROW and len("".join(legend)) <= LETTERS
        lines = 1 if fit else max(2, math.ceil(len(legend) / 10))
        beside = math.ceil(len(legend) / lines)
        handles, names = legend.values(), legend.keys()
        drawn.legend(handles, names, loc="outside lower center", ncols=beside, frameon=False)
    return drawn


def _panel(axis: Axes, panel: Panel) -> None:
    axis.set_title(_literal(panel.title))
    axis.set_ylabel(panel.y.title)
    if panel.x.log:
        axis.set_xscale("log")
    if panel.y.log:
        axis.set_yscale("log")
    for line, look in panel.lines:
        _line(axis, line, look, panel)
    for mark in panel.marks:
        if isinstance(mark, Cloud):
            _cloud(axis, mark)
        elif isinstance(mark, Grid):
            _grid(axis, mark)
    if panel.y.limits:
        axis.set_ylim(*panel.y.limits)
    if panel.x.ticks and not any(isinstance(tick, str) for tick in panel.x.ticks):
        axis.set_xticks(list(panel.x.ticks), list(map(plain, panel.x.ticks)))
        axis.xaxis.set_minor_formatter(NullFormatter())
    elif panel.x.whole:
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.reach:
        axis.set_axis_off()
        axis.set(xlim=(-panel.reach, panel.reach), ylim=(-panel.reach, panel.reach), aspect="equal")


def _literal(name: str) -> str:
    """A name that matplotlib does not take for a formula: it may be that of a class or a folder."""
    return name.replace("$", r"\$")


def _line(axis: Axes, line: Line, look: Style, panel: Panel) -> None:
    x, y = np.asarray(line.x), panel.y.shown(line.y)
    colour = HUES[look.hue][0]
    # Its dashes are in units of the line's width.
    lengths = tuple(length / 1.5 for length in DASHES[look.dash])
    ink: dict[str, Any] = {
        "color": colour,
        "linestyle": "" if line.points else (0, lengths) if lengths else "-",
        "linewidth": 1.5,
        "marker": SYMBOLS[look.symbol][0],
        "markersize": 4,
        "label": _literal(line.name),
    }
    if line.band:
        low, high = (panel.y.shown(edge) for edge in line.band)
        axis.fill_between(x, low, high, color=colour, alpha=0.15, linewidth=0)
    if line.bars is not None:
        axis.errorbar(x, y, yerr=line.bars, capsize=2, **ink)
    else:
        axis.plot(x, y, markevery=1 if line.points else max(1, len(x) // 8), **ink)
    if line.ring:
        where = ([line.ring[0]], [line.ring[1]])
        axis.plot(*where, "o", markersize=12, markerfacecolor="none", color=colour)


def _cloud(axis: Axes, cloud: Cloud) -> None:
    at = cloud.at if cloud.at.ndim == 2 else cloud.at[-1]
    for label in np.unique(cloud.labels):
        look = Style.of_class(int(label))
        x, y = at[cloud.labels == label].T
        name = _literal(cloud.names[label]) if cloud.names else None
        ink: dict[str, Any] = {"color": HUES[look.hue][0], "marker": SYMBOLS[look.symbol][0]}
        axis.scatter(x, y, s=2 * cloud.size, linewidth=0, label=name, **ink)


def _grid(axis: Axes, grid: Grid) -> None:
    norm = (LogNorm if grid.log else Normalize)(*grid.limits)
    axis.imshow(grid.values, cmap=MAPS[grid.colours], norm=norm, aspect="auto")
    axis.grid(visible=False)
    if grid.rows:
        axis.set_yticks(range(len(grid.rows)), list(map(_literal, grid.rows)))
    if grid.columns:
        long = sum(map(len, grid.columns)) > 60
        turned: dict[str, Any] = {"rotation": 45, "ha": "right"} if long else {}
        axis.set_xticks(range(len(grid.columns)), list(map(_literal, grid.columns)), **turned)
    for row, texts in enumerate(grid.texts):
        for column, text in enumerate(texts):
            value = grid.values[row, column]
            dark = np.isfinite(value) and norm(value) > 0.5
            ink = "white" if dark else "black"
            axis.text(column, row, text, ha="center", va="center", color=ink)


def _colour_bar(drawn: Figure, axes: list[Axes], grid: Grid) -> None:
    bar = drawn.colorbar(axes[0].images[0], ax=axes, label=grid.unit, shrink=0.8)
    if grid.log:
        bar.ax.yaxis.set_major_formatter(lambda value, _: f"{value:.2g}")
        bar.ax.yaxis.set_minor_formatter(NullFormatter())
