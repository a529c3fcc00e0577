"""How matplotlib draws a method: the colour, dash and marker that it has on the page."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from tricouple.report.palette_before import HUES, style

LINES = {
    "solid": "-", "dash": "--", "dashdot": "-.", "dot": ":", "longdash": (0, (8, 3)),
    "longdashdot": (0, (8, 3, 2, 3)),
}  # fmt: skip
MARKERS = {"circle": "o", "square": "s", "diamond": "D", "triangle-up": "^", "x": "X",
           "cross": "P", "star": "*"}  # fmt: skip
ROW = 6  # names that fit beside each other


def ink(method: str) -> dict[str, Any]:
    """Return the arguments of ``Axes.plot`` for a method.

    Example:
        >>> ink("neg_mmiot")["marker"]
        'o'
    """
    look = style(method)
    return {
        "color": HUES[look.hue][0],
        "linestyle": LINES[look.dash],
        "marker": MARKERS[look.symbol],
        "markersize": 4,
    }


def with_legend(picture: Figure, axes: list[Axes]) -> Figure:
    """Add one legend below for all panels, each name once."""
    named = {
        name: handle
        for axis in axes
        for handle, name in zip(*axis.get_legend_handles_labels(), strict=True)
    }
    columns = len(named) if len(named) <= ROW else -(-len(named) // 2)
    handles, names = named.values(), named.keys()
    picture.legend(handles, names, loc="outside lower center", ncols=columns, frameon=False)
    return picture
