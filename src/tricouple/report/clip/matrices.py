"""The similarities of a batch and the plan that they make, before and after training."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import plotly.graph_objects as go

from tricouple.report.clip.gallery import Gallery
from tricouple.report.panel import Figure, Panel, plot
from tricouple.report.words import number

TITLE = "Similarities and the three-marginal plan of a batch"
CAPTION = (
    "Rows are images, columns captions; the matching caption is on the diagonal. The plan couples "
    "an image with a positive and a negative caption, at the sharpness of the run; shown are its "
    "two pair marginals, as shares of the mass of an image. Mass on the diagonal of the positive "
    "and off the diagonal of the negative one is what Neg-MMIOT trains for."
)
MATRICES = {
    "similarity": "cosine",
    "plan_positive": "plan, positive",
    "plan_negative": "plan, negative",
}
TIMES = ("before", "after")


def matrices(gallery: Gallery, name: str, caption: str = CAPTION) -> Figure:
    """A row of panels before and one after training; equal colours are equal values in both."""
    shown = {
        (key, when): values
        for when in TIMES
        for key in MATRICES
        if (values := _shares(gallery, key, when)) is not None
    }
    limits = {
        key: max(float(np.abs(values).max()) for (k, _), values in shown.items() if k == key)
        for key in dict.fromkeys(key for key, _ in shown)
    }
    panels = []
    for (key, when), values in shown.items():
        n = len(values)
        own = float(values.diagonal().mean())
        rest = float((values.sum() - values.trace()) / max(n * n - n, 1))
        label = (
            f"{MATRICES[key]}, of {n} pairs {when} training: {number(own)} on average for matching "
            f"pairs, {number(rest)} for the others."
        )
        title = f"{MATRICES[key]}, {when} training"
        panels.append(
            Panel(title, label, _heatmap(values, limits[key], signed=key == "similarity"))
        )
    return Figure(id=f"matrices-{name}", title=TITLE, caption=caption, panels=tuple(panels))


def _shares(gallery: Gallery, key: str, when: str) -> npt.NDArray[np.float64] | None:
    """A matrix; of a plan, each row as shares that sum to one."""
    values = gallery.matrix(f"{key}_{when}")
    return values if values is None or key == "similarity" else values * len(values)


def _heatmap(values: npt.NDArray[np.float64], limit: float, *, signed: bool) -> go.Figure:
    drawing = plot("caption", "image")
    drawing.add_trace(
        go.Heatmap(
            z=values.round(4),
            zmin=-limit if signed else 0,
            zmax=limit,
            colorscale="RdBu" if signed else "Viridis",
            colorbar={"thickness": 10, "tickfont": {"color": "var(--ink)"}},
            hovertemplate="image %{y}, caption %{x}: %{z:.3g}<extra></extra>",
        )
    )
    drawing.update_layout(
        yaxis={"autorange": "reversed", "scaleanchor": "x", "showgrid": False},
        xaxis={"showgrid": False},
    )
    return drawing
