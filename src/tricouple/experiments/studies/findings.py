"""Tables and pictures that the verdicts of several studies share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tricouple.experiments.studies.methods import METHODS
from tricouple.experiments.studies.plan import Chosen
from tricouple.experiments.studies.statistics import LEVEL, Difference, paired
from tricouple.report.chart import Axis, Line, Panel, numbered
from tricouple.report.numbers import MeanStd, percent, plain
from tricouple.report.sentences import holm
from tricouple.report.tables import Table


def methods_table(
    caption: str,
    methods: Sequence[str],
    columns: Mapping[str, str],
    found: Chosen,
    *,
    scale: float = 100.0,
) -> Table:
    """Mean ± standard deviation over seeds and the chosen c, methods down, conditions across.

    Args:
        caption: What is measured.
        methods: Rows.
        columns: Conditions and what the table calls them.
        found: The measure.
        scale: What it is multiplied by: 100 for a share in per cent.
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
    base = found.get((where, reference), (0.0, {}))[1]
    gaps = {}
    for how in methods:
        own = found.get((where, how), (0.0, {}))[1]
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
    scale: float = 100.0,
) -> Panel:
    """A measure over a setting, a line a method, with bars of one standard deviation."""
    lines = []
    for number, how in enumerate(methods):
        values = [
            MeanStd.of(scale * one for one in found.get((where, how), (0.0, {}))[1].values())
            for where in places
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
