"""What verdicts are made of: methods compared seed by seed, in numbers, tables and pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

from tricouple_lab.experiments.studies.methods import METHODS
from tricouple_lab.experiments.studies.plan import Chosen, Plan
from tricouple_lab.report.chart import Axis, Line, Panel, numbered
from tricouple_lab.report.numbers import MeanStd, holm, percent, plain
from tricouple_lab.report.tables import Table

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences, first minus second."""

    mean: float
    low: float  # lower end of the 95 % interval (Student's t)
    high: float  # its upper end
    p: float  # of the two-sided paired t-test

    def times(self, factor: float) -> Difference:
        """The same in another unit."""
        return Difference(factor * self.mean, factor * self.low, factor * self.high, self.p)

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two methods seed by seed.

    Example:
        >>> paired([2.0, 3.0, 4.0], [1.0, 2.0, 2.0]).mean
        1.3333333333333333
    """
    gaps = np.array(first, dtype=float) - np.array(second, dtype=float)
    mean, n = float(gaps.mean()), len(gaps)
    error = float(gaps.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    if not error > 0:  # one pair, or all gaps equal
        return Difference(mean, mean, mean, math.nan if n < 2 else float(mean == 0))
    reach = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - reach, mean + reach, p)


def by_seed(found: Chosen, where: str, how: str) -> Mapping[int, float]:
    """A measure of a method in a condition, seed by seed; empty if there is no run."""
    return found.get((where, how), (0.0, {}))[1]


def complete(plan: Plan, where: str, found: Chosen) -> bool:
    """Whether every method has run with every seed in a condition."""
    return all({*plan.seeds} <= by_seed(found, where, how).keys() for how in plan.methods)


def methods_table(
    caption: str,
    methods: Sequence[str],
    columns: Mapping[str, str],
    found: Chosen,
    *,
    scale: float = 100.0,
) -> Table:
    """Mean ± standard deviation over seeds and the chosen c, methods down, conditions across.

    ``columns`` are conditions and what the table calls them; the measure is multiplied by
    ``scale``: 100 for a share in per cent.
    """
    rows = []
    for how in methods:
        cells = []
        for where in columns:
            c, own = found.get((where, how), (0.0, {}))
            value = MeanStd.of(scale * one for one in own.values())
            cells.append(f"{percent(value)} (c {plain(c)})" if own else "–")
        rows.append((METHODS[how].name, *cells))
    return Table(caption, ("loss", *columns.values()), rows)


def against(
    caption: str, methods: Sequence[str], reference: str, where: str, found: Chosen
) -> tuple[Table, dict[str, tuple[Difference, float]]]:
    """Paired differences to one method in a condition, in points, with Holm-corrected p."""
    base, gaps = by_seed(found, where, reference), {}
    for how in methods:
        own = by_seed(found, where, how)
        seeds = sorted(own.keys() & base.keys())
        if how != reference and len(seeds) > 1:
            gap = paired([own[seed] for seed in seeds], [base[seed] for seed in seeds])
            gaps[how] = gap.times(100)
    told = dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))
    rows = [
        (METHODS[how].name, str(gap), f"{told[how]:.2g}", "yes" if told[how] < LEVEL else "no")
        for how, gap in gaps.items()
    ]
    head = ("loss", f"minus {METHODS[reference].name}, points", "corrected p", "told apart")
    return Table(caption, head, rows), {how: (gap, told[how]) for how, gap in gaps.items()}


def lines_panel(
    title: str,
    methods: Sequence[str],
    places: Mapping[str, float],
    found: Chosen,
    axis: str,
    *,
    log: bool = False,
    unit: str = "accuracy, %",
) -> Panel:
    """A measure over a setting, a line a method, with bars of one standard deviation."""
    lines = []
    for number, how in enumerate(methods):
        values = [
            MeanStd.of(100 * one for one in by_seed(found, where, how).values()) for where in places
        ]
        lines.append(
            Line(
                METHODS[how].name,
                [*places.values()],
                [value.mean for value in values],
                style=numbered(number),
                bars=[value.spread for value in values],
            )
        )
    shown = [line for line in lines if any(value == value for value in line.y)]
    words = "; ".join(f"{line.name} from {line.y[0]:.1f} to {line.y[-1]:.1f}" for line in shown)
    x = Axis(axis, log=log, ticks=[*dict.fromkeys(places.values())])
    return Panel(title, words or "no run yet", lines, x=x, y=Axis(unit))
