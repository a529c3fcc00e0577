"""A chart as SVG text: lines and points on linear or logarithmic axes.

Colours come from the page's CSS, so that one drawing serves light and dark. Series differ in dashes
and marks as well as in colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from html import escape

from tricouple.experiments.verify.results import Figure, Series

WIDTH, HEIGHT = 860, 340
LEFT, RIGHT, TOP, BOTTOM = 74, 250, 14, 46
FLOOR = 1e-17
"""Where a logarithmic axis shows zero and negative rounding errors."""

DASHES = ("", "7 3", "2 3", "9 3 2 3")
Scale = Callable[[float], float]


def chart(figure: Figure) -> str:
    """Draw a figure; its title and description are inside, for readers that do not see it."""
    x, x_ticks = _axis(figure, "x", LEFT, WIDTH - RIGHT)
    y, y_ticks = _axis(figure, "y", HEIGHT - BOTTOM, TOP)
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(figure.title)}. {escape(figure.alt)}">',
        f"<title>{escape(figure.title)}</title><desc>{escape(figure.alt)}</desc>",
    ]
    for value, label in x_ticks:
        parts.append(_line(x(value), TOP, x(value), HEIGHT - BOTTOM, "grid"))
        parts.append(_text(x(value), HEIGHT - BOTTOM + 17, label, "middle"))
    for value, label in y_ticks:
        parts.append(_line(LEFT, y(value), WIDTH - RIGHT, y(value), "grid"))
        parts.append(_text(LEFT - 7, y(value) + 4, label, "end"))
    parts.append(_line(LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT, HEIGHT - BOTTOM, "axis"))
    parts.append(_line(LEFT, TOP, LEFT, HEIGHT - BOTTOM, "axis"))
    parts.append(_text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, figure.x_label, "middle"))
    middle = (TOP + HEIGHT - BOTTOM) / 2
    parts.append(
        f'<text x="14" y="{middle:.1f}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle:.1f})">{escape(figure.y_label)}</text>'
    )
    for number, series in enumerate(figure.series):
        parts.append(_drawn(series, number, x, y))
        row = TOP + 12 + 18 * number
        sample = Series("", (0.0, 1.0), (0.0, 0.0), series.points)
        start = WIDTH - RIGHT + 14
        parts.append(_drawn(sample, number, lambda v, s=start: s + 22 * v, lambda _, r=row: r))  # type: ignore[misc]
        parts.append(_text(start + 30, row + 4, series.name, "start"))
    return "\n".join([*parts, "</svg>"])


def _axis(
    figure: Figure, axis: str, start: float, end: float
) -> tuple[Scale, list[tuple[float, str]]]:
    """The scale of an axis, and its ticks with labels."""
    log = figure.log_x if axis == "x" else figure.log_y
    values = [value for series in figure.series for value in getattr(series, axis)]
    values = [value for value in values if math.isfinite(value)] or [0.0]
    if log:
        exponents = [math.log10(max(value, FLOOR)) for value in values]
        low, high = math.floor(min(exponents)), math.ceil(max(exponents))
        high = max(high, low + 1)
        step = math.ceil((high - low) / 6)
        ticks = [(10.0**power, f"1e{power}") for power in range(low, high + 1, step)]

        def position(value: float) -> float:
            return math.log10(max(value, FLOOR))
    else:
        step_size = _nice((max(values) - min(values)) / 5 or 1.0)
        low = math.floor(min(values) / step_size)
        high = max(math.ceil(max(values) / step_size), low + 1)
        ticks = [(n * step_size, f"{n * step_size:.6g}") for n in range(low, high + 1)]
        low, high = low * step_size, high * step_size

        def position(value: float) -> float:
            return value

    return lambda value: start + (end - start) * (position(value) - low) / (high - low), ticks


def _nice(step: float) -> float:
    """The next of 1, 2, 5 times a power of ten."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= step * 0.999)


def _drawn(series: Series, number: int, x: Scale, y: Scale) -> str:
    places = [
        (x(a), y(b))
        for a, b in zip(series.x, series.y, strict=True)
        if math.isfinite(a) and math.isfinite(b)
    ]
    if series.points:
        marks = "".join(_mark(a, b, number) for a, b in places)
        return f'<g class="points c{number % 8}">{marks}</g>'
    points = " ".join(f"{a:.1f},{b:.1f}" for a, b in places)
    dash = DASHES[number % len(DASHES)]
    return f'<polyline class="line c{number % 8}" stroke-dasharray="{dash}" points="{points}"/>'


def _mark(x: float, y: float, number: int) -> str:
    """A circle, square, diamond or triangle."""
    if number % 4 == 0:
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'
    if number % 4 == 3:
        path = f"M{x:.1f} {y - 4.5:.1f}l4.3 7.5h-8.6z"
    elif number % 4 == 2:
        path = f"M{x:.1f} {y - 4.5:.1f}l4.5 4.5l-4.5 4.5l-4.5 -4.5z"
    else:
        path = f"M{x - 3.2:.1f} {y - 3.2:.1f}h6.4v6.4h-6.4z"
    return f'<path d="{path}"/>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
