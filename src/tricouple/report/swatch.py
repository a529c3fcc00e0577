"""A sample of a method's line for the legend: the same colour, dash and marker as in the plots."""

from __future__ import annotations

from tricouple.report.palette_before import style

DASHES = {
    "solid": "",
    "dash": "6 4",
    "dashdot": "6 3 2 3",
    "dot": "2 3",
    "longdash": "9 4",
    "longdashdot": "9 3 2 3",
}
MARKERS = {
    "circle": '<circle cx="16" cy="6" r="4"/>',
    "square": '<rect x="12.5" y="2.5" width="7" height="7"/>',
    "diamond": '<path d="M16 1l5 5-5 5-5-5z"/>',
    "triangle-up": '<path d="M16 1l5 9H11z"/>',
    "x": '<path d="M12 2l8 8m0-8l-8 8" stroke-width="3"/>',
    "cross": '<path d="M16 1v10M11 6h10" stroke-width="3"/>',
    "star": '<path d="M16 0l2 4 4 .5-3 3 1 4.5-4-2-4 2 1-4.5-3-3 4-.5z"/>',
}


def swatch(method: str) -> str:
    """Return the sample as a small drawing that screen readers skip: the name stands beside it."""
    look = style(method)
    return (
        '<svg viewBox="0 0 32 12" width="32" height="12" aria-hidden="true" '
        f'style="stroke:{look.colour};fill:{look.colour}">'
        f'<path d="M0 6h32" stroke-width="2" stroke-dasharray="{DASHES[look.dash]}"/>'
        f"{MARKERS[look.symbol]}</svg>"
    )
