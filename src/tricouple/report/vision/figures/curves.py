"""Training curves: the loss, and the geometry of held-out embeddings, over the epochs."""

from __future__ import annotations

from tricouple.report.panel import Figure, Panel, line_with_band, plot
from tricouple.report.tables import Table, html_table
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
    recorded = [own for own in groups if any(name in run.curves for run in own.shown)]
    if not recorded:
        return []
    drawing = plot("epoch", "", log_y=name in LOGARITHMIC)
    epochs = max(float(own.curve(name).x[-1]) for own in recorded)
    drawing.update_layout(xaxis={"dtick": max(1, round(epochs / 5))})  # whole epochs only
    words = []
    for own in recorded:
        curve, when = own.curve(name), {"block": str(own.block)}
        band = len(own.shown) > 1
        drawing.add_traces(line_with_band(curve, own.method, when, unit="epoch", band=band))
        words.append(f"{own.name} on {own.block}: {number(float(curve.mean[-1]))}")
    label = f"{QUANTITIES[name]} over training, ends at: {'; '.join(words)}."
    return [Panel(QUANTITIES[name], label, drawing)]


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
