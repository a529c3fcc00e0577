"""The benchmark itself: which contender meets which size, timed together, weighed alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from tricouple.experiments.bench.contenders import CONTENDERS, Contender
from tricouple.experiments.bench.memory import measure_memory
from tricouple.experiments.bench.problem import Problem, make_batch
from tricouple.experiments.bench.record import Measurement
from tricouple.experiments.bench.timing import Step, time_call, time_together

# A matrix below this size is lost in the noise of an allocator that works in pages and arenas.
SMALLEST_WEIGHED = 1024

# A call of so many seconds needs no warming up and is not repeated.
LONG = 60.0

# What a contender may fail with at one size without spoiling the rest of the run.
RUN_FAILURES = (RuntimeError, MemoryError)


@dataclass(frozen=True)
class Plan:
    """Sizes and effort of a run."""

    sizes: tuple[int, ...] = (64, 128, 256, 512, 1024, 2048, 4096, 8192)
    largest_cubic: int = 256
    rounds: int = 5
    seconds_per_round: float = 0.3
    memory: bool = True
    only: tuple[str, ...] = ()  # patterns of names; none for all

    @classmethod
    def quick(cls) -> Plan:
        """A run of seconds that exercises everything but the memory processes."""
        return cls(sizes=(32, 64), rounds=2, seconds_per_round=0.02, memory=False)

    def meets(self, contender: Contender, size: int) -> bool:
        """Whether this contender runs at this size."""
        if self.only and not any(fnmatch(contender.name, pattern) for pattern in self.only):
            return False
        largest = self.largest_cubic if contender.cubic else contender.largest
        return contender.smallest <= size <= largest

    def weighs(self, contender: Contender, size: int) -> bool:
        """Whether this contender's memory is measured at this size."""
        large_enough = contender.cubic or size >= SMALLEST_WEIGHED
        return self.memory and self.meets(contender, size) and large_enough


def measure(
    plan: Plan, problem: Problem, on_turn: Callable[[int, str], None] = lambda size, name: None
) -> Iterator[Measurement]:
    """Yield the measurement of every contender at every size, size by size.

    Args:
        plan: Sizes and effort.
        problem: What the contenders solve.
        on_turn: Called with the size and a text on what happens next, for a progress display.
    """
    for size in plan.sizes:
        contenders = [contender for contender in CONTENDERS if plan.meets(contender, size)]
        timed = time_size(contenders, size, plan, problem, partial(on_turn, size))
        for contender, measurement in zip(contenders, timed, strict=True):
            if plan.weighs(contender, size) and measurement.seconds is not None:
                on_turn(size, f"memory of {contender.name}")
                yield weigh(measurement, problem)
            else:
                yield measurement


def time_size(
    contenders: list[Contender],
    size: int,
    plan: Plan,
    problem: Problem,
    on_turn: Callable[[str], None],
) -> list[Measurement]:
    """Time all contenders of one size in interleaved rounds, in the order given."""
    batch = make_batch(size, problem)
    results: dict[str, Measurement] = {}
    steps: dict[str, Step] = {}
    for contender in contenders:
        empty = Measurement(contender.name, contender.task, size)
        results[contender.name] = empty
        obstacle = obstacle_to(contender, size, problem)
        if obstacle:
            results[contender.name] = replace(empty, note=obstacle)
            continue
        on_turn(f"preparing {contender.name}")
        try:
            step = contender.prepare(batch, problem)
            seconds = time_call(step)
        except RUN_FAILURES as error:
            results[contender.name] = replace(empty, note=f"failed: {error}")
        else:
            if seconds > LONG:
                results[contender.name] = replace(
                    empty, seconds=seconds, median_seconds=seconds, calls=1
                )
            else:
                steps[contender.name] = step
    for name, timing in time_together(steps, plan.rounds, plan.seconds_per_round, on_turn).items():
        results[name] = replace(
            results[name],
            seconds=timing.best,
            median_seconds=timing.median,
            calls=len(timing.durations),
        )
    return list(results.values())


def weigh(measurement: Measurement, problem: Problem) -> Measurement:
    """Add peak memory to a measurement."""
    try:
        memory = measure_memory(measurement.contender, measurement.size, problem)
    except RUN_FAILURES as error:
        return replace(measurement, note=f"memory not measured: {error}")
    return replace(measurement, peak_bytes=memory.peak_bytes, extra_bytes=memory.extra_bytes)


def obstacle_to(contender: Contender, size: int, problem: Problem) -> str:
    """Return why a contender cannot run at a size, an empty text if it can."""
    if not contender.installed:
        return "not installed"
    needed, available = contender.bytes_at_most(size, problem), available_bytes()
    if available is not None and needed > available:
        return f"skipped: may need {needed / 2**30:.0f} GiB, {available / 2**30:.0f} GiB are free"
    return ""


def available_bytes() -> int | None:
    """Return the memory that new processes can use, None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    values = (line.split()[1] for line in lines if line.startswith("MemAvailable:"))
    kibibytes = next(values, None)
    return None if kibibytes is None else 1024 * int(kibibytes)
