"""The embedding over training: the same plane at every step, moved through by a slider."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np

from tricouple.report.panel import Figure, Panel, square_plot, unit_circle
from tricouple.report.projections import class_means, leading_plane, thin
from tricouple.report.read import Array
from tricouple.report.synthetic.figures.scatter import Picture, by_method, points
from tricouple.report.words import METHODS, number

MOST_FRAMES = 30
SCALE = 30000  # coordinates within ±1 as 16-bit integers: a quarter of the size of JSON numbers
CAPTION = (
    "The unit embeddings of one seed, projected on the plane of the two leading directions that "
    "their class means have at the last step; the circle has radius 1. The plane stays fixed, so "
    "what moves is the embedding. Move the slider, or press play."
)


def figure(pictures: tuple[Picture, ...]) -> Figure:
    """Return the movies of all pictures; K and ψ are chosen in the page."""
    moving = tuple(picture for picture in pictures if len(picture.steps) > 1)
    steps = sorted({step for picture in moving for step in picture.steps})
    return Figure(
        id="movie",
        title="The embedding during training",
        caption=CAPTION,
        panels=tuple(_panel(method, own) for method, own in by_method(moving).items()),
        small=True,
        movie_steps=tuple(steps[i] for i in thin(len(steps), MOST_FRAMES)) if steps else (),
    )


def _panel(method: str, pictures: list[Picture]) -> Panel:
    drawing = square_plot(1.08)
    unit_circle(drawing)
    words = []
    for picture in pictures:
        plane = leading_plane(class_means(picture.embeddings[-1], picture.labels))
        frames = thin(len(picture.steps), MOST_FRAMES)
        at = picture.embeddings[frames] @ plane  # (S, n, 2)
        trace = points(picture, at[-1])
        trace.meta = {"when": picture.when, "movie": _packed(picture, frames, at)}
        drawing.add_trace(trace)
        first, last = (_radius(at[index], picture) for index in (0, -1))
        words.append(f"{picture.name}: class means move from radius {first} to {last}")
    return Panel(METHODS.get(method, method), f"Over training. {'; '.join(words)}.", drawing)


def _packed(picture: Picture, frames: Any, at: Array) -> dict[str, Any]:
    """Frames for the page's script: x then y of all points, frame after frame."""
    numbers = np.moveaxis(at, 2, 1).clip(-1, 1) * SCALE  # (S, 2, n)
    return {
        "steps": [picture.steps[frame] for frame in frames],
        "scale": SCALE,
        "points": base64.b64encode(numbers.round().astype("<i2").tobytes()).decode("ascii"),
    }


def _radius(at: Array, picture: Picture) -> str:
    return number(float(np.linalg.norm(class_means(at, picture.labels), axis=1).mean()))
