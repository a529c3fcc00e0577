"""Spectra of the class-mean covariance at the end of training, one panel for each K."""

from __future__ import annotations

import numpy as np

from tricouple.report.panel import Figure, Panel, line_with_band, plot
from tricouple.report.synthetic.groups import Group, methods_of
from tricouple.report.tables_before import Table, html_table
from tricouple.report.words import mean_std, method_name, number

# Below this share of the largest eigenvalue a direction is empty, and how empty says nothing.
FLOOR = 1e-6
CAPTION = (
    "Eigenvalues of the covariance of the centred class means, sorted, each over the largest one; "
    "means over seeds with a band of ± one standard deviation. A flat line is a simplex ETF: all "
    "K − 1 directions used alike. A steep fall is dimensional collapse."
)


def figure(groups: tuple[Group, ...]) -> Figure:
    """Return the spectra of all groups; ψ is chosen in the page."""
    measured = tuple(g for g in groups if any(len(run.spectrum) for run in g.shown))
    classes = sorted({group.n_classes for group in measured})
    return Figure(
        id="spectra",
        title="Spectrum of the class means",
        caption=CAPTION,
        panels=tuple(_panel([g for g in measured if g.n_classes == k], k) for k in classes),
        methods=methods_of(measured),
        text=html_table(_numbers(measured)) if measured else "",
    )


def _panel(groups: list[Group], n_classes: int) -> Panel:
    drawing = plot("eigenvalue, from the largest", "share of the largest", log_y=True)
    lowest = 1.0
    for group in groups:
        curve = group.spectrum()
        drawing.add_traces(
            line_with_band(
                curve,
                group.method,
                group.choice(of_classes=False),
                unit="eigenvalue",
                band=len(group.shown) > 1,
            )
        )
        positive = curve.low[curve.low > 0]
        lowest = min(lowest, float(positive.min()) if len(positive) else FLOOR)
    # Never less than a decade: a flat spectrum should look flat.
    bottom = np.log10(min(max(lowest, FLOOR), 0.1))
    drawing.update_layout(yaxis={"range": [bottom - 0.1, 0.1]})
    return Panel(f"K = {n_classes}", _label(groups, n_classes), drawing)


def _label(groups: list[Group], n_classes: int) -> str:
    ends = []
    for group in groups:
        mean = group.spectrum().mean
        name = method_name(group.method, group.shaping)
        ends.append(f"{name}: smallest eigenvalue {number(float(mean[-1]))} of the largest")
    return f"Class-mean spectra at K = {n_classes}. {'; '.join(ends)}."


def _numbers(groups: tuple[Group, ...]) -> Table:
    rows = []
    for group in groups:
        mean = group.spectrum().mean
        rows.append(
            (
                str(group.n_classes),
                method_name(group.method, group.shaping),
                f"{mean_std(group.final('directions'))} of {group.n_classes - 1}",
                number(float(np.median(mean))),
                number(float(mean[-1])),
            )
        )
    head = ("K", "method", "directions filled", "median share", "smallest share")
    return Table("What the spectra come down to", head, tuple(rows), words=2)
