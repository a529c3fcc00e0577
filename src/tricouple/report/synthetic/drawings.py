"""The README's pictures of a synthetic study, drawn with matplotlib, and its table."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from tricouple.report.ink import ink, with_legend
from tricouple.report.read import Study
from tricouple.report.statistics import Curve
from tricouple.report.synthetic.finals import finals_markdown
from tricouple.report.synthetic.groups import Group, group
from tricouple.report.synthetic.sweeps import Sweep, read_sweeps
from tricouple.report.synthetic.verdicts import VERDICTS, verdict
from tricouple.report.words import QUANTITIES, axis_name, axis_value, method_name

FLOOR = 1e-6  # of the largest eigenvalue; what is below is empty


def curves_picture(study: Study) -> Figure | None:
    """NC1 and both forms of NC2 over training, at the smallest K."""
    groups = _usual(study)
    if not groups:
        return None
    first = [own for own in groups if own.n_classes == groups[0].n_classes]
    picture, axes = _row(3)
    for axis, name in zip(axes, ("nc1", "nc2_std", "nc2_deviation"), strict=True):
        for own in first:
            _line(axis, own.curve(name), own)
        axis.set(yscale="log", title=QUANTITIES[name], xlabel="training step")
    axes[0].set_ylabel(f"K = {first[0].n_classes}")
    return with_legend(picture, axes)


def spectra_picture(study: Study) -> Figure | None:
    """Max-normalised spectra of the class means, a panel for each K."""
    groups = [own for own in _usual(study) if any(len(run.spectrum) for run in own.shown)]
    classes = sorted({own.n_classes for own in groups})
    if not classes:
        return None
    picture, axes = _row(len(classes))
    for axis, n_classes in zip(axes, classes, strict=True):
        for own in groups:
            if own.n_classes == n_classes:
                _line(axis, own.spectrum(), own)
        axis.set(yscale="log", title=f"K = {n_classes}", xlabel="eigenvalue, from the largest")
        axis.set_ylim(max(min(axis.get_ylim()[0], 0.1), FLOOR), 1.3)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes[0].set_ylabel("share of the largest")
    return with_legend(picture, axes)


def map_picture(study: Study) -> Figure | None:
    """How far from the ETF each method ends over every swept setting, with the verdicts."""
    sweeps = read_sweeps(study)
    if not sweeps:
        return None
    columns = min(2, len(sweeps))  # names take as much room as cells
    rows = math.ceil(len(sweeps) / columns)
    picture = Figure(figsize=(9.5, 0.9 + 1.9 * rows), layout="constrained")
    axes = [picture.add_subplot(rows, columns, number + 1) for number in range(len(sweeps))]
    grids = [_deviations(sweep) for sweep in sweeps]
    seen = np.concatenate([grid[np.isfinite(grid)] for grid in grids])
    limits = (seen.min(), seen.max()) if len(seen) else (-1.0, 0.0)
    for axis, sweep, grid in zip(axes, sweeps, grids, strict=True):
        image = axis.imshow(grid, cmap="cividis_r", aspect="auto", vmin=limits[0], vmax=limits[1])
        _signs(axis, sweep, grid, sum(limits) / 2)
        axis.grid(visible=False)
        axis.set_title(axis_name(sweep.axis))
        axis.set_xticks(range(len(sweep.values)), list(map(axis_value, sweep.values)))
        names = [method_name(line.method, line.shaping) for line in sweep.lines]
        axis.set_yticks(range(len(names)), names)
    bar = picture.colorbar(image, ax=axes, label=QUANTITIES["nc2_deviation"], shrink=0.8)
    bar.ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    bar.ax.yaxis.set_major_formatter(lambda power, _: f"{10**power:.2g}")
    if any(sweep.judged for sweep in sweeps):
        words = "      ".join(f"{known.sign} {known.word}" for known in VERDICTS.values())
        picture.supxlabel(words, fontsize=9)
    return picture


DRAWINGS: dict[str, Callable[[Study], Figure | str | None]] = {
    "synthetic-curves.png": curves_picture,
    "synthetic-spectra.png": spectra_picture,
    "synthetic-map.png": map_picture,
    "synthetic-table.md": finals_markdown,
}


def _usual(study: Study) -> list[Group]:
    """The main comparison: linear ψ, and the losses without ψ."""
    return [own for own in group(study.part("main")) if own.shaping in (None, "linear")]


def _row(count: int) -> tuple[Figure, list[Axes]]:
    picture = Figure(figsize=(9.5, 3.2), layout="constrained")
    return picture, [picture.add_subplot(1, count, number + 1) for number in range(count)]


def _line(axis: Axes, curve: Curve, own: Group) -> None:
    look = ink(own.method)
    axis.fill_between(curve.x, curve.low, curve.high, color=look["color"], alpha=0.15, linewidth=0)
    every = max(1, len(curve.x) // 8)
    axis.plot(curve.x, curve.mean, markevery=every, label=method_name(own.method), **look)


def _deviations(sweep: Sweep) -> Any:
    """log10 of the final NC2 deviation, (methods, values), NaN where nothing finished."""
    grid = np.full((len(sweep.lines), len(sweep.values)), np.nan)
    for row, line in enumerate(sweep.lines):
        for point in line.points:
            mean = point.final("nc2_deviation").mean
            if mean > 0:
                grid[row, sweep.values.index(point.value)] = np.log10(mean)
    return grid


def _signs(axis: Axes, sweep: Sweep, grid: Any, middle: float) -> None:
    """Write the sign of the verdict of most seeds into each cell."""
    for row, column, name in _verdicts(sweep):
        dark = grid[row, column] > middle  # cividis reversed: far from the ETF is dark
        ink = "white" if dark else "black"
        axis.text(column, row, verdict(name).sign, ha="center", va="center", color=ink)


def _verdicts(sweep: Sweep) -> Iterator[tuple[int, int, str]]:
    for row, line in enumerate(sweep.lines):
        for point in line.points:
            for name, _ in point.verdicts.most_common(1):
                yield row, sweep.values.index(point.value), name
