"""Quantities of runs that differ only in their seed: last values and curves over training."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tricouple.report.read import Run
from tricouple.report.statistics import Curve, MeanStd, band


def finished(runs: Sequence[Run]) -> tuple[Run, ...]:
    """The runs that came to their end: the ones whose last value is a result."""
    return tuple(run for run in runs if run.status == "done")


def last(runs: Sequence[Run], name: str) -> MeanStd:
    """The last value of a curve, over the finished seeds."""
    return MeanStd.of(np.array([run.final(name) for run in finished(runs)]))


def first(runs: Sequence[Run], name: str) -> MeanStd:
    """The first recorded value of a curve, over the finished seeds."""
    curves = [run.curves.get(name, np.empty(0)) for run in finished(runs)]
    return MeanStd.of(np.array([float(curve[0]) for curve in curves if len(curve)]))


def metric(runs: Sequence[Run], name: str) -> MeanStd:
    """A measure of the trained encoder, over the finished seeds."""
    return MeanStd.of(np.array([run.metrics.get(name, np.nan) for run in finished(runs)]))


def curve_over(runs: Sequence[Run], name: str, x: str = "step") -> Curve:
    """A quantity over training; at each x over the seeds that recorded it."""
    seeds = [
        dict(zip(run.curves[x], run.curves[name], strict=True))
        for run in runs
        if name in run.curves
    ]
    steps = sorted({step for seed in seeds for step in seed})
    rows = [[seed.get(step, np.nan) for step in steps] for seed in seeds]
    return band(np.array(steps), np.array(rows).reshape(len(seeds), len(steps)))
