"""Timing several calls side by side, so that their ratios are fair on a noisy machine."""

from __future__ import annotations

import gc
import statistics
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Step = Callable[[], object]


@dataclass(frozen=True)
class Timing:
    """Durations of all timed calls of one contender, in seconds."""

    durations: tuple[float, ...]

    @property
    def best(self) -> float:
        """The shortest call: noise only ever adds time."""
        return min(self.durations)

    @property
    def median(self) -> float:
        """The typical call."""
        return statistics.median(self.durations)

    @property
    def summary(self) -> tuple[float, float, int]:
        """Best, median, and how many calls were timed."""
        return self.best, self.median, len(self.durations)


def time_together(
    steps: Mapping[str, Step],
    rounds: int,
    seconds_per_round: float,
    on_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, Timing]:
    """Time all steps in interleaved rounds.

    In each round every step has a turn of several calls, so that a slow minute of the machine hits
    all of them alike. The order rotates from round to round: no step always follows the same one.
    The first call of a turn finds the caches and the other libraries' thread pools as the previous
    contender left them; it is not counted, unless it alone fills the turn: then that is negligible.

    Args:
        steps: The calls, by name. They are expected to have been called once already.
        rounds: Number of turns of each step.
        seconds_per_round: Aim for the length of a turn; at least one call is counted in any case.
        on_turn: Called with the name of a step before its turn.

    Returns:
        The timings, by name.
    """
    durations: dict[str, list[float]] = {name: [] for name in steps}
    order = deque(steps)
    gc.collect()
    gc.disable()
    try:
        for _ in range(rounds):
            for name in order:
                on_turn(name)
                first = time_call(steps[name])
                calls = int(seconds_per_round / first)
                durations[name] += [time_call(steps[name]) for _ in range(calls)] or [first]
            order.rotate(-1)
    finally:
        gc.enable()
    return {name: Timing(tuple(values)) for name, values in durations.items()}


def time_call(step: Step) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
