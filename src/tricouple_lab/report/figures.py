"""Figures by matplotlib: SVG whose colours are CSS variables, or a PNG for the documentation."""

import io
import re
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pandas as pd
from cycler import cycler
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, StrMethodFormatter

from tricouple_lab.files import write_atomically

Array = npt.NDArray[Any]

# Colours of the figure → variables of style.css (Okabe-Ito, darkened or lightened per theme).
VARIABLES = {
    "#000000": "var(--ink)",
    "#d0d7de": "var(--line)",
    "#0072b2": "var(--blue)",
    "#d55e00": "var(--vermillion)",
    "#009e73": "var(--green)",
    "#cc79a7": "var(--purple)",
    "#b07d00": "var(--yellow)",
    "#6e7781": "var(--grey)",
    "#56b4e9": "var(--sky)",
}
COLOURS = list(VARIABLES)[2:]
LINES = ("-", "--", "-.", ":")
MARKERS = "os^DvPX"
STYLE: Any = {
    "svg.fonttype": "none",  # texts stay texts
    "svg.hashsalt": "tricouple",  # equal figures have equal bytes
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.prop_cycle": cycler(color=COLOURS),
    "axes.titlesize": 10,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "font.sans-serif": ["DejaVu Sans"],
    "text.parse_math": False,  # a dollar sign in a class name is a dollar sign
}
MOST_POINTS = 500  # of a map
MOST_CLASSES = 20  # of a confusion matrix, and of the colours of a map
CELL = "#010101"  # a black that stays black on coloured cells in the dark theme


class Series(NamedTuple):
    """A line: its name, and y over x with an optional band or bars (mean ± spread)."""

    name: str
    x: Sequence[float]
    y: Sequence[float]
    spread: Sequence[float] = ()


def svg(figure: Figure) -> Markup:
    """Return the SVG element of a figure, in the colours of the page."""
    buffer = io.StringIO()
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")  # the reader's fonts may have it
        figure.savefig(
            buffer, format="svg", transparent=True, bbox_inches="tight", metadata={"Date": None}
        )
    text = buffer.getvalue()
    text = text[text.index("<svg") :]
    for colour, variable in VARIABLES.items():
        text = text.replace(colour, variable)
    text = re.sub(r' id="[A-Za-z.]+(?:2d)?_\d+"', "", text)  # not unique on a page, and not needed
    coordinates = re.compile(r"(\.\d\d)\d+")  # a hundredth of a point is enough
    paths = r' (?:d|x|y|transform)="[^"]*\.\d{3}[^"]*"'
    return Markup(re.sub(paths, lambda match: coordinates.sub(r"\1", match[0]), text))


def save_png(figure: Figure, path: Path) -> None:
    """Write the same figure for the documentation, on white."""
    with mpl.rc_context(STYLE), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph")
        write_atomically(
            path, lambda part: figure.savefig(part, format="png", dpi=130, bbox_inches="tight")
        )


@mpl.rc_context(STYLE)
def lines_figure(
    panels: Mapping[str, Sequence[Series]],
    x: str,
    y: str,
    *,
    log_x: bool = False,
    log_y: bool = False,
    chance: float | None = None,
    columns: int = 3,
    width: float = 4.8,
) -> Figure:
    """Lines in one panel per title, with one legend; a name has one look in all panels.

    Ticks of a logarithmic x are the values of the lines, which then have bars instead of bands.
    ``width`` is that of a panel, in inches; ``chance`` is where a dotted line is drawn.
    """
    columns = min(columns, len(panels))
    rows = -(-len(panels) // columns)
    order = list(dict.fromkeys(line.name for lines in panels.values() for line in lines))
    legend = _legend_columns(order, width * columns)
    height = 0.65 * width * rows + 0.2 * -(-len(order) // legend)
    figure = Figure(figsize=(width * columns, height))
    axes = figure.subplots(rows, columns, squeeze=False)
    handles: dict[str, Any] = {}
    for ax, (title, lines) in zip(axes.flat, panels.items(), strict=False):
        for line in lines:
            handles[line.name] = _draw(ax, line, order.index(line.name), bars=log_x)
        if chance is not None:
            handles["chance"] = ax.axhline(chance, color="#000000", linestyle=":", linewidth=1)
        ax.set(title=title, xlabel=x, ylabel=y)
        ax.grid(color="#d0d7de", linewidth=0.5)
        if log_y:
            ax.set_yscale("log")
            few = np.divide(*ax.get_ylim()[::-1]) < 100  # less than two decades
            ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if few else (1,), numticks=7))
            ax.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
            ax.minorticks_off()
        if log_x:
            ticks = sorted({value for line in lines for value in line.x})
            ax.set_xscale("log")
            ax.set_xticks(ticks, [f"{value:g}" for value in ticks])
            ax.minorticks_off()
        elif all(float(value).is_integer() for line in lines for value in line.x):
            ax.locator_params(axis="x", integer=True, nbins=8)
    for ax in axes.flat[len(panels) :]:
        ax.axis("off")
    _legend(figure, handles, legend)
    return figure


