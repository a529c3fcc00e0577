"""Sweeps over one setting: where each method ends, as numbers and as verdicts of the study."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from tricouple.report.read import Run, Study, StudyError
from tricouple.report.seeds import last
from tricouple.report.statistics import MeanStd
from tricouple.report.synthetic.groups import check, rank

PREFIX = "maps/"


@dataclass(frozen=True)
class Point:
    """One value of the swept setting: all seeds of a method there."""

    value: Any
    runs: tuple[Run, ...]

    def final(self, name: str) -> MeanStd:
        """The last value of a quantity over the finished seeds."""
        return last(self.runs, name)

    @property
    def verdicts(self) -> Counter[str]:
        """How often the study gave each verdict here."""
        return Counter(run.verdict for run in self.runs if run.verdict is not None)


@dataclass(frozen=True)
class Line:
    """One method along an axis; K is None where K itself is the axis."""

    method: str
    shaping: str | None
    n_classes: int | None
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Sweep:
    """One axis: the name of the setting, its values in order, and the methods along it."""

    axis: str
    values: tuple[Any, ...]
    lines: tuple[Line, ...]

    @property
    def numeric(self) -> bool:
        """Whether the values are numbers."""
        return all(isinstance(value, (int, float)) for value in self.values)

    @property
    def logarithmic(self) -> bool:
        """Whether the values call for a logarithmic axis: positive and 20-fold or more."""
        return self.numeric and self.values[0] > 0 and self.values[-1] >= 20 * self.values[0]

    @property
    def judged(self) -> bool:
        """Whether the study gave verdicts."""
        return any(point.verdicts for line in self.lines for point in line.points)


def read_sweeps(study: Study) -> tuple[Sweep, ...]:
    """Gather the runs of every "maps/<axis>" part."""
    parts = dict.fromkeys(run.part for run in study.runs if run.part.startswith(PREFIX))
    return tuple(_sweep(part.removeprefix(PREFIX), study.part(part)) for part in parts)


def _sweep(axis: str, runs: tuple[Run, ...]) -> Sweep:
    found: dict[tuple[int, str | None, str], dict[Any, list[Run]]] = {}
    for run in runs:
        check(run)
        value = run.config.get(axis)
        if not isinstance(value, (int, float, str)):
            raise StudyError(
                f"runs.jsonl, line {run.line}: run {run.id} is part of {PREFIX}{axis}, "
                f"but its config gives {axis} as {value!r}"
            )
        n_classes = 0 if axis == "n_classes" else run.config["n_classes"]
        key = (n_classes, run.config.get("shaping"), run.config["method"])
        found.setdefault(key, {}).setdefault(value, []).append(run)
    values = {value for line in found.values() for value in line}
    numeric = all(isinstance(value, (int, float)) for value in values)
    order = sorted(values, key=None if numeric else str)
    lines = [
        Line(
            method,
            shaping,
            n_classes or None,
            tuple(Point(value, tuple(own[value])) for value in order if value in own),
        )
        for (n_classes, shaping, method), own in sorted(
            found.items(), key=lambda item: (item[0][0], *rank(item[0][2], item[0][1]))
        )
    ]
    return Sweep(axis, tuple(order), tuple(lines))
