"""One run as a line of ``runs.jsonl``, and its embeddings as a snapshot file.

A record is ``{"id", "part", "config", "provenance", "status", "seconds", "verdict", "curves",
"spectrum"}``: ``config`` is flat, ``curves`` holds equally long lists (``step`` and the names in
``measure.CURVES``), ``spectrum`` the last eigenvalues of the class-mean covariance, descending.
``status`` is ``done``, ``partial`` (interrupted) or ``diverged`` (numbers ended). Numbers have five
significant digits; what is not finite is null. Runs with the same settings in several parts are
trained once: the copies have ``same_as``, the id of the original, and no seconds of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tricouple.data.gmm import class_sizes
from tricouple.experiments.synthetic.grid import Cell
from tricouple.experiments.synthetic.measure import CURVES, Measurement
from tricouple.experiments.synthetic.verdict import judge

N_SNAPSHOTS = 12
SNAPSHOT_SAMPLES = 500
DIGITS = 5


@dataclass
class RunInProgress:
    """Collects what a worker tells about one run."""

    cell: Cell
    seconds: float = 0.0
    points: list[Measurement] = field(default_factory=list)
    embeddings: list[npt.NDArray[np.float16]] = field(default_factory=list)

    def add(
        self, point: Measurement, seconds: float, embeddings: npt.NDArray[np.float16] | None
    ) -> None:
        """Take in one measurement; embeddings are kept while they are numbers."""
        self.points.append(point)
        self.seconds = seconds
        if embeddings is not None and point.finite:
            self.embeddings.append(embeddings)

    def record(self, provenance: dict[str, Any]) -> dict[str, Any]:
        """The run so far; whether it is done shows in its last step."""
        last = self.points[-1]
        losses = [point.loss for point in self.points]
        if not last.finite:
            status = "diverged"
        else:
            status = "done" if last.step == self.cell.config.steps else "partial"
        verdict = judge(losses, last.nc2_deviation, last.spectrum, self.cell.config.dim)
        return {
            "id": self.cell.id,
            "part": self.cell.part,
            "config": self.cell.config.flat(),
            "provenance": provenance,
            "status": status,
            "seconds": round(self.seconds, 2),
            "verdict": None if status == "partial" else verdict,
            "curves": {"step": [point.step for point in self.points]}
            | {name: [rounded(getattr(p, name)) for p in self.points] for name in CURVES},
            "spectrum": [rounded(value) for value in last.spectrum],
        }

    def snapshots(self) -> dict[str, npt.NDArray[Any]]:
        """Some of the kept embeddings: steps (S,), embeddings (S, n, dim) and labels (n,)."""
        steps = np.array([point.step for point in self.points if point.finite])
        chosen = np.unique(np.linspace(0, len(steps) - 1, N_SNAPSHOTS).round().astype(int))
        config = self.cell.config
        sizes = class_sizes(config.n_classes, config.per_class, config.imbalance)
        labels = np.arange(config.n_classes).repeat(sizes)
        return {
            "steps": steps[chosen],
            "embeddings": np.stack([self.embeddings[place] for place in chosen]),
            "labels": labels[snapshot_rows(len(labels))],
        }


def snapshot_rows(n_samples: int) -> slice:
    """Which samples a snapshot keeps: every k-th, at most 500.

    Samples lie class after class, so every class has some.

    Example:
        >>> snapshot_rows(1000)
        slice(None, None, 2)
    """
    return slice(None, None, -(-n_samples // SNAPSHOT_SAMPLES))


def rounded(value: float) -> float | None:
    """The number with five significant digits, None if it is not finite.

    Example:
        >>> rounded(0.123456789), rounded(float("nan"))
        (0.12346, None)
    """
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None
