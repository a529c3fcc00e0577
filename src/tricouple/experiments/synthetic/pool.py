"""Train several runs at a time, each in a process of its own with one thread.

The tensors are tiny: threads would wait for each other, processes do not.
"""

from __future__ import annotations

import multiprocessing
import queue
import signal
import time
import traceback
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tricouple.experiments.synthetic.config import RunConfig
from tricouple.experiments.synthetic.train import Measurement, train

SNAPSHOT_SAMPLES = 500


@dataclass(frozen=True)
class Event:
    """What a worker tells: a measurement of the run number `task`, or that it is over."""

    task: int  # position of the run in the list given to ``train_all``
    seconds: float = 0.0  # time since the run began
    measurement: Measurement | None = None  # None once the run is over
    # Unit vectors of some training samples, float16, if they were asked for.
    embeddings: npt.NDArray[np.float16] | None = None
    error: str | None = None  # the traceback, if the run failed


class WorkerError(RuntimeError):
    """A run failed for a reason other than its numbers."""


def train_all(
    configs: Sequence[RunConfig], *, workers: int, keep_embeddings: Sequence[bool]
) -> Generator[Event, None, None]:
    """Train all runs and yield events as they come; closing the generator ends the workers.

    `keep_embeddings` says of each run whether its events carry embeddings.
    """
    context = multiprocessing.get_context("spawn")  # forking a process that has threads may hang
    tasks: Any = context.Queue()
    events: Any = context.Queue()
    for task in enumerate(zip(configs, keep_embeddings, strict=True)):
        tasks.put(task)
    crew = [
        context.Process(target=_work, args=(tasks, events), daemon=True)
        for _ in range(min(workers, len(configs)))
    ]
    # Ctrl-C reaches all processes of a terminal, but only this one decides: children inherit that
    # they are to ignore it, and so does their start, where a handler would come too late.
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    for worker in crew:
        tasks.put(None)
        worker.start()
    signal.signal(signal.SIGINT, handler)
    try:
        yield from _listen(events, crew, len(configs))
    finally:
        for worker in crew:
            worker.terminate()
        for worker in crew:
            worker.join()


def _listen(events: Any, crew: Sequence[BaseProcess], n_runs: int) -> Iterator[Event]:
    over = 0
    while over < n_runs:
        try:
            event: Event = events.get(timeout=1.0)
        except queue.Empty:
            died = [worker.exitcode for worker in crew if worker.exitcode]
            if died:
                raise WorkerError(f"a worker process ended with exit code {died[0]}") from None
            continue
        if event.error is not None:
            raise WorkerError(event.error)
        over += event.measurement is None
        yield event


def _work(tasks: Any, events: Any) -> None:
    """Train runs until there is none left."""
    torch.set_num_threads(1)
    parent = multiprocessing.parent_process()
    while (task := tasks.get()) is not None:
        number, (config, keep) = task
        start = time.perf_counter()
        try:
            for measurement, embeddings in train(config):
                if parent is not None and not parent.is_alive():
                    return
                kept = thinned(embeddings) if keep else None
                events.put(Event(number, time.perf_counter() - start, measurement, kept))
            events.put(Event(number))
        except Exception:
            events.put(Event(number, error=traceback.format_exc()))


def thinned(embeddings: torch.Tensor) -> npt.NDArray[np.float16]:
    """Unit vectors of the samples that a snapshot keeps."""
    unit = torch.nn.functional.normalize(embeddings[snapshot_rows(len(embeddings))], dim=1)
    return np.asarray(unit.half().numpy())


def snapshot_rows(n_samples: int) -> slice:
    """Which samples a snapshot keeps: every k-th, at most 500.

    Samples lie class after class, so every class has some.

    Example:
        >>> snapshot_rows(1000)
        slice(None, None, 2)
    """
    return slice(None, None, -(-n_samples // SNAPSHOT_SAMPLES))
