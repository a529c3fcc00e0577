"""Figures of an evaluation, as PNG files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from tricouple.report.embeddings import tsne

_LEGIBLE = 20  # with more classes than this, names and numbers would overlap


def confusion_figure(matrix: Tensor, classes: Sequence[str], title: str, path: Path) -> None:
    """Draw a confusion matrix, each row as shares of its class.

    Args:
        matrix: Counts, shape (K, K), true classes as rows.
        classes: Names of the classes.
        title: What the numbers are of.
        path: Where to write the PNG.
    """
    from matplotlib.figure import Figure

    shares = matrix / matrix.sum(1, keepdim=True).clamp_min(1)
    n = len(classes)
    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.subplots()
    drawn = axes.imshow(shares.numpy(), cmap="Blues", vmin=0.0, vmax=1.0)
    figure.colorbar(drawn, label="share of the true class")
    axes.set(title=title, xlabel="predicted", ylabel="true")
    if n <= _LEGIBLE:
        axes.set_xticks(range(n), classes, rotation=45, ha="right")
        axes.set_yticks(range(n), classes)
        for row in range(n):
            for column in range(n):
                share = float(shares[row, column])
                colour = "white" if share > 0.5 else "black"
                text = f"{100 * share:.0f}" if share >= 0.005 else ""
                axes.text(column, row, text, ha="center", va="center", color=colour, fontsize=8)
    figure.savefig(path, dpi=120)


def tsne_figure(
    features: Tensor,
    labels: Tensor,
    classes: Sequence[str],
    title: str,
    path: Path,
    seed: int = 0,
) -> None:
    """Draw features in the plane by t-SNE.

    Args:
        features: Shape (n, d).
        labels: Class of each sample, shape (n,).
        classes: Names of the classes.
        title: What the features are.
        path: Where to write the PNG.
        seed: Of the embedding.
    """
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    points = tsne(features.double().numpy(), seed)
    figure = Figure(figsize=(7.0, 6.0), layout="constrained")
    axes = figure.subplots()
    colours = colormaps["tab20" if len(classes) > 10 else "tab10"]
    for code in labels.unique().tolist():
        x, y = points[(labels == code).numpy()].T
        axes.scatter(x, y, s=6, color=colours(code % colours.N), label=classes[code])
    axes.set(title=title, xticks=[], yticks=[])
    if len(classes) <= _LEGIBLE:
        figure.legend(loc="outside right upper", markerscale=2, fontsize=8)
    figure.savefig(path, dpi=120)
