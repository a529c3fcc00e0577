"""Neural collapse over training: NC1, both forms of NC2 and the effective rank, per method."""

from __future__ import annotations

from tricouple.report.panel import Figure, Line, Panel, curves_panel
from tricouple.report.synthetic.groups import Group, methods_of
from tricouple.report.tables_before import Table, html_table
from tricouple.report.words import QUANTITIES, mean_std, method_name

PANELS = ("nc1", "nc2_std", "nc2_deviation", "effective_rank")
CAPTION = (
    "Lines are means over seeds, bands ± one standard deviation (cut at the smallest seed). Both "
    "forms of NC2 are zero at the simplex ETF, NC1 is zero when every class has shrunk to a point. "
    "The effective rank counts the directions that the embeddings use: K − 1 for a perfect ETF."
)


def figure(groups: tuple[Group, ...]) -> Figure:
    """Return the curves of all groups; K and ψ are chosen in the page."""
    panels = tuple(panel for name in PANELS for panel in _panel(groups, name))
    return Figure(
        id="curves",
        title="Neural collapse during training",
        caption=CAPTION,
        panels=panels,
        methods=methods_of(groups),
        text=html_table(_numbers(groups)) if panels else "",
    )


def _panel(groups: tuple[Group, ...], name: str) -> list[Panel]:
    lines = [
        Line(
            f"{method_name(group.method, group.shaping)} K={group.n_classes}",
            group.method,
            group.curve(name),
            band=len(group.shown) > 1,
            when=group.choice(),
        )
        for group in groups
        if any(name in run.curves for run in group.shown)
    ]
    log_y = name != "effective_rank"
    return [curves_panel(QUANTITIES[name], lines, unit="step", log_y=log_y)] if lines else []


def _numbers(groups: tuple[Group, ...]) -> Table:
    rows = [
        (
            str(group.n_classes),
            method_name(group.method, group.shaping),
            *(f"{mean_std(group.first(n))} → {mean_std(group.final(n))}" for n in PANELS),
        )
        for group in groups
        if group.finished
    ]
    return Table(
        "First and last recorded values, finished runs",
        ("K", "method", *(QUANTITIES[name] for name in PANELS)),
        tuple(rows),
        words=2,
    )
