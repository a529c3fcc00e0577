"""What a benchmark run leaves behind: measurements with their provenance, as JSON and back."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from tricouple.experiments.bench.problem import Problem


@dataclass(frozen=True)
class Measurement:
    """One contender at one batch size; None where it was not measured, with the reason noted.

    Attributes:
        contender: Name of the contender.
        task: What it does; contenders are comparable within a task.
        size: N, the batch size.
        seconds: Best time of a call.
        median_seconds: Median time of a call.
        calls: Number of timed calls.
        peak_bytes: Peak resident memory of a process that does this call and nothing else.
        extra_bytes: The part of the peak above imports and inputs.
        note: Why something is missing, for example "not installed".
    """

    contender: str
    task: str
    size: int
    seconds: float | None = None
    median_seconds: float | None = None
    calls: int = 0
    peak_bytes: int | None = None
    extra_bytes: int | None = None
    note: str = ""

    @property
    def extra_matrices(self) -> float | None:
        """Extra memory in units of an N×N float32 matrix."""
        return None if self.extra_bytes is None else self.extra_bytes / (4 * self.size**2)


@dataclass(frozen=True)
class Report:
    """All measurements of one run."""

    problem: Problem
    measurements: tuple[Measurement, ...]
    provenance: dict[str, Any]

    def find(self, contender: str, size: int) -> Measurement | None:
        """Return the measurement of a contender at a size, if there is one."""
        for measurement in self.measurements:
            if (measurement.contender, measurement.size) == (contender, size):
                return measurement
        return None

    def sizes(self) -> tuple[int, ...]:
        """Return the batch sizes that occur, increasing."""
        return tuple(sorted({measurement.size for measurement in self.measurements}))

    def to_json(self) -> str:
        """Return the report as indented JSON."""
        return json.dumps(asdict(self), indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Rebuild a report.

        Raises:
            ValueError: If the text is not the JSON of a report.
        """
        try:
            content = json.loads(text)
            return cls(
                problem=Problem(**content["problem"]),
                measurements=tuple(Measurement(**row) for row in content["measurements"]),
                provenance=dict(content["provenance"]),
            )
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not the JSON of a benchmark report: {error!r}") from error
