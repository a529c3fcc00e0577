"""Sweeps over one setting: where each method ends, as numbers and as verdicts of the study."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np

from tricouple_lab.names import AXES, QUANTITIES
from tricouple_lab.report.chart import Axis, Chart, Grid, Line, Panel
from tricouple_lab.report.groups import Group, by_place, check, group, setting, steps_of
from tricouple_lab.report.numbers import number, plain
from tricouple_lab.report.page import chart_html, paragraph
from tricouple_lab.report.read import Run, Study, StudyError
from tricouple_lab.report.tables import Table, to_html

NEEDS = {"method": str, "n_classes": int, "seed": int}
PREFIX = "maps/"
SWEPT = ("nc2_deviation", "effective_rank")
MAPS = (
    "Final values as one setting is swept and all others stay as they are; means over seeds, bars "
    "± one standard deviation. Where no run came to its end there is no dot."
)
SIGNS = (
    " The tables give the study's verdict on each setting; a fraction tells how many seeds agree "
    "where not all do."
)


@dataclass(frozen=True)
class Verdict:
    """How an outcome is shown: its word, a sign that needs no colour, and a hue."""

    word: str
    sign: str
    hue: str

    def __str__(self) -> str:
        return f"{self.sign} {self.word}"


VERDICTS = {
    "etf": Verdict("ETF", "★", "blue"),
    "rich": Verdict("rich", "●", "green"),
    "reduced": Verdict("reduced", "◐", "purple"),
    "collapsed": Verdict("collapsed", "▼", "orange"),
    "diverged": Verdict("diverged", "✕", "vermillion"),
}


def verdict(name: str) -> Verdict:
    """Return how a verdict is shown; one that is not known here keeps its own word."""
    return VERDICTS.get(name.lower(), Verdict(name, "■", "grey"))


def verdicts(own: Group) -> Counter[str]:
    """How often the study gave each verdict to these seeds."""
    return Counter(run.verdict for run in own.runs if run.verdict is not None)


def majority(counts: Counter[str], *, words: bool = True) -> str:
    """Write the verdict of most seeds, in words or as a sign; of how many if they disagree.

    Example:
        >>> majority(Counter({"etf": 2, "rich": 1})), majority(Counter({"etf": 1}), words=False)
        ('★ ETF 2/3', '★')
    """
    if not counts:
        return "–"
    name, count = counts.most_common(1)[0]
    shown, total = str(verdict(name)) if words else verdict(name).sign, counts.total()
    return shown if count == total else f"{shown} {count}/{total}"


@dataclass(frozen=True)
class Sweep:
    """One axis: the name of the setting, its values in order, and each method's group at them."""

    axis: str
    values: tuple[Any, ...]
    lines: tuple[dict[Any, Group], ...]

    @property
    def title(self) -> str:
        """The setting in words."""
        return AXES.get(self.axis, self.axis)

    @property
    def groups(self) -> list[Group]:
        """All groups, line after line."""
        return [own for line in self.lines for own in line.values()]

    @property
    def classes(self) -> list[str]:
        """The values of K that lines are drawn at, in words."""
        return [] if self.axis == "n_classes" else list(by_place(map(_first, self.lines)))

    @property
    def logarithmic(self) -> bool:
        """Whether the values call for a logarithmic axis: positive and 20-fold or more."""
        numeric = not any(isinstance(value, str) for value in self.values)
        return numeric and self.values[0] > 0 and self.values[-1] >= 20 * self.values[0]

    @property
    def judged(self) -> bool:
        """Whether the study gave verdicts."""
        return any(map(verdicts, self.groups))

    def name(self, line: dict[Any, Group], *, short: bool = False) -> str:
        """What a line is called; its K where there are several."""
        own, several = _first(line), len(self.classes) > 1
        return (own.short_name if short else own.name) + (f", {own.place}" if several else "")

    def when(self, own: Group) -> dict[str, str]:
        """The choices under which a line is shown: those that offer another one instead."""
        several = {
            "n_classes": len(self.classes) > 1,
            "shaping": len({_first(n).config.get("shaping") for n in self.lines} - {None}) > 1,
        }
        return {key: value for key, value in choice(own).items() if several[key]}


