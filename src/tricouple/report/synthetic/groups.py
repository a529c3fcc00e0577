"""Runs that differ only in their seed, and their mean ± standard deviation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tricouple.report.panel import Choice
from tricouple.report.read import Run, StudyError
from tricouple.report.seeds import curve_over, finished, first, last
from tricouple.report.statistics import Curve, MeanStd, band, directions, normalised
from tricouple.report.words import METHODS, SHAPINGS


@dataclass(frozen=True)
class Group:
    """The seeds of one method at one K and one ψ (None for a loss that has no ψ)."""

    method: str
    shaping: str | None
    n_classes: int
    runs: tuple[Run, ...]

    @property
    def finished(self) -> tuple[Run, ...]:
        """The runs that came to their end: the ones whose last value is a result."""
        return finished(self.runs)

    @property
    def shown(self) -> tuple[Run, ...]:
        """The runs to draw: the finished ones, or what there is until one has finished."""
        return self.finished or self.runs

    def choice(self, *, of_classes: bool = True) -> Choice:
        """The choices under which it is shown; a loss without ψ is shown for every ψ."""
        when = {"n_classes": str(self.n_classes)} if of_classes else {}
        return when | ({} if self.shaping is None else {"shaping": self.shaping})

    def final(self, name: str) -> MeanStd:
        """The last value of a quantity over the finished seeds.

        "directions" is read off the spectrum: how many of them the class means fill.
        """
        if name == "directions":
            spectra = [run.spectrum for run in self.finished if len(run.spectrum)]
            return MeanStd.of(np.array([directions(spectrum) for spectrum in spectra]))
        return last(self.runs, name)

    def first(self, name: str) -> MeanStd:
        """The first recorded value of a quantity over the finished seeds."""
        return first(self.runs, name)

    @property
    def verdicts(self) -> Counter[str]:
        """How often the study gave each verdict to these seeds."""
        return Counter(run.verdict for run in self.runs if run.verdict is not None)

    def curve(self, name: str) -> Curve:
        """A quantity over training; at each step over the seeds that recorded it."""
        return curve_over(self.shown, name)

    def spectrum(self) -> Curve:
        """Eigenvalues over the largest one, by position from 1."""
        spectra = [run.spectrum for run in self.shown if len(run.spectrum)]
        length = max((len(spectrum) for spectrum in spectra), default=0)
        rows = [
            np.pad(normalised(s), (0, length - len(s)), constant_values=np.nan) for s in spectra
        ]
        return band(np.arange(1.0, length + 1), np.array(rows).reshape(len(spectra), length))


def group(runs: Iterable[Run]) -> tuple[Group, ...]:
    """Gather the seeds of every (K, ψ, method), in this order."""
    found: dict[tuple[int, str | None, str], list[Run]] = {}
    for run in runs:
        check(run)
        cell = (run.config["n_classes"], run.config.get("shaping"), run.config["method"])
        found.setdefault(cell, []).append(run)
    groups = [
        Group(method, shaping, n_classes, tuple(sorted(seeds, key=lambda r: r.config["seed"])))
        for (n_classes, shaping, method), seeds in found.items()
    ]
    return tuple(sorted(groups, key=lambda g: (g.n_classes, *rank(g.method, g.shaping))))


def methods_of(groups: Iterable[Group]) -> tuple[str, ...]:
    """The methods of some groups, each once, in their order."""
    return tuple(dict.fromkeys(group.method for group in groups))


def check(run: Run) -> None:
    """Refuse a run that does not say what it is a run of."""
    for key, kind in {"method": str, "n_classes": int, "seed": int}.items():
        if not isinstance(run.config.get(key), kind):
            raise StudyError(
                f"runs.jsonl, line {run.line}: config of run {run.id} needs {key} "
                f"({kind.__name__}), found {run.config.get(key)!r}"
            )


def rank(method: str, shaping: str | None) -> tuple[int, int, str]:
    """Sort methods: the usual ψ (and losses without one) first, then the order of METHODS."""
    methods, shapings = list(METHODS), list(SHAPINGS)
    usual = 0 if shaping is None else len(shapings)
    return (
        shapings.index(shaping) if shaping in shapings else usual,
        methods.index(method) if method in methods else len(methods),
        method,
    )
