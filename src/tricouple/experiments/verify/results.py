"""What a verification leaves behind: findings with a verdict and a figure, as JSON and back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

PROVED = "proved by the paper"
PROVED_HERE = "proved in docs/theory.md"
OBSERVATION = "observation"

Row = dict[str, str | int | float]


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
    """Return the largest number in some columns of a table."""
    return worst(float(row[column]) for row in rows for column in columns)


@dataclass(frozen=True)
class Series:
    """One line, or one cloud of points, of a figure."""

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    points: bool = False


@dataclass(frozen=True)
class Figure:
    """A chart as data.

    Attributes:
        title: What it shows, in a line.
        x_label: Name of the horizontal quantity.
        y_label: Name of the vertical quantity.
        series: What is drawn.
        alt: What the chart shows, in words, for those who do not see it.
        log_x: Whether the horizontal axis is logarithmic.
        log_y: Whether the vertical axis is logarithmic.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    alt: str
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Finding:
    """What an experiment measured.

    Attributes:
        residual: The one number that is compared with the tolerance.
        rows: The numbers behind it, all rows with the same columns.
        figure: The same as a picture.
    """

    residual: float
    rows: tuple[Row, ...]
    figure: Figure


@dataclass(frozen=True)
class Outcome:
    """A statement beside what was measured.

    Attributes:
        id: Short name, for the command line.
        words: The statement.
        reference: Where the paper says it, or that it does not.
        kind: Who proves it, if anyone does.
        residual_is: What the residual is, in words.
        residual: The number.
        tolerance: Largest residual at which the statement holds, None for an observation.
        rows: The numbers behind it.
        figure: The same as a picture.
    """

    id: str
    words: str
    reference: str
    kind: str
    residual_is: str
    residual: float
    tolerance: float | None
    rows: tuple[Row, ...]
    figure: Figure

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
        """The statements of the paper that this run contradicts."""
        return tuple(outcome for outcome in self.outcomes if outcome.verdict == "fails")

    def find(self, name: str) -> Outcome:
        """Return the outcome of a statement.

        Raises:
            KeyError: If this run did not test it.
        """
        for outcome in self.outcomes:
            if outcome.id == name:
                return outcome
        raise KeyError(name)

    def to_json(self) -> str:
        """Return the report as indented JSON; the verdicts are spelled out for other readers."""
        content = {
            "seed": self.seed,
            "statements": [
                {"verdict": outcome.verdict} | asdict(outcome) for outcome in self.outcomes
            ],
            "provenance": self.provenance,
        }
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


def _outcome(content: dict[str, Any]) -> Outcome:
    content.pop("verdict")  # it follows from the numbers
    drawn = dict(content.pop("figure"))
    series = tuple(
        Series(line["name"], tuple(line["x"]), tuple(line["y"]), line["points"])
        for line in drawn.pop("series")
    )
    rows = tuple(content.pop("rows"))
    residual = float(content.pop("residual"))  # "nan" and "inf" are words in JSON
    return Outcome(**content, residual=residual, rows=rows, figure=Figure(**drawn, series=series))


def _finite(value: Any) -> Any:
    """JSON has no word for infinity or NaN: they become strings that ``float`` reads back."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
