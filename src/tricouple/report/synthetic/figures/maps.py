"""Maps of a setting: how near the ETF and how rich each method ends as one setting is swept."""

from __future__ import annotations

from collections import Counter

import numpy as np

from tricouple.report.panel import Choice, Figure, Panel, line_with_bars, plot
from tricouple.report.synthetic.sweeps import Line, Sweep
from tricouple.report.synthetic.verdicts import majority, verdict
from tricouple.report.tables_before import Table, html_table
from tricouple.report.words import QUANTITIES, axis_name, axis_value, method_name, number

MEASURED = ("nc2_deviation", "effective_rank")
LEAD = (
    "Final values as one setting is swept and all others stay as they are; means over seeds, bars "
    "± one standard deviation. Where no run came to its end there is no dot."
)
SIGNS = (
    " The tables give the study's verdict on each setting; a fraction tells how many seeds agree "
    "where not all do."
)


def figure(sweep: Sweep) -> Figure:
    """Return the map of one axis."""
    title = axis_name(sweep.axis)
    return Figure(
        id=f"map-{sweep.axis}",
        title=f"Along {title}",
        caption=f"Final values over {title}.{_setting(sweep)}",
        panels=tuple(_panel(sweep, name) for name in MEASURED),
        methods=tuple(dict.fromkeys(line.method for line in sweep.lines)),
        text=html_table(_numbers(sweep)),
    )


def verdict_table(sweep: Sweep) -> str:
    """Return the strip of verdicts, a row for each method, a column for each value."""
    rows, notes = [], {}
    for row, line in enumerate(sweep.lines):
        counts = {point.value: point.verdicts for point in line.points}
        cells = [counts.get(value, Counter[str]()) for value in sweep.values]
        rows.append((_name(line, sweep), *map(majority, cells)))
        for column, cell in enumerate(cells, 1):
            if cell:
                notes[row, column] = f"verdict {verdict(cell.most_common(1)[0][0]).hue}"
    head = (axis_name(sweep.axis), *map(axis_value, sweep.values))
    return html_table(Table(f"Outcomes over {head[0]}", head, rows, notes=notes))


def _panel(sweep: Sweep, name: str) -> Panel:
    title = axis_name(sweep.axis)
    drawing = plot(title, "", log_x=sweep.logarithmic, log_y=name == "nc2_deviation")
    drawing.update_layout(
        xaxis={"type": "log" if sweep.logarithmic else "linear" if sweep.numeric else "category"}
    )
    if sweep.numeric and len(sweep.values) <= 8:  # the values that were measured, and no others
        drawing.update_layout(
            xaxis={"tickvals": sweep.values, "ticktext": list(map(axis_value, sweep.values))}
        )
    words = []
    for line in sweep.lines:
        measured = [(point, point.final(name)) for point in line.points]
        seen = [(point.value, value) for point, value in measured if np.isfinite(value.mean)]
        if not seen:
            continue
        values, finals = zip(*seen, strict=True)
        name_of, when = _name(line, sweep), _when(line, sweep)
        drawing.add_trace(line_with_bars(values, finals, line.method, name_of, when))
        ends = " to ".join(
            f"{number(seen[i][1].mean)} at {axis_value(seen[i][0])}" for i in (0, -1)
        )
        words.append(f"{_name(line, sweep)} from {ends}")
    return Panel(QUANTITIES[name], f"{QUANTITIES[name]} over {title}. {'; '.join(words)}.", drawing)


def _when(line: Line, sweep: Sweep) -> Choice:
    """A choice hides a line only if the sweep offers another one instead."""
    when: Choice = {}
    if line.n_classes is not None and len({own.n_classes for own in sweep.lines}) > 1:
        when["n_classes"] = str(line.n_classes)
    if line.shaping is not None and len({own.shaping for own in sweep.lines} - {None}) > 1:
        when["shaping"] = line.shaping
    return when


def _setting(sweep: Sweep) -> str:
    """The K of the sweep, where it is the same for all."""
    classes = {line.n_classes for line in sweep.lines}
    only = classes.pop() if len(classes) == 1 else None
    return "" if only is None else f" K = {only}."


def _name(line: Line, sweep: Sweep) -> str:
    several = len({own.n_classes for own in sweep.lines}) > 1
    return method_name(line.method, line.shaping) + (f", K = {line.n_classes}" if several else "")


def _numbers(sweep: Sweep) -> Table:
    rows = [
        (
            _name(line, sweep),
            axis_value(point.value),
            *(number(point.final(name).mean) for name in MEASURED),
            f"{sum(run.status == 'done' for run in point.runs)} of {len(point.runs)}",
        )
        for line in sweep.lines
        for point in line.points
    ]
    title = axis_name(sweep.axis)
    head = ("method", title, *(QUANTITIES[name] for name in MEASURED), "seeds finished")
    return Table(f"Final values over {title}", head, rows)
