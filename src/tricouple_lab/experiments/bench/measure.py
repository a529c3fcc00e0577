"""The benchmark itself: which contender meets which size, timed together, weighed alone.

Peak memory is that of one call in a fresh process that does nothing else: it imports, builds the
batch, warms up on a tiny batch, and notes its resident memory; the peak above that during one call
at full size is the extra memory of the call. On Linux the kernel's own high-water mark (VmHWM) is
reset and read: unlike ``ru_maxrss`` it is not inherited from the parent process and forgets what
the imports once needed.
"""

from __future__ import annotations

import gc
import json
import math
import resource
import subprocess
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from pathlib import Path
from statistics import median
from typing import Any

from tricouple_lab.experiments.bench.contenders import BY_NAME, CONTENDERS, Contender
from tricouple_lab.experiments.bench.problem import (
    BASELINE,
    TRAINING_STEP,
    AnyStep,
    ClipStep,
    Problem,
    VisionStep,
    make_batch,
    training_steps,
)

Step = Callable[[], object]

# A matrix below this size is lost in the noise of an allocator that works in pages and arenas.
SMALLEST_WEIGHED = 1024

WARM_UP_SIZE = 32

# A call of so many seconds needs no warming up and is not repeated.
LONG = 60.0

# What a contender may fail with at one size without spoiling the rest of the run.
RUN_FAILURES = (RuntimeError, MemoryError)


@dataclass(frozen=True)
class Effort:
    """Sizes and effort of a run."""

    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    largest_cubic: int = 256
    rounds: int = 5
    seconds_per_round: float = 0.3
    memory: bool = True
    only: tuple[str, ...] = ()  # patterns of names; none for all

    @property
    def total(self) -> int:
        """How many measurements there will be, 0 if no contender runs."""
        return sum(self.meets(contender, size) for size in self.sizes for contender in CONTENDERS)

    def names(self, name: str) -> bool:
        """Whether a contender of this name runs."""
        return not self.only or any(fnmatch(name, pattern) for pattern in self.only)

    def meets(self, contender: Contender, size: int) -> bool:
        """Whether this contender runs at this size."""
        if not self.names(contender.name):
            return False
        largest = self.largest_cubic if contender.cubic else contender.largest
        return contender.smallest <= size <= largest

    def weighs(self, contender: Contender, size: int) -> bool:
        """Whether this contender's memory is measured at this size."""
        large_enough = contender.cubic or size >= SMALLEST_WEIGHED
        return self.memory and self.meets(contender, size) and large_enough


# A run of seconds that exercises everything but the memory processes.
QUICK = Effort(sizes=(32, 64), rounds=2, seconds_per_round=0.02, memory=False)


@dataclass(frozen=True)
class Measurement:
    """One contender at one batch size; None where it was not measured, with the reason noted."""

    contender: str  # name of the contender
    task: str  # what it does; contenders are comparable within a task
    size: int  # N, the batch size
    seconds: float | None = None  # best time of a call
    median_seconds: float | None = None  # median time of a call
    calls: int = 0  # number of timed calls
    # Peak resident memory of a process that does this call and nothing else.
    peak_bytes: int | None = None
    extra_bytes: int | None = None  # the part of the peak above imports and inputs
    note: str = ""  # why something is missing, for example "not installed"
    # Over several processes: how many, d, and what one of them sends in a call.
    processes: int = 1
    dim: int | None = None
    messages: int | None = None
    sent_bytes: int | None = None

    @property
    def extra_matrices(self) -> float | None:
        """Extra memory in units of an N×N float32 matrix."""
        return None if self.extra_bytes is None else self.extra_bytes / (4 * self.size**2)

    def timed(self, durations: Sequence[float]) -> Measurement:
        """Return the same with the best and the median of some calls: noise only adds time."""
        best, typical = min(durations), median(durations)
        return replace(self, seconds=best, median_seconds=typical, calls=len(durations))


