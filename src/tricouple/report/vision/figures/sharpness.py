"""Accuracy against c, one panel a block, the paper's setting of each loss marked by a ring."""

from __future__ import annotations

import plotly.graph_objects as go

from tricouple.report.palette_before import style
from tricouple.report.panel import Figure, Panel, line_with_bars, plot
from tricouple.report.tables_before import Table, html_table
from tricouple.report.vision.groups import Block, Group
from tricouple.report.vision.names import FEATURES, MEASURES, loss_name
from tricouple.report.vision.results import percent
from tricouple.report.vision.sharpness import Line
from tricouple.report.words import AXES, axis_value, listing

AXIS = AXES["sharpness"]
CAPTION = (
    "Accuracy against the sharpness c = 1/(τε) (1/ε for IOT, 1/τ for InfoNCE and InvaSpread), at "
    "the same budget for every loss. A ring marks the paper's setting: τ = ε = 0.1, that is "
    "c = 100 for its own two losses and c = 10 for the others."
)
# What the reader can choose to see: key of the metrics → words.
CHOICES = {
    f"{features}/{measure}": f"{MEASURES[measure]}, {FEATURES[features]}"
    for features in FEATURES
    for measure in ("knn", "linear")
}


def figure(lines: tuple[Line, ...]) -> Figure:
    """Return the accuracies of all losses; which accuracy is chosen in the page."""
    blocks = tuple(dict.fromkeys(line.block for line in lines))
    return Figure(
        id="sharpness",
        title="Accuracy against sharpness",
        caption=" ".join([CAPTION, *_conditions(lines)]),
        panels=tuple(_panel(block, [line for line in lines if line.block == block])
                     for block in blocks),
        methods=tuple(dict.fromkeys(line.method for line in lines)),
        text="\n".join(html_table(_numbers(lines, key)) for key in CHOICES),
    )  # fmt: skip


def _panel(block: Block, lines: list[Line]) -> Panel:
    values = sorted({c for line in lines for key in CHOICES for c, _ in line.points(key)})
    drawing = plot(AXIS, "accuracy, %", log_x=True, ticks=values)
    for line in lines:
        for key in CHOICES:
            points = line.points(key)
            if points:
                x, y = zip(*points, strict=True)
                when = {"measure": key}
                drawing.add_trace(line_with_bars(x, y, line.method, loss_name(line.loss), when))
                drawing.add_traces(_ring(line, key))
    return Panel(str(block), _label(block, lines), drawing)


def _ring(line: Line, key: str) -> list[go.Scatter]:
    point = line.at_papers(key)
    if point is None:
        return []
    colour = style(line.method).colour
    return [
        go.Scatter(
            x=[point[0]],
            y=[point[1].mean],
            mode="markers",
            marker={"symbol": "circle-open", "size": 18, "color": colour, "line": {"width": 2}},
            hovertemplate=f"{loss_name(line.loss)}: the paper's c<extra></extra>",
            meta={"when": {"measure": key}, "method": line.method},
        )
    ]


def _label(block: Block, lines: list[Line]) -> str:
    key = next(iter(CHOICES))
    parts = []
    for line in lines:
        points = line.points(key)
        values = ", ".join(f"{percent(value)} at c = {axis_value(c)}" for c, value in points)
        marked = line.at_papers(key)
        where = f" (the paper's c = {axis_value(marked[0])})" if marked else ""
        parts.append(f"{loss_name(line.loss)}: {values}{where}")
    return f"{CHOICES[key]}, % over c on {block}. {'; '.join(parts)}."


def _numbers(lines: tuple[Line, ...], key: str) -> Table:
    values = sorted({c for line in lines for c, _ in line.points(key)})
    rows, bold = [], set()
    for number, line in enumerate(lines):
        points = dict(line.points(key))
        means = {c: round(value.mean, 2) for c, value in points.items()}
        bold |= {
            (number, column)
            for column, c in enumerate(values, 2)
            if means.get(c) == max(means.values())
        }
        marked = line.at_papers(key)
        cells = [
            (percent(points[c]) + (" ◯" if marked and marked[0] == c else ""))
            if c in points
            else "–"
            for c in values
        ]
        rows.append((loss_name(line.loss), str(line.block), *cells))
    head = ("loss", "compared on", *(f"c = {axis_value(c)}" for c in values))
    caption = f"{CHOICES[key]}, %; the best c of each row in bold, the paper's c marked by ◯"
    return Table(caption, head, rows, words=2, bold=frozenset(bold))


def _conditions(lines: tuple[Line, ...]) -> list[str]:
    """On which images and seeds, where all points agree about it."""
    groups: list[Group] = [own for line in lines for own in line.groups]
    parts = {str(own.config.get("evaluated_on")) for own in groups}
    seeds = {tuple(run.config["seed"] for run in own.finished) for own in groups}
    told = []
    if len(parts) == 1:
        told.append(f"Measured on {parts.pop()} images.")
    if len(seeds) == 1:
        only = seeds.pop()
        told.append(f"Seed{'s'[: len(only) > 1]} {listing([str(seed) for seed in only])}.")
    return told
