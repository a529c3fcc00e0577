"""The README's picture of a vision study, drawn with matplotlib, and its table as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter

from tricouple.report.ink import ink, with_legend
from tricouple.report.read import Study
from tricouple.report.vision.figures.sharpness import AXIS
from tricouple.report.vision.names import loss_name
from tricouple.report.vision.sharpness import Line, read_lines
from tricouple.report.vision.tables import markdown_tables
from tricouple.report.words import axis_value

MEASURE = "penultimate/knn"
COLUMNS = 2


def sharpness_picture(study: Study) -> Figure | None:
    """k-NN accuracy against c, a panel for each block; a ring marks the paper's c."""
    lines = read_lines(study, MEASURE)
    blocks = list(dict.fromkeys(line.block for line in lines))
    if not blocks:
        return None
    columns = min(COLUMNS, len(blocks))
    rows = math.ceil(len(blocks) / columns)
    picture = Figure(figsize=(9.5, 0.7 + 2.8 * rows), layout="constrained")
    axes = [picture.add_subplot(rows, columns, number + 1) for number in range(len(blocks))]
    for axis, block in zip(axes, blocks, strict=True):
        own = [line for line in lines if line.block == block]
        for line in own:
            _line(axis, line)
        values = sorted({c for line in own for c, _ in line.points(MEASURE)})
        axis.set(xscale="log", title=str(block), ylabel="k-NN accuracy, %")
        axis.set_xticks(values, list(map(axis_value, values)))
        axis.xaxis.set_minor_formatter(NullFormatter())
    for axis in axes[-columns:]:
        axis.set_xlabel(f"{AXIS}; ring: the paper's setting")
    return with_legend(picture, axes)


DRAWINGS: dict[str, Callable[[Study], Figure | str | None]] = {
    "vision-sharpness.png": sharpness_picture,
    "vision-table.md": markdown_tables,
}


def _line(axis: Axes, line: Line) -> None:
    look = ink(line.method)
    points = line.points(MEASURE)
    axis.errorbar(
        [c for c, _ in points],
        [value.mean for _, value in points],
        yerr=[value.spread for _, value in points],
        capsize=2,
        label=loss_name(line.loss),
        **look,
    )
    marked = line.at_papers(MEASURE)
    if marked:
        where = ([marked[0]], [marked[1].mean])
        axis.plot(*where, "o", markersize=12, markerfacecolor="none", color=look["color"])