@dataclass(frozen=True)
class Report:
    """All measurements of one run, as JSON and back."""

    problem: Problem | AnyStep
    measurements: tuple[Measurement, ...]
    provenance: dict[str, Any]

    def find(self, contender: str, size: int) -> Measurement | None:
        """Return the first measurement of a contender at a size, if there is one."""
        found = (row for row in self.measurements if row.contender == contender)
        return next((row for row in found if row.size == size), None)

    @property
    def shared(self) -> bool:
        """Whether several processes share a batch."""
        return any(row.processes > 1 for row in self.measurements)

    def over(self, processes: int, size: int, dim: int | None = None) -> list[Measurement]:
        """Return the losses measured over so many processes, of one d or of all."""
        wanted = (processes, size)
        found = [row for row in self.measurements if (row.processes, row.size) == wanted]
        return [row for row in found if row.dim and dim in (None, row.dim)]

    def ratio(self, contender: str, other: str, size: int) -> float | None:
        """Return how many times as long a contender takes as another, None if not measured."""
        found, base = self.find(contender, size), self.find(other, size)
        if found is None or base is None or found.seconds is None or base.seconds is None:
            return None
        return found.seconds / base.seconds

    def largest_weighed(self, contender: str) -> Measurement | None:
        """Return the measurement of a contender's memory at the largest size that has one."""
        rows = [row for row in self.measurements if row.contender == contender and row.extra_bytes]
        return max(rows, key=lambda row: row.size, default=None)

    def sizes(self) -> tuple[int, ...]:
        """Return the batch sizes that occur, increasing."""
        return tuple(sorted({measurement.size for measurement in self.measurements}))

    def to_json(self) -> str:
        """Return the report as indented JSON; a training step has a form of its own."""
        content = asdict(self)
        if not isinstance(self.problem, Problem):
            times = [
                {
                    "loss": row.contender,
                    "best": row.seconds,
                    "median": row.median_seconds,
                    "ratio": self.ratio(row.contender, BASELINE, row.size),
                }
                for row in self.measurements
            ]
            content = {"plan": content["problem"], "times": times, "provenance": self.provenance}
        return json.dumps(content, indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Report:
        """Rebuild a report.

        Raises:
            ValueError: If the text is not the JSON of a report.
        """
        try:
            content = json.loads(text)
            problem: Problem | AnyStep
            if "plan" in content:
                plan = content["plan"]
                problem = (ClipStep if "model" in plan else VisionStep)(**plan)
                of = (TRAINING_STEP, problem.batch_size)
                found = [
                    Measurement(row["loss"], *of, row["best"], row["median"], problem.rounds)
                    for row in content["times"]
                ]
            else:
                problem = Problem(**content["problem"])
                found = [Measurement(**row) for row in content["measurements"]]
            return cls(problem, tuple(found), dict(content["provenance"]))
        except (KeyError, TypeError, json.JSONDecodeError) as error:
            raise ValueError(f"not the JSON of a benchmark report: {error!r}") from error


def measure(
    effort: Effort, problem: Problem, on_turn: Callable[[str], None] = lambda text: None
) -> Iterator[Measurement]:
    """Yield the measurement of every contender at every size, size by size.

    A progress display is told, by `on_turn`, what happens next.
    """
    for size in effort.sizes:
        contenders = [contender for contender in CONTENDERS if effort.meets(contender, size)]
        timed = time_size(contenders, size, effort, problem, on_turn)
        for contender, measurement in zip(contenders, timed, strict=True):
            if effort.weighs(contender, size) and measurement.seconds is not None:
                on_turn(f"N={size} memory of {contender.name}")
                try:
                    found = asdict(measure_memory(contender.name, size, problem))
                except RUN_FAILURES as error:
                    found = {"note": f"memory not measured: {error}"}
                measurement = replace(measurement, **found)
            yield measurement


def measure_steps(
    setup: AnyStep, on_turn: Callable[[str], None] = lambda loss: None
) -> tuple[Measurement, ...]:
    """Time training steps with every loss, in interleaved rounds."""
    steps = training_steps(setup)
    for step in steps.values():
        step()
    timed = time_together(steps, setup.rounds, 0.0, on_turn)
    return tuple(
        Measurement(name, TRAINING_STEP, setup.batch_size).timed(durations)
        for name, durations in timed.items()
    )


@contextmanager
def unconverged_on_purpose() -> Iterator[None]:
    """The sweeps of the problem are timed, whether or not the plan has converged."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message='gradient="implicit"')
        yield


@unconverged_on_purpose()
def time_size(
    contenders: list[Contender],
    size: int,
    effort: Effort,
    problem: Problem,
    on_turn: Callable[[str], None],
) -> list[Measurement]:
    """Time all contenders of one size in interleaved rounds, in the order given."""
    batch = make_batch(size, problem)
    results: dict[str, Measurement] = {}
    steps: dict[str, Step] = {}
    for contender in contenders:
        name, note = contender.name, obstacle_to(contender, size, problem)
        results[name] = Measurement(name, contender.task, size, note=note)
        if note:
            continue
        on_turn(f"N={size} preparing {name}")
        try:
            step = contender.prepare(batch, problem)
            seconds = time_call(step)
        except RUN_FAILURES as error:
            results[name] = replace(results[name], note=f"failed: {error}")
            continue
        if seconds > LONG:
            results[name] = results[name].timed([seconds])
        else:
            steps[name] = step
    turns = effort.rounds, effort.seconds_per_round
    timed = time_together(steps, *turns, lambda name: on_turn(f"N={size} {name}"))
    for name, durations in timed.items():
        results[name] = results[name].timed(durations)
    return list(results.values())


def time_together(
    steps: Mapping[str, Step],
    rounds: int,
    seconds_per_round: float,
    on_turn: Callable[[str], None] = lambda name: None,
    clock: Callable[[Step], float] | None = None,
    budget: float = math.inf,
) -> dict[str, list[float]]:
    """Time all steps in interleaved rounds.

    In each round every step has a turn of several calls, so that a slow minute of the machine hits
    all of them alike. The order rotates from round to round: no step always follows the same one.
    The first call of a turn finds the caches and the other libraries' thread pools as the previous
    contender left them; it is not counted, unless it alone fills the turn: then that is negligible.
    The steps are expected to have been called once already. The clock is `time_call` unless given.
    A step whose counted calls have taken the budget, in seconds, has no more turns.

    Returns:
        The durations of all counted calls in seconds, by name.
    """
    clock = clock or time_call
    durations: dict[str, list[float]] = {name: [] for name in steps}
    order = deque(steps)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order:
                if sum(durations[name]) >= budget:
                    continue
                on_turn(name)
                first = clock(steps[name])
                calls = int(seconds_per_round / first)
                durations[name] += [clock(steps[name]) for _ in range(calls)] or [first]
            order.rotate(-1)
    finally:
        gc.enable()
    return durations


def time_call(step: Step) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def obstacle_to(contender: Contender, size: int, problem: Problem) -> str:
    """Return why a contender cannot run at a size, an empty text if it can."""
    if not contender.installed:
        return "not installed"
    needed, available = contender.bytes_at_most(size, problem), available_bytes()
    if available is not None and needed > available:
        return f"skipped: may need {needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are free"
    return ""


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PeakMemory:
    """Peak resident memory of a process, and the part of it due to one call."""

    peak_bytes: int
    extra_bytes: int


def peak_memory_of(step: Callable[[], object]) -> PeakMemory:
    """Call `step` once and return the peak of this process during it."""
    with suppress(OSError):  # where the system can set the high-water mark to the current use
        Path("/proc/self/clear_refs").write_text("5")
    before = resident_bytes("VmRSS")
    step()
    peak = resident_bytes("VmHWM")
    return PeakMemory(peak_bytes=peak, extra_bytes=max(0, peak - before))


def measure_memory(contender: str, size: int, problem: Problem) -> PeakMemory:
    """Measure a contender in a fresh process.

    Raises:
        RuntimeError: If the process failed, with the last line that it said.
    """
    request = json.dumps({"contender": contender, "size": size, "problem": asdict(problem)})
    done = subprocess.run(
        [sys.executable, "-m", __name__], input=request, capture_output=True, text=True
    )
    if done.returncode != 0:
        said = done.stderr.strip().splitlines() or [f"exit code {done.returncode}"]
        raise RuntimeError(said[-1])
    return PeakMemory(**json.loads(done.stdout))


def answer(request: str) -> str:
    """Do in this process what `measure_memory` asked for."""
    asked = json.loads(request)
    problem = Problem(**asked["problem"])
    prepare = BY_NAME[asked["contender"]].prepare
    prepare(make_batch(WARM_UP_SIZE, problem), problem)()
    step = prepare(make_batch(asked["size"], problem), problem)
    return json.dumps(asdict(peak_memory_of(step)))


def resident_bytes(field: str) -> int:
    """Return resident memory now (VmRSS) or at its peak; the peak where only that is told."""
    largest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # macOS counts in bytes, other systems in KiB.
    return _linux("/proc/self/status", field) or largest * (1 if sys.platform == "darwin" else 1024)


def available_bytes() -> int | None:
    """Return the memory that new processes can use, None where the system does not tell."""
    return _linux("/proc/meminfo", "MemAvailable")


def _linux(file: str, field: str) -> int | None:
    """Return a field of a file of the kernel in bytes, None on other systems."""
    try:
        lines = Path(file).read_text().splitlines()
    except OSError:
        return None
    values = (line.split()[1] for line in lines if line.startswith(f"{field}:"))
    kibibytes = next(values, None)
    return None if kibibytes is None else 1024 * int(kibibytes)


if __name__ == "__main__":
    print(answer(sys.stdin.read()))
