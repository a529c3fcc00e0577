"""Draw the panels of a chart with plotly, for the page.

Colours are CSS variables, which the page's script resolves for the light or the dark theme. A trace
carries ``meta``: ``when`` (the reader's choices that it is shown for), ``name`` (the legend entry
that switches it) and ``movie`` (its frames).

Example:
    >>> from tricouple_lab.report.chart import Line, Panel
    >>> len(drawing(Panel("loss", "It falls from 2 to 1.", [Line("a", (0, 1), (2, 1))])).data)
    1
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tricouple_lab.report.chart import DASHES, Array, Axis, Cloud, Grid, Line, Panel, Style
from tricouple_lab.report.numbers import plain

SCALE = 30000  # coordinates within ±1 as 16-bit integers: a quarter of the size of JSON numbers
SCALES = {"signed": "RdBu", "dark": "Cividis_r", "share": "Viridis"}


def drawing(panel: Panel) -> go.Figure:
    """Return a panel as plotly draws it."""
    figure = go.Figure(layout=_layout(panel))
    for line, look in panel.lines:
        figure.add_traces(list(_line(line, look, panel)))
    for mark in panel.marks:
        if isinstance(mark, Cloud):
            figure.add_traces(list(_cloud(mark)))
        elif isinstance(mark, Grid):
            figure.add_trace(_grid(mark))
            figure.update_layout(
                yaxis={"autorange": "reversed", "scaleanchor": "x", "showgrid": False},
                xaxis={"showgrid": False},
            )
    if panel.circle:
        edge = {"color": "var(--faint)"}
        figure.add_shape(type="circle", x0=-1, x1=1, y0=-1, y1=1, line=edge, layer="below")
    return figure


def _layout(panel: Panel) -> dict[str, Any]:
    margin = 2 if panel.reach else 8
    if panel.reach:
        hidden = {"visible": False, "range": [-panel.reach, panel.reach], "fixedrange": True}
        x, y = hidden, hidden | {"scaleanchor": "x"}
    else:
        x, y = _axis(panel.x, panel), _axis(panel.y, panel)
    return {
        "template": "none",
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": "var(--ink)", "family": "system-ui, sans-serif", "size": 12},
        "margin": dict.fromkeys("lrtb", margin),
        "showlegend": False,
        "hovermode": "closest",
        "hoverlabel": {"bgcolor": "var(--paper)", "font": {"color": "var(--ink)"}},
        "xaxis": x,
        "yaxis": y,
    }


def _axis(axis: Axis, panel: Panel) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "gridcolor": "var(--faint)",
        "zeroline": False,
        "automargin": True,
        "nticks": 7,
        "title": {"text": axis.title},
    }
    if axis.log:
        shown |= {"type": "log", "exponentformat": "power", "dtick": None}
    if axis.limits:
        shown["range"] = list(np.log10(axis.limits) if axis.log else axis.limits)
    if axis.ticks and any(isinstance(tick, str) for tick in axis.ticks):
        shown |= {"type": "category", "categoryorder": "array", "categoryarray": list(axis.ticks)}
    elif axis.ticks:
        shown |= {"tickvals": list(axis.ticks), "ticktext": list(map(plain, axis.ticks)),
                  "nticks": None}  # fmt: skip
    elif axis.whole:
        ends = [max(line.x) for line, _ in panel.lines if len(line.x)]
        shown["dtick"] = max(1, round(float(max(ends, default=0)) / 5))
    return shown


def _line(line: Line, look: Style, panel: Panel) -> Iterator[go.Scatter]:
    """The band of a line, the line, and its ring."""
    meta = {"when": dict(line.when), "name": line.name}
    y = panel.y.shown(line.y)
    seen = np.isfinite(y)
    x = _packed(np.asarray(line.x)[seen])
    spread = ""
    above = None
    if line.band:
        low, high = (panel.y.shown(edge)[seen] for edge in line.band)
        above = _packed(high - y[seen])
        spread = " ± %{customdata:.2g}"
        yield go.Scatter(
            x=np.concatenate([x, x[::-1]]),
            y=_packed(np.concatenate([high, low[::-1]])),
            fill="toself",
            fillcolor=f"var(--{look.hue}-band)",
            line={"width": 0, "color": look.colour},
            mode="lines",
            hoverinfo="skip",
            meta=meta,
        )
    bars = None
    if line.bars is not None:
        bars = {"array": np.asarray(line.bars)[seen], "thickness": 1, "width": 3}
        spread = " ± %{error_y.array:.2g}"
    dash = ",".join(f"{length}px" for length in DASHES[look.dash]) or "solid"
    few = line.points or len(x) <= 8
    yield go.Scatter(
        x=x,
        y=_packed(y[seen]),
        error_y=bars,
        customdata=above,
        name=line.name,
        mode="markers" if line.points else "lines+markers",
        line={"color": look.colour, "dash": dash, "width": 2},
        marker={"symbol": look.symbol, "color": look.colour}
        | ({"size": 8} if few else {"size": 6, "maxdisplayed": 8}),
        hovertemplate=f"{line.name}<br>%{{x}}: %{{y:.3g}}{spread}<extra></extra>",
        meta=meta,
    )
    if line.ring:
        yield go.Scatter(
            x=[line.ring[0]],
            y=[line.ring[1]],
            mode="markers",
            marker={"symbol": "circle-open", "size": 18, "color": look.colour}
            | {"line": {"width": 2}},
            hoverinfo="skip",
            meta=meta,
        )


def _cloud(cloud: Cloud) -> Iterator[go.Scatter]:
    """Samples, and the spokes of their class means."""
    meta: dict[str, Any] = {"when": dict(cloud.when)}
    if len(cloud.steps):
        # Frames for the page's script: x then y of all points, frame after frame.
        numbers = (np.moveaxis(cloud.at, 2, 1).clip(-1, 1) * SCALE).round().astype("<i2")
        points = base64.b64encode(numbers.tobytes()).decode("ascii")
        meta["movie"] = {"steps": list(cloud.steps), "scale": SCALE, "points": points}
    at = cloud.at if cloud.at.ndim == 2 else cloud.at[-1]
    yield go.Scatter(
        x=_packed(at[:, 0]),
        y=_packed(at[:, 1]),
        mode="markers",
        marker=_markers(cloud.labels) | {"size": cloud.size, "opacity": 0.75},
        customdata=cloud.labels.astype(np.int32),
        hovertemplate="class %{customdata}<extra></extra>",
        meta=meta,
    )
    if cloud.spokes is None:
        return
    labels = np.unique(cloud.labels)
    ends = np.full((3 * len(labels), 2), np.nan)  # centre, mean, gap
    ends[0::3], ends[1::3] = 0.0, cloud.spokes
    yield go.Scatter(
        x=_packed(ends[:, 0]),
        y=_packed(ends[:, 1]),
        mode="lines+markers",
        line={"color": "var(--quiet)", "width": 1},
        # The centre of every spoke is one and the same place: no marker there.
        marker=_markers(np.repeat(labels, 3)) | {"size": np.tile([0, 8, 0], len(labels))},
        customdata=np.repeat(labels, 3).astype(np.int32),
        hovertemplate="mean of class %{customdata}<extra></extra>",
        meta={"when": dict(cloud.when)},
    )


def _markers(labels: np.ndarray) -> dict[str, Any]:
    looks = [Style.of_class(int(label)) for label in labels]
    colours, symbols = [look.colour for look in looks], [look.symbol for look in looks]
    return {"color": colours, "symbol": symbols, "line": {"width": 0}}


def _grid(grid: Grid) -> go.Heatmap:
    values = np.log10(grid.values) if grid.log else grid.values
    low, high = np.log10(grid.limits) if grid.log else grid.limits
    return go.Heatmap(
        z=values.round(4),
        x=list(grid.columns) or None,
        y=list(grid.rows) or None,
        zmin=low,
        zmax=high,
        colorscale=SCALES[grid.colours],
        colorbar={"thickness": 10, "tickfont": {"color": "var(--ink)"}},
        hovertemplate=f"{grid.unit}%{{y}}, %{{x}}: %{{z:.3g}}<extra></extra>",
    )


def _packed(values: Array) -> Any:
    """Half of the digits are all that can be seen."""
    return values.astype(np.float32) if values.dtype.kind == "f" else values
