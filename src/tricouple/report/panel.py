"""What every figure is made of: panels that plotly draws, each with its words for those who listen.

A trace may carry ``meta``: ``when`` (the reader's choices that it is shown for) and ``method`` (the
legend entry that switches it). The page's script reads it; the colours are CSS variables, which
the script resolves for the light or the dark theme.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from tricouple.report.palette_before import style
from tricouple.report.statistics import Curve, MeanStd
from tricouple.report.words import axis_value, method_name, number

Choice = dict[str, str]


@dataclass(frozen=True)
class Panel:
    """One plot: its title, its content in words (the text alternative) and the drawing."""

    title: str
    label: str
    drawing: go.Figure


@dataclass(frozen=True)
class Figure:
    """Panels under one caption.

    Attributes:
        id: Anchor in the page.
        title: What it shows.
        caption: How to read it, plain text.
        panels: The plots; none means that the study has nothing to show yet.
        methods: The legend; empty where panels are titled by method.
        small: Whether the panels are small squares, several in a row even on a phone.
        movie_steps: Training steps of a slider that moves through the panels.
        text: The numbers behind it as HTML, folded away below.
    """

    id: str
    title: str
    caption: str
    panels: tuple[Panel, ...]
    methods: tuple[str, ...] = ()
    small: bool = False
    movie_steps: tuple[int, ...] = ()
    text: str = ""


@dataclass(frozen=True)
class Line:
    """A method over training.

    Attributes:
        name: What to call it.
        method: Whose colours it has.
        curve: Its values.
        band: Whether there is a spread over seeds to show.
        when: The choices under which it is shown.
    """

    name: str
    method: str
    curve: Curve
    band: bool
    when: Choice


def curves_panel(title: str, lines: Sequence[Line], *, unit: str, log_y: bool = False) -> Panel:
    """Return lines over training; its words are where they end.

    Args:
        title: The quantity.
        lines: The methods.
        unit: What x counts: epochs are whole numbers, and so are their ticks.
        log_y: Whether the values are on a logarithmic axis.
    """
    drawing = plot(unit, "", log_y=log_y)
    if unit == "epoch":
        last = max((float(line.curve.x[-1]) for line in lines if len(line.curve.x)), default=0.0)
        drawing.update_layout(xaxis={"dtick": max(1, round(last / 5))})
    ends = []
    for line in lines:
        drawing.add_traces(
            line_with_band(line.curve, line.method, line.when, unit=unit, band=line.band)
        )
        mean = line.curve.mean
        ends.append(f"{line.name}: {number(float(mean[-1])) if len(mean) else 'nothing'}")
    return Panel(title, f"{title} over training, ends at: {'; '.join(ends)}.", drawing)


def plot(
    x: str, y: str, *, log_x: bool = False, log_y: bool = False, ticks: Sequence[float] = ()
) -> go.Figure:
    """Return an empty plot with titled axes in the colours of the page.

    Args:
        x: Title of the horizontal axis.
        y: Title of the vertical axis.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is logarithmic.
        ticks: The horizontal ticks, where they are few settings; empty: plotly's choice.
    """
    axis = {"gridcolor": "var(--faint)", "zeroline": False, "automargin": True, "nticks": 7}
    log = {"type": "log", "exponentformat": "power", "dtick": None}
    shown = {"tickvals": ticks, "ticktext": list(map(axis_value, ticks)), "nticks": None}
    return go.Figure(
        layout={
            "template": "none",
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"color": "var(--ink)", "family": "system-ui, sans-serif", "size": 12},
            "margin": {"l": 8, "r": 8, "t": 8, "b": 8},
            "showlegend": False,
            "hovermode": "closest",
            "hoverlabel": {"bgcolor": "var(--paper)", "font": {"color": "var(--ink)"}},
            "xaxis": axis
            | (log if log_x else {})
            | (shown if ticks else {})
            | {"title": {"text": x}},
            "yaxis": axis | (log if log_y else {}) | {"title": {"text": y}},
        }
    )


def square_plot(reach: float) -> go.Figure:
    """Return an empty square plot without axes, for points within ±`reach`."""
    drawing = plot("", "")
    hidden = {"visible": False, "range": [-reach, reach], "fixedrange": True}
    drawing.update_layout(
        xaxis=hidden,
        yaxis=hidden | {"scaleanchor": "x"},
        margin={"l": 2, "r": 2, "t": 2, "b": 2},
    )
    return drawing


def unit_circle(drawing: go.Figure) -> None:
    """Draw the unit circle behind the points."""
    drawing.add_shape(
        type="circle", x0=-1, x1=1, y0=-1, y1=1, line={"color": "var(--faint)"}, layer="below"
    )


def line_with_bars(
    x: Sequence[object], values: Sequence[MeanStd], method: str, name: str, when: Choice
) -> go.Scatter:
    """Return the means at some settings as a line, with bars of ± one standard deviation."""
    look = style(method)
    bars, spread = None, ""
    if any(value.count > 1 for value in values):
        bars = {"array": [value.spread for value in values], "thickness": 1, "width": 3}
        spread = " ± %{error_y.array:.2g}"
    return go.Scatter(
        x=list(x),
        y=[value.mean for value in values],
        error_y=bars,
        name=name,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 8, "color": look.colour},
        hovertemplate=f"{name}<br>%{{x}}: %{{y:.3g}}{spread}<extra></extra>",
        meta={"when": when, "method": method},
    )


def line_with_band(
    curve: Curve, method: str, when: Choice, *, unit: str, band: bool
) -> list[go.Scatter]:
    """Return the mean of a method as a line, and its spread over seeds as a band behind it.

    Args:
        curve: What to draw.
        method: Whose it is.
        when: The choices under which it is shown.
        unit: What x counts, for the hover text.
        band: Whether there is a spread to show.
    """
    look = style(method)
    name = method_name(method)
    meta = {"when": when, "method": method}
    seen = np.isfinite(curve.mean)
    x = curve.x[seen].astype(np.float32)
    mean, low, high = (y[seen].astype(np.float32) for y in (curve.mean, curve.low, curve.high))
    line = go.Scatter(
        x=x,
        y=mean,
        customdata=high - mean,
        name=name,
        mode="lines+markers",
        line={"color": look.colour, "dash": look.dash, "width": 2},
        marker={"symbol": look.symbol, "size": 6, "color": look.colour, "maxdisplayed": 8},
        hovertemplate=f"{name}<br>{unit} %{{x}}: %{{y:.3g}}"
        + (" ± %{customdata:.2g}<extra></extra>" if band else "<extra></extra>"),
        meta=meta,
    )
    if not band:
        return [line]
    outline = go.Scatter(
        x=np.concatenate([x, x[::-1]]),
        y=np.concatenate([high, low[::-1]]),
        fill="toself",
        fillcolor=look.band,
        line={"width": 0},
        mode="lines",
        hoverinfo="skip",
        meta=meta,
    )
    return [outline, line]