def _first(line: dict[Any, Group]) -> Group:
    """The group of a line that tells what the line is."""
    return next(iter(line.values()))


def choice(own: Group) -> dict[str, str]:
    """The choices under which a group is shown; a loss without ψ is shown for every ψ."""
    shaping = own.config.get("shaping")
    when = {"n_classes": str(own.config["n_classes"])}
    return when if shaping is None else when | {"shaping": shaping}


def groups_of(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Gather the seeds of every method at each K."""
    return group(runs, NEEDS, lambda c: f"K = {c['n_classes']}", lambda c: c["n_classes"])


def read_sweeps(study: Study) -> tuple[Sweep, ...]:
    """Gather the runs of every "maps/<axis>" part."""
    parts = dict.fromkeys(run.part for run in study.runs if run.part.startswith(PREFIX))
    return tuple(_sweep(part.removeprefix(PREFIX), study.part(part)) for part in parts)


def _sweep(axis: str, runs: Sequence[Run]) -> Sweep:
    for run in runs:
        check(run, NEEDS)
        if not isinstance(run.config.get(axis), int | float | str):
            raise StudyError(
                f"runs.jsonl, line {run.line}: run {run.id} is part of {PREFIX}{axis}, "
                f"but its config gives {axis} as {run.config.get(axis)!r}"
            )
    values = {run.config[axis] for run in runs}
    order = sorted(values, key=lambda value: (isinstance(value, str), value))
    # c follows from the setting that is swept, or is a setting of its own.
    free = {"seed", axis, *(["sharpness"] if axis in ("epsilon", "temperature") else [])}
    lines: dict[str, dict[Any, Group]] = {}
    for value in order:
        for own in groups_of(run for run in runs if run.config[axis] == value):
            lines.setdefault(setting(own.config, free), {})[value] = own
    return Sweep(axis, tuple(order), tuple(lines.values()))


def sweep_chart(sweep: Sweep) -> Chart:
    """How near the ETF and how rich each method ends as one setting is swept."""
    caption = f"Final values over {sweep.title} after {steps_of(sweep.groups)}"
    setting = f" {sweep.classes[0]}." if len(sweep.classes) == 1 else ""
    rows = [
        (sweep.name(line), plain(value), own.c, *(number(own.last(name).mean) for name in SWEPT),
         f"{len(own.finished)} of {len(own.runs)}")
        for line in sweep.lines
        for value, own in line.items()
    ]  # fmt: skip
    head = ("method", sweep.title, "c", *(QUANTITIES[name] for name in SWEPT), "seeds finished")
    panels, numbers = [_sweep_panel(sweep, name) for name in SWEPT], [Table(caption, head, rows)]
    words = f"{caption}.{setting}"
    return Chart(f"map-{sweep.axis}", f"Along {sweep.title}", words, panels, numbers)


def _sweep_panel(sweep: Sweep, name: str) -> Panel:
    lines, words = [], []
    for line in sweep.lines:
        seen = {v: m for v, own in line.items() if math.isfinite((m := own.last(name)).mean)}
        if not seen:
            continue
        first, values = _first(line), seen.values()
        spread, means = [value.spread for value in values], [value.mean for value in values]
        short, when = sweep.name(line, short=True), sweep.when(first)
        lines.append(Line(short, list(seen), means, first.style, bars=spread, when=when))
        ends = [f"{number(m.mean)} at {plain(v)}" for v, m in seen.items()]
        words.append(f"{sweep.name(line)} from {ends[0]} to {ends[-1]}")
    few = len(sweep.values) <= 8 or any(isinstance(value, str) for value in sweep.values)
    return Panel(
        QUANTITIES[name],
        f"{QUANTITIES[name]} over {sweep.title}. {'; '.join(words)}.",
        lines,
        # The values that were measured, and no others.
        x=Axis(sweep.title, log=sweep.logarithmic, ticks=sweep.values if few else ()),
        y=Axis(log=name == "nc2_deviation"),
    )


def verdict_table(sweep: Sweep, *, words: bool = True) -> Table:
    """The strip of verdicts or their signs, a row for each method, a column for each value."""
    rows, kinds = [], {}
    for row, line in enumerate(sweep.lines):
        counts = [verdicts(line[v]) if v in line else Counter() for v in sweep.values]
        cs = list(dict.fromkeys(own.c for own in line.values()))
        c = cs[0] if len(cs) == 1 else f"{cs[0]} to {cs[-1]}"
        rows.append((sweep.name(line), c, *(majority(cell, words=words) for cell in counts)))
        for column, cell in enumerate(counts, 2):
            if cell:
                kinds[row, column] = f"verdict {verdict(cell.most_common(1)[0][0]).hue}"
    caption = f"Outcomes over {sweep.title} after {steps_of(sweep.groups)}"
    return Table(caption, (sweep.title, "c", *map(plain, sweep.values)), rows, kinds=kinds)


def map_chart(swept: Sequence[Sweep]) -> Chart:
    """How far from the ETF each method ends over every swept setting, with the verdicts."""
    unit = QUANTITIES["nc2_deviation"]
    ends = [_deviation(own) for sweep in swept for own in sweep.groups]
    seen = [value for value in ends if math.isfinite(value) and value > 0]
    limits = (min(seen), max(seen)) if seen else (0.1, 1.0)
    panels = []
    for sweep in swept:
        cells = [[line.get(value) for value in sweep.values] for line in sweep.lines]
        grid = Grid(
            np.array([[_deviation(own) for own in row] for row in cells]),
            limits,
            [sweep.name(line) for line in sweep.lines],
            list(map(plain, sweep.values)),
            log=True,
            texts=[[_sign(own) for own in row] for row in cells],
            unit=unit,
        )
        panels.append(Panel(sweep.title, f"{unit} over {sweep.title}.", [grid]))
    judged = any(sweep.judged for sweep in swept)
    signs = "      ".join(map(str, VERDICTS.values()))
    return Chart("map", "Where each method ends up", signs if judged else "", panels)


def _deviation(own: Group | None) -> float:
    return own.last("nc2_deviation").mean if own else math.nan


def _sign(own: Group | None) -> str:
    return next((verdict(v).sign for v, _ in verdicts(own).most_common(1)), "") if own else ""


def sweeps_html(swept: Sequence[Sweep]) -> str:
    """Return a chart, and a strip of verdicts if there are some, for each swept setting."""
    parts = [paragraph(MAPS + (SIGNS if any(sweep.judged for sweep in swept) else ""))]
    for sweep in swept:
        chart = sweep_chart(sweep)
        strip = to_html(verdict_table(sweep)) if sweep.judged else ""
        parts.append(f"<h3>{escape(chart.title)}</h3>\n{chart_html(chart)}\n{strip}")
    return "\n".join(parts)


def sweeps_sentence(swept: Sequence[Sweep]) -> Iterator[str]:
    """How often each method got each verdict over all swept settings."""
    counts: dict[str, Counter[str]] = {}
    for sweep in swept:
        for line in sweep.lines:
            for own in line.values():
                counts.setdefault(sweep.name(line), Counter()).update(verdicts(own))
    parts = [
        f"{name}: " + ", ".join(f"{verdict(v).word} {n}" for v, n in count.most_common())
        for name, count in counts.items()
        if count
    ]
    if parts:
        settings = f"{len(swept)} swept setting{'s'[: len(swept) != 1]}"
        yield f"Outcomes of runs over {settings}: {'; '.join(parts)}."
