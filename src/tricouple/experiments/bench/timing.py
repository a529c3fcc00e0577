"""Timing several calls side by side, so that their ratios are fair on a noisy machine."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Mapping

Step = Callable[[], object]


def time_together(
    steps: Mapping[str, Step],
    rounds: int,
    seconds_per_round: float,
    on_turn: Callable[[str], None] = lambda name: None,
) -> dict[str, list[float]]:
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
        The durations of all counted calls in seconds, by name.
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
    return durations


def time_call(step: Step) -> float:
    """Return the duration of one call in seconds."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start
