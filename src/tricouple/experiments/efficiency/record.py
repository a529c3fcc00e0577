"""What a benchmark run leaves behind: measurements with their provenance, as JSON and back."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

from tricouple import __version__
from tricouple.experiments.efficiency.problem import Problem

PACKAGES = ("torch", "numpy", "pytorch-metric-learning", "jax", "ott-jax", "POT")


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


def collect_provenance() -> dict[str, Any]:
    """Return what is needed to judge or repeat a measurement on this machine.

    Called before the run: ``load`` then tells how busy others kept the machine.
    """
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["tricouple", *sys.argv[1:]]),
        "commit": git_commit(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "load": os.getloadavg()[0],
        "versions": {"tricouple": __version__} | {name: installed(name) for name in PACKAGES},
    }


def installed(package: str) -> str | None:
    """Return the version of an installed package, None if it is missing."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def cpu_model() -> str:
    """Return the processor's name where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())


def git_commit() -> str | None:
    """Return the commit of the sources, marked if they were changed since, None outside git."""
    here = Path(__file__)
    try:
        # An installed copy may lie inside the checkout of another project: not ours to name.
        git(here.parent, "ls-files", "--error-unmatch", here.name)
        return git(here.parent, "describe", "--always", "--abbrev=40", "--dirty", "--exclude=*")
    except (OSError, subprocess.CalledProcessError):
        return None


def git(folder: Path, *words: str) -> str:
    """Return what a git command says in a folder."""
    command = ["git", *words]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()
