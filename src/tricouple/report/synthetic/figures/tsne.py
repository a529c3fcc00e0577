"""t-SNE of the final embeddings, one small panel for each method."""

from __future__ import annotations

import numpy as np

from tricouple.report.panel import Figure, Panel, square_plot
from tricouple.report.projections import tsne
from tricouple.report.synthetic.figures.scatter import Picture, by_method, points
from tricouple.report.words import METHODS, number

CAPTION = (
    "Each dot is a sample at the end of training, coloured and shaped by class; one seed. t-SNE "
    "keeps neighbours together and nothing else: read whether classes are apart, not how far."
)


def figure(pictures: tuple[Picture, ...]) -> Figure:
    """Return the maps of all pictures; K and ψ are chosen in the page."""
    return Figure(
        id="tsne",
        title="The final embeddings, by t-SNE",
        caption=CAPTION,
        panels=tuple(_panel(method, own) for method, own in by_method(pictures).items()),
        small=True,
    )


def _panel(method: str, pictures: list[Picture]) -> Panel:
    drawing = square_plot(1.08)
    words = []
    for picture in pictures:
        at = tsne(picture.embeddings[-1])
        drawing.add_trace(points(picture, at))
        words.append(f"{picture.name}: {number(100 * _pure(at, picture))} % of the samples lie "
                     "nearest to one of their own class")  # fmt: skip
    return Panel(METHODS.get(method, method), f"t-SNE. {'; '.join(words)}.", drawing)


def _pure(at: np.ndarray, picture: Picture) -> float:
    """The share of samples whose nearest other sample in the picture has the same class."""
    distances = np.square(at[:, None] - at).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    return float((picture.labels[distances.argmin(axis=1)] == picture.labels).mean())
