"""What every experiment is given, the losses under test and a seed, and what becomes of it."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, TypeAlias

import torch
from torch import Tensor

from tricouple import DBOT, IOT, FusedGromov, InfoNCE, NegMMIOT, PushPull
from tricouple_lab.report.chart import Axis, Line, Panel

PROVED = "proved by the paper"
PROVED_HERE = "proved in docs/theory.md"
ACCURACY = "accuracy"
OBSERVATION = "observation"

FLOOR = 1e-17
"""Where a logarithmic axis shows zero and negative rounding errors."""

Row = dict[str, str | int | float]
NONE = "–"
"""What stands in a table where nothing is to be measured."""


def worst(values: Iterable[float]) -> float:
    """Return the largest value; infinity if one is not finite, or if there is none at all.

    ``max`` would overlook a NaN that is not the first value.

    Example:
        >>> worst([1.0, 2.0]), worst([1.0, math.nan]), worst([])
        (2.0, inf, inf)
    """
    measured = list(values)
    if not measured or not all(math.isfinite(value) for value in measured):
        return math.inf
    return max(measured)


def worst_of(rows: Iterable[Row], *columns: str) -> float:
    """Return the largest number in some columns of a table; a dash is no measurement."""
    return worst(float(row[name]) for row in rows for name in columns if row[name] != NONE)


def listed(sizes: Iterable[int]) -> str:
    """Class sizes as a table shows them."""
    return ", ".join(map(str, sizes))


def chart(
    title: str, axes: tuple[str, str], lines: Iterable[Line], alt: str = "", *, log: str = ""
) -> Panel:
    """Return a chart; the axes are x and y, and `log` has the names of the logarithmic ones."""
    x, y = axes
    across, up = Axis(x, log="x" in log, floor=FLOOR), Axis(y, log="y" in log, floor=FLOOR)
    return Panel(title, alt or f"{title}: {y} against {x}.", tuple(lines), across, up)


def numbered(name: str, values: Sequence[float]) -> Line:
    """Return a line of values above the numbers from 1."""
    return Line(name, tuple(map(float, range(1, len(values) + 1))), tuple(values))


def grouped(rows: Iterable[Row], name: str, x: str, y: str, *, points: bool = False) -> list[Line]:
    """Return one line of y against x for each text that `name` makes of a row: ``"ε = {ε:g}"``.

    An empty x is the number of the row within its line.
    """
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(name.format(**row), []).append(row)
    return [
        Line(
            text,
            tuple(float(row[x] if x else number) for number, row in enumerate(group, 1)),
            tuple(float(row[y]) for row in group),
            points=points,
        )
        for text, group in groups.items()
    ]


def by_row(rows: Sequence[Row], *columns: str) -> list[Line]:
    """Return columns of a table as points above the numbers of its rows."""
    return [line for name in columns for line in grouped(rows, name, "", name, points=True)]


@dataclass(frozen=True)
class Finding:
    """What an experiment measured."""

    residual: float  # the one number that is compared with the tolerance
    rows: Sequence[Row]  # the numbers behind it, all rows with the same columns
    figure: Panel  # the same as a chart


@dataclass(frozen=True)
class Claim:
    """A sentence that numbers can hold or contradict."""

    id: str  # short name, for the command line
    words: str  # the sentence
    reference: str  # where the paper says it, or that it does not
    residual_is: str  # what the residual is, in words
    tolerance: float | None  # largest residual at which it holds, None for an observation
    kind: str  # who proves it, or that it is about accuracy, or an observation


@dataclass(frozen=True)
class Outcome(Finding, Claim):
    """A statement beside what was measured."""

    @property
    def verdict(self) -> str:
        """``holds``, ``fails`` (also when the residual is not a number) or ``measured``."""
        if self.tolerance is None:
            return "measured"
        return "holds" if self.residual <= self.tolerance else "fails"


@dataclass(frozen=True)
class Report:
    """All outcomes of one run."""

    seed: int
    outcomes: tuple[Outcome, ...]
    provenance: dict[str, Any]

    @property
    def failed(self) -> tuple[Outcome, ...]:
        """The statements that this run contradicts."""
        return tuple(outcome for outcome in self.outcomes if outcome.verdict == "fails")

    def find(self, name: str) -> Outcome:
        """Return the outcome of a statement.

        Raises:
            KeyError: If this run did not test it.
        """
        return {outcome.id: outcome for outcome in self.outcomes}[name]

    def to_json(self) -> str:
        """Return the report as indented JSON; the verdicts are spelled out for other readers."""
        statements = [
            {"verdict": one.verdict} | vars(one) | {"figure": _drawn(one.figure)}
            for one in self.outcomes
        ]
        content = {"seed": self.seed, "statements": statements, "provenance": self.provenance}
        return json.dumps(_finite(content), indent=1, ensure_ascii=False, allow_nan=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Rebuild a report.

        Raises:
            ValueError: If the text is not the JSON of a report.
        """
        try:
            content = json.loads(text)
            outcomes = tuple(_outcome(dict(row)) for row in content["statements"])
            return cls(int(content["seed"]), outcomes, dict(content["provenance"]))
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ValueError(f"not the JSON of a verification: {error!r}") from error


