"""Training curves: the loss, and the geometry of held-out embeddings, over the epochs."""

from __future__ import annotations

from tricouple.report.panel import Figure, Line, Panel, curves_panel
from tricouple.report.tables_before import Table, html_table
from tricouple.report.vision.groups import Group
from tricouple.report.words import QUANTITIES, number

PANELS = ("loss", "nc1", "nc2_deviation", "effective_rank", "alpha", "beta")
LOGARITHMIC = ("nc1", "nc2_deviation")
CAPTION = (
    "Over the epochs, means over seeds with a band of ± one standard deviation. All but the loss "
    "are of the embeddings of held-out images. Losses are on scales of their own: compare the "
    "shapes, not the heights. NC2 is zero at the simplex ETF; the effective rank counts directions."
)


def figure(groups: tuple[Group, ...]) -> Figure:
    """Return the curves of all groups; the block is chosen in the page."""
    panels = tuple(panel for name in PANELS for panel in _panel(groups, name))
    return Figure(
        id="curves",
        title="During training",
        caption=CAPTION,
        panels=panels,
        methods=tuple(dict.fromkeys(own.method for own in groups)),
        text=html_table(_numbers(groups)) if panels else "",
    )


def _panel(groups: tuple[Group, ...], name: str) -> list[Panel]:
    lines = [
        Line(
            f"{own.name} on {own.block}",
            own.method,
            own.curve(name),
            band=len(own.shown) > 1,
            when={"block": str(own.block)},
        )
        for own in groups
        if any(name in run.curves for run in own.shown)
    ]
    log_y = name in LOGARITHMIC
    return [curves_panel(QUANTITIES[name], lines, unit="epoch", log_y=log_y)] if lines else []


def _numbers(groups: tuple[Group, ...]) -> Table:
    rows = []
    for own in groups:
        ends = []
        for name in PANELS:
            mean = own.curve(name).mean
            ends.append(number(float(mean[-1])) if len(mean) else "–")
        rows.append((own.name, str(own.block), *ends))
    head = ("loss", "compared on", *(QUANTITIES[name] for name in PANELS))
    return Table("Last recorded values, mean over seeds", head, rows, words=2)
