"""The final embeddings on a circle: which ways the classes point."""

from __future__ import annotations

import numpy as np
import plotly.graph_objects as go

from tricouple.report.panel import Figure, Panel, square_plot, unit_circle
from tricouple.report.projections import class_means, leading_plane, unit
from tricouple.report.synthetic.figures.scatter import Picture, by_method, markers, points
from tricouple.report.words import METHODS, number

CAPTION = (
    "The embeddings seen in the plane of the two leading directions of their class means. Small "
    "dots: samples, moved out to the unit circle, so that only their direction counts. Spokes: "
    "class means where they fall in that plane; the closer to the rim, the more of the mean lies "
    "in it. A full circle has classes pointing every way; one narrow sector is dimensional "
    "collapse. Many classes cannot be equally far apart in a plane: spokes of different length "
    "are no fault."
)


def figure(pictures: tuple[Picture, ...]) -> Figure:
    """Return the circles of all pictures; K and ψ are chosen in the page."""
    return Figure(
        id="circle",
        title="The final embeddings, on a circle",
        caption=CAPTION,
        panels=tuple(_panel(method, own) for method, own in by_method(pictures).items()),
        small=True,
    )


def _panel(method: str, pictures: list[Picture]) -> Panel:
    drawing = square_plot(1.12)
    unit_circle(drawing)
    words = []
    for picture in pictures:
        z = picture.embeddings[-1]
        means = class_means(z, picture.labels)
        plane = leading_plane(means)
        drawing.add_traces(
            [points(picture, unit(z @ plane), size=5), _spokes(picture, means @ plane)]
        )
        words.append(f"{picture.name}: class means point over {_sector(means @ plane)}")
    return Panel(METHODS.get(method, method), f"Circle view. {'; '.join(words)}.", drawing)


def _spokes(picture: Picture, means: np.ndarray) -> go.Scatter:
    """Lines from the centre to each class mean."""
    labels = np.unique(picture.labels)
    at = np.full((3 * len(means), 2), np.nan)  # centre, mean, gap
    at[0::3], at[1::3] = 0.0, means
    look = markers(np.repeat(labels, 3), 8)
    # The centre of every spoke is one and the same place: no marker there.
    look |= {"size": np.tile([0, 8, 0], len(means)), "opacity": 1.0}
    return go.Scatter(
        x=at[:, 0].astype(np.float32),
        y=at[:, 1].astype(np.float32),
        mode="lines+markers",
        line={"color": "var(--quiet)", "width": 1},
        marker=look,
        customdata=np.repeat(labels, 3).astype(np.int32),
        hovertemplate="mean of class %{customdata}<extra></extra>",
        meta={"when": picture.when},
    )


def _sector(means: np.ndarray) -> str:
    """The angle that the projected class means span, in words."""
    angles = np.sort(np.degrees(np.arctan2(means[:, 1], means[:, 0])))
    gaps = np.diff(np.append(angles, angles[0] + 360))
    return f"{number(360 - float(gaps.max()))} of 360 degrees"
