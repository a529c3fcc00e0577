"""Tasks that several processes share out, each with one thread."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import torch

from tricouple.options import CommandError

Task = tuple[Any, ...]


def in_workers(
    work: Callable[..., Any], tasks: Sequence[Task], workers: int, out: Path
) -> Iterator[tuple[Task, Any]]:
    """Do ``work(*task)`` for all tasks, and yield each with its result when it is done.

    Args:
        work: What can be pickled.
        tasks: Its arguments.
        workers: Processes; with one, this process does the work, with all its threads.
        out: Where results are kept, for the words about a worker that ended.

    Raises:
        CommandError: If a worker ended by itself.
    """
    if workers == 1:
        for task in tasks:
            yield task, work(*task)
        return
    # Forking a process that has threads may hang.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, spawn, initializer=_prepare) as pool:
        waiting = {pool.submit(work, *task): task for task in tasks}
        try:
            for done in as_completed(waiting):
                yield waiting[done], done.result()
        except BaseException as error:
            pool.shutdown(wait=False, cancel_futures=True)
            for worker in multiprocessing.active_children():
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise CommandError(
                    f"a worker ended; what was done is kept in {out}: start the study again to go "
                    "on, with fewer --workers if memory was short"
                ) from error
            raise


def _prepare() -> None:
    """One thread; Ctrl-C reaches all processes of a terminal, but only the first decides."""
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