def _drawn(panel: Panel) -> dict[str, Any]:
    lines = [line for line, _ in panel.lines]
    return {
        "title": panel.title,
        "x_label": panel.x.title,
        "y_label": panel.y.title,
        "series": [{"name": o.name, "x": o.x, "y": o.y, "points": o.points} for o in lines],
        "alt": panel.alt,
        "log_x": panel.x.log,
        "log_y": panel.y.log,
    }


def _outcome(content: dict[str, Any]) -> Outcome:
    content.pop("verdict")  # it follows from the numbers
    drawn = content.pop("figure")
    lines = [
        Line(line["name"], _numbers(line["x"]), _numbers(line["y"]), points=line["points"])
        for line in drawn["series"]
    ]
    log = "x" * drawn["log_x"] + "y" * drawn["log_y"]
    axes = (drawn["x_label"], drawn["y_label"])
    figure = chart(drawn["title"], axes, lines, drawn["alt"], log=log)
    rows = tuple(content.pop("rows"))
    residual = float(content.pop("residual"))  # "nan" and "inf" are words in JSON
    return Outcome(**content, residual=residual, rows=rows, figure=figure)


def _numbers(values: Iterable[float | str]) -> tuple[float, ...]:
    return tuple(map(float, values))


def _finite(value: Any) -> Any:
    """JSON has no word for infinity or NaN: they become strings that ``float`` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value


Criterion = Callable[[Tensor, Tensor], Tensor]
"""A loss of embeddings (N, d) and labels (N,)."""

Factory = Callable[..., Criterion]
"""What makes a loss from its options, as the classes of ``tricouple.losses`` do."""

TOLERANCE = 1e-13
"""Marginal error at which a coupling counts as converged."""

CONVERGED: dict[str, Any] = {"n_iters": 200, "tol": TOLERANCE}
"""More than enough sweeps for a soft loss to converge."""


MARGINALS = ("uniform", "target")


@dataclass(frozen=True)
class Losses:
    """The losses under test; replace one to see what the experiments say about another.

    Each takes the options of the class that is its default.
    """

    neg_mmiot: Factory = NegMMIOT
    push_pull: Factory = PushPull
    iot: Factory = IOT
    info_nce: Factory = InfoNCE
    dbot: Factory = DBOT
    fused_gromov: Factory = FusedGromov

    def triplets(self, sharpness: float, **options: Any) -> Criterion:
        """Neg-MMIOT, swept to convergence, with any other of its options."""
        fixed = {"temperature": 1.0, "epsilon": 1 / sharpness}
        return self.neg_mmiot(**{**fixed, **CONVERGED, **options})

    def pairs(self, sharpness: float, **options: Any) -> Criterion:
        """PushPull likewise."""
        epsilons = dict.fromkeys(("epsilon_pos", "epsilon_neg"), 1 / sharpness)
        return self.push_pull(**{"temperature": 1.0, **epsilons, **CONVERGED, **options})

    def at_sharpness(self, sharpness: float, marginals: str = "uniform") -> dict[str, Criterion]:
        """All losses with the same factor c in front of the similarities.

        τ and ε enter only as c = 1/(τε), so losses compared at equal τ and ε would differ in c.
        """
        epsilon = 1 / sharpness
        return {
            "Neg-MMIOT": self.triplets(sharpness, marginals=marginals),
            "PushPull": self.pairs(sharpness, marginals=marginals),
            "IOT": self.iot(epsilon=epsilon, marginals=marginals, **CONVERGED),
            "InfoNCE": self.info_nce(temperature=epsilon),
        }

    def with_marginals(self, sharpness: float) -> Iterator[tuple[str, str, Criterion]]:
        """Loss and marginals as a table names them, and the loss; InfoNCE, without any, once."""
        for kind in MARGINALS:
            for name, criterion in self.at_sharpness(sharpness, kind).items():
                if name != "InfoNCE":
                    yield name, kind, criterion
                elif kind == "uniform":
                    yield name, NONE, criterion


@dataclass(frozen=True)
class Setting:
    """The losses under test and the seed of all random numbers."""

    seed: int = 0
    losses: Losses = field(default_factory=Losses)

    def generator(self, name: str) -> torch.Generator:
        """Return a source of random numbers of its own for each experiment.

        So an experiment measures the same alone as in the company of others.
        """
        return torch.Generator().manual_seed(self.seed + zlib.crc32(name.encode()))


Measured: TypeAlias = Iterator[Row | Line]
"""What an experiment yields: rows of its table, and lines of its chart."""


def experiment(
    title: str,
    axes: tuple[str, str],
    alt: str = "",
    *,
    log: str = "",
    residual: Sequence[str] | Callable[[list[Row]], float],
    lines: Callable[[list[Row]], Iterable[Line]] = lambda rows: (),
) -> Callable[[Callable[[Setting], Measured]], Callable[[Setting], Finding]]:
    """Make a finding of what a function measures.

    The first four arguments are those of ``chart``; the residual is the worst number of some
    columns, or what a function makes of the rows; `lines` draws rows, after the lines yielded.
    """

    def decorate(measure: Callable[[Setting], Measured]) -> Callable[[Setting], Finding]:
        @wraps(measure)
        def run(setting: Setting) -> Finding:
            found = list(measure(setting))
            rows = [one for one in found if isinstance(one, dict)]
            drawn = [one for one in found if isinstance(one, Line)]
            figure = chart(title, axes, [*drawn, *lines(rows)], alt, log=log)
            value = residual(rows) if callable(residual) else worst_of(rows, *residual)
            return Finding(value, rows, figure)

        return run

    return decorate
