"""What a batch costs over several processes, here and by a model of larger machines.

A step of R processes on N samples of d dimensions takes

    (α·d + β)·N²/R / speed  +  M·2·log₂(R)·hop  +  sent/bandwidth:

its arithmetic, shared; the latency of M collectives, each of which goes up and down a tree; and the
bytes of a ring, ``4·N·(x·d + y)·(R − 1)/R``. Bare all-reduces give hop and bandwidth of this
machine, counted bytes give x and y, and what is left of the measured steps gives α and β. A
process needs ``4·(k·N²/R + e·N·d)`` bytes, for its share of k matrices and for e matrices of all
embeddings, which measured peaks give.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tricouple_lab.experiments.bench.contenders import OURS
from tricouple_lab.experiments.bench.measure import Measurement, Report
from tricouple_lab.experiments.bench.processes import NETWORK
from tricouple_lab.report.numbers import number
from tricouple_lab.report.tables import Table

Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Machine:
    """Devices and what connects them."""

    name: str
    hop: float  # seconds that a message takes to the next process
    bandwidth: float  # bytes a second that a process sends
    speed: float = 1.0  # of a device, in cores of the machine that was measured


# Round numbers of common hardware, for which nothing was measured here.
ASSUMED = (
    Machine("nodes", 2e-5, 3e9, 32.0),
    Machine("accelerators", 5e-6, 2.5e10, 200.0),
)

# Processes and N: a batch that more and more processes share, and one that grows with them.
CASES = (
    *((ranks, 32768) for ranks in (8, 64, 1024)),
    *((ranks, 1024 * ranks) for ranks in (8, 64, 1024)),
)
DIM = 512

UNFITTED = "A model of larger machines needs two sizes and two dimensions."


@dataclass(frozen=True)
class Step:
    """Time and memory of one process in a step."""

    arithmetic: float  # seconds
    latency: float
    transfer: float
    kernels: float  # bytes of its share of the matrices
    embeddings: float  # bytes of all embeddings and their like, which every process has

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.arithmetic + self.latency + self.transfer

    @property
    def limit(self) -> str:
        """What takes longest."""
        parts = ("arithmetic", "latency", "transfer")
        return max(parts, key=lambda name: float(getattr(self, name)))


@dataclass(frozen=True)
class Model:
    """The fitted numbers of a loss."""

    machine: Machine
    messages: float  # M
    x: float  # how many times all embeddings are sent
    y: float  # further numbers sent for each sample
    matrices: float  # k, N×N float32 matrices that all processes have together
    copies: float  # e, N×d float32 matrices that each process has
    alpha: float = 0.0  # seconds for a dimension of a pair
    beta: float = 0.0  # seconds for a pair
    error: float = 0.0  # the largest relative error of a measured time
    # Times measured with several processes a core, over the model's.
    crowded: tuple[float, ...] = ()

    @classmethod
    def of(cls, report: Report) -> Model | None:
        """Fit our loss; None where a report has not two sizes and two dimensions.

        More processes than cores wait for each other: their times are not fitted, but compared.
        """
        cores = report.provenance["cores"]
        rows = [row for row in report.measurements if row.processes > 1 and row.seconds]
        every = [row for row in rows if row.contender == OURS and row.dim]
        steps = [row for row in every if row.processes <= cores]
        network = [row for row in rows if row.contender == NETWORK and row.processes <= cores]
        if len({row.size for row in steps}) < 2 or len({row.dim for row in steps}) < 2:
            return None
        delays = [(2 * math.log2(row.processes), row.sent_bytes or 0) for row in network]
        hop, slowness = _fit(delays, [row.seconds or 0.0 for row in network])
        sent = [
            (row.sent_bytes or 0) / (4 * row.size) * row.processes / (row.processes - 1)
            for row in steps
        ]
        weighed = [row for row in every if row.extra_bytes]
        parts = [(row.size**2 / row.processes, row.size * (row.dim or 0)) for row in weighed]
        numbers = [(row.extra_bytes or 0) / 4 for row in weighed]
        model = cls(
            Machine("these cores", hop, 1 / max(slowness, 1e-12)),
            float(np.mean([row.messages or 0 for row in steps])),
            *_fit([(row.dim or 0, 1.0) for row in steps], sent),
            *(_fit(parts, numbers) if weighed else (math.nan, math.nan)),
        )
        shares = [row.size**2 / row.processes for row in steps]  # pairs of a process
        pairs = [(n * (row.dim or 0), n) for n, row in zip(shares, steps, strict=True)]
        alpha, beta = _fit(pairs, (_seconds(steps) - model._times(steps, cores)).tolist())
        model = replace(model, alpha=alpha, beta=beta)
        error = np.abs(model._times(steps, cores) / _seconds(steps) - 1).max()
        others = [row for row in every if row.processes > cores]
        crowded = tuple((_seconds(others) / model._times(others, cores)).tolist())
        return replace(model, error=float(error), crowded=crowded)

    def _times(self, rows: Sequence[Measurement], cores: int) -> Numbers:
        """What measured steps would take: of R processes on C < R cores each has C/R of one."""
        found = []
        for row in rows:
            crowded = replace(self.machine, speed=min(1.0, cores / row.processes))
            found.append(self.at(row.processes, row.size, row.dim or 0, crowded).seconds)
        return np.array(found)

    def at(self, ranks: int, size: int, dim: int, machine: Machine | None = None) -> Step:
        """The step of a batch on a machine, by default on the one that was measured."""
        machine = machine or self.machine
        sent = 4 * size * (self.x * dim + self.y) * (ranks - 1) / ranks
        return Step(
            (self.alpha * dim + self.beta) * size**2 / ranks / machine.speed,
            self.messages * 2 * math.log2(ranks) * machine.hop,
            sent / machine.bandwidth,
            4 * self.matrices * size**2 / ranks,
            4 * self.copies * size * dim,
        )


def _seconds(rows: Sequence[Measurement]) -> Numbers:
    return np.array([row.seconds or math.nan for row in rows])


def _fit(terms: Sequence[Sequence[float]], values: Sequence[float]) -> tuple[float, float]:
    """Two coefficients ≥ 0 of least relative squares."""
    scale = np.maximum(np.asarray(values, float), 1e-12)
    scaled = np.asarray(terms, float) / scale[:, None]
    first, second = np.linalg.lstsq(scaled, np.ones(len(scale)), rcond=None)[0]
    if min(first, second) >= 0:
        return float(first), float(second)
    alone = [float(column.sum() / (column @ column)) for column in scaled.T]
    return (alone[0], 0.0) if second < 0 else (0.0, alone[1])


def shared_tables(report: Report) -> list[Table]:
    """Return what a step costs over each number of processes, and what larger machines would do."""
    rows = [row for row in report.measurements if row.dim]
    counts = sorted({row.processes for row in rows})
    found = [_table(count, [row for row in rows if row.processes == count]) for count in counts]
    model = Model.of(report)
    if model is not None:
        return [*found, _model_table(model)]
    last = found[-1]
    note = f"{last.note}. {UNFITTED}" if last.note else UNFITTED
    return [*found[:-1], replace(last, note=note)]


def _table(processes: int, rows: Sequence[Measurement]) -> Table:
    sizes, dims = sorted({row.size for row in rows}), sorted({row.dim or 0 for row in rows})
    by = {(row.contender, row.size, row.dim): row for row in rows}
    cells = []
    for name in dict.fromkeys(row.contender for row in rows):
        unmeasured = Measurement(name, "", 0)
        cases = [by.get((name, size, dim), unmeasured) for size in sizes for dim in dims]
        largest = cases[-len(dims) :]
        times = (_number(row.seconds, 1e3) for row in cases)
        memory = (_number(row.extra_matrices) for row in largest)
        sent = (_number(row.sent_bytes, 2**-20) for row in largest)
        cells.append((name, *times, *memory, *sent, str(largest[-1].messages or "–")))
    each = [f"d = {dim}" for dim in dims]
    head = ("", *(f"N = {size}, {dim}" for size in sizes for dim in each), *each, *each, "messages")
    widths = (("", 1), ("ms", len(sizes) * len(dims)), ("N²", len(dims)), ("MiB sent", len(dims)))
    notes = sorted({f"{row.contender}: {row.note}" for row in rows if row.note})
    return Table(
        f"{processes} processes of one thread: best time of value and gradient; at N = {sizes[-1]} "
        "the extra memory of a process, in N×N float32 matrices, what it sends, and messages",
        head,
        cells,
        spans=widths,
        note="; ".join(notes),
    )


def _number(value: float | None, scale: float = 1.0) -> str:
    return number(math.nan if value is None else value * scale)


def _model_table(model: Model) -> Table:
    rows = []
    for machine in (model.machine, *ASSUMED):
        for ranks, size in CASES:
            step = model.at(ranks, size, DIM, machine)
            times = (step.seconds, step.arithmetic, step.latency, step.transfer)
            sizes = (number(part / 2**20) for part in (step.kernels, step.embeddings))
            case = machine.name, str(ranks), str(size)
            rows.append((*case, *(number(1e3 * time) for time in times), *sizes, step.limit))
    here = model.machine
    titles = ("", "R", "N", "step", "arithmetic", "latency", "transfer", "kernels", "embeddings")
    others = "; ".join(
        f"{machine.name} of {machine.speed:.0f} of these cores, {1e6 * machine.hop:.0f} µs a hop, "
        f"{machine.bandwidth / 1e9:.0f} GB/s"
        for machine in ASSUMED
    )
    crowded = ""
    if model.crowded:
        least, most = (number(found(model.crowded)) for found in (min, max))
        crowded = f"; several processes a core, not fitted, took {least} to {most} times as long"
    return Table(
        f"{OURS} on larger machines by the model, d = {DIM}, in ms and MiB of a process",
        (*titles, "limit"),
        rows,
        note=(
            f"Fitted: {model.alpha:.2e} s for a dimension of a pair and {model.beta:.2e} s for a "
            f"pair, {model.messages:.0f} collectives, {1e6 * here.hop:.0f} µs a hop, "
            f"{here.bandwidth / 1e9:.2f} GB/s; {model.x:.2f}·d + {model.y:.0f} numbers sent for a "
            f"sample; {model.matrices:.2f} matrices of N×N shared, {model.copies:.2f} of N×d in "
            f"each process. Measured times are met to {100 * model.error:.0f} %{crowded}. The "
            f"other machines are assumed: {others}."
        ),
    )