def _legend_columns(names: Sequence[str], width: float) -> int:
    """Return how many names fit into one row of so many inches."""
    longest = max((len(name) for name in names), default=1)
    return max(1, min(len(names), int(12 * width / (longest + 6))))


def _draw(ax: Axes, line: Series, index: int, *, bars: bool) -> Any:
    """Draw one line; many points get few markers."""
    look: dict[str, Any] = {
        "color": COLOURS[index % len(COLOURS)],
        "linestyle": LINES[index % len(LINES)],
        "marker": MARKERS[index % len(MARKERS)],
        "markersize": 4,
    }
    spread = np.array(line.spread, dtype=float)
    if bars and len(spread):
        return ax.errorbar(line.x, line.y, yerr=np.nan_to_num(spread), capsize=2, **look)[0]
    (handle,) = ax.plot(line.x, line.y, markevery=max(1, len(line.x) // 8), **look)
    if len(spread) and np.nansum(spread) > 0:
        mean = np.array(line.y, dtype=float)
        low = np.where(mean - spread > 0, mean - spread, mean)  # a logarithmic axis has no zero
        ax.fill_between(line.x, low, mean + spread, color=look["color"], alpha=0.15, linewidth=0)
    return handle


def _legend(figure: Figure, handles: Mapping[str, Any], columns: int) -> None:
    if len(handles) > 1:
        figure.legend(
            handles.values(), handles, loc="outside upper left", ncols=columns,
            columnspacing=1, frameon=False,
        )  # fmt: skip


@mpl.rc_context(STYLE)
def map_figure(panels: Mapping[str, Array], labels: Array, names: Sequence[str]) -> Figure:
    """Points in the plane, shape (n, 2), a colour and marker per class; at most 500 of them."""
    shown = pd.Series(labels[:MOST_POINTS]).value_counts().index[:MOST_CLASSES]
    columns = _legend_columns([names[label] for label in shown], 4.8 * len(panels))
    figure = Figure(figsize=(4.8 * len(panels), 4.8 + 0.2 * -(-len(shown) // columns)))
    axes = figure.subplots(1, len(panels), squeeze=False)[0]
    handles = {}
    for ax, (title, points) in zip(axes, panels.items(), strict=True):
        for index, label in enumerate(sorted(shown)):
            own = points[:MOST_POINTS][labels[:MOST_POINTS] == label]
            handles[names[label]] = ax.scatter(
                own[:, 0], own[:, 1], s=10, color=COLOURS[index % len(COLOURS)],
                marker=MARKERS[index // len(COLOURS) % len(MARKERS)],
            )  # fmt: skip
        ax.set(title=title, xticks=[], yticks=[], aspect="equal")
        ax.spines[:].set_visible(False)
    _legend(figure, handles, columns)
    return figure


def plane(embedding: Array, labels: Array | None = None) -> Array:
    """Return coordinates of unit embeddings on two principal axes of the class means, shape (n, 2).

    Without labels, or with two classes or fewer, the axes are those of the samples.
    """
    rows = np.asarray(embedding, dtype=np.float64)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    centred = rows - rows.mean(axis=0)
    means = centred
    if labels is not None and len(np.unique(labels)) > 2:
        means = pd.DataFrame(centred).groupby(labels).mean().to_numpy()
    axes = np.linalg.svd(means, full_matrices=False)[2][:2]
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(axis=1)])[:, None]
    found = centred @ axes.T
    return np.pad(found, ((0, 0), (0, 2 - found.shape[1])))


@mpl.rc_context(STYLE)
def confusion_figure(matrix: Array, names: Sequence[str]) -> Figure:
    """Shares of each true class (row) that are predicted as each class (column), in percent."""
    size = 1.6 + 0.32 * len(names)
    figure = Figure(figsize=(size, size))
    ax = figure.subplots()
    mesh = ax.pcolormesh(100 * matrix, vmin=0, vmax=100, cmap="cividis", linewidth=0)
    light = mesh.to_rgba(100 * matrix)[..., :3] @ (0.3, 0.6, 0.1) > 0.45
    for row, column in np.argwhere(matrix >= 0.005):
        ax.text(
            column + 0.5, row + 0.5, f"{100 * matrix[row, column]:.0f}", ha="center", va="center",
            color=CELL if light[row, column] else "#fefefe", fontsize=9,
        )  # fmt: skip
    ax.set_xticks(np.arange(len(names)) + 0.5, names, rotation=90)
    ax.set_yticks(np.arange(len(names)) + 0.5, names)
    ax.set(xlabel="predicted", ylabel="true")
    ax.invert_yaxis()
    return figure
