"""The README's picture of a vision study, drawn with matplotlib, and its table as Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable

from matplotlib.figure import Figure

from tricouple.report.ink import with_legend
from tricouple.report.over_sharpness import Series, draw
from tricouple.report.read import Study
from tricouple.report.vision.figures.sharpness import AXIS
from tricouple.report.vision.names import loss_name
from tricouple.report.vision.sharpness import Line, read_lines
from tricouple.report.vision.tables import markdown_tables

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
        draw(axis, [_series(line) for line in lines if line.block == block])
        axis.set(title=str(block), ylabel="k-NN accuracy, %")
    for axis in axes[-columns:]:
        axis.set_xlabel(f"{AXIS}; ring: the paper's setting")
    return with_legend(picture, axes)


DRAWINGS: dict[str, Callable[[Study], Figure | str | None]] = {
    "vision-sharpness.png": sharpness_picture,
    "vision-table.md": markdown_tables,
}


def _series(line: Line) -> Series:
    name, points = loss_name(line.loss), line.points(MEASURE)
    return Series(name, line.method, points, ringed=line.at_papers(MEASURE))
