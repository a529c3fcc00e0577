"""Functions run in several processes that talk to each other, as DistributedDataParallel has it."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

PATIENCE = 600  # seconds that a slow machine may need for what takes some: nothing waits so long


def in_processes(
    world: int,
    folder: Path,
    function: Callable[[int], Any],
    expected: Sequence[int] | None = None,
) -> list[Any]:
    """What ``function(rank)`` returns on each of ``world`` processes, forked from this one.

    On all of them, or on those that are expected to return.
    """
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=_work, args=(rank, world, folder, function)) for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE)
        worker.kill()
    results = []
    for rank in range(world) if expected is None else expected:
        answer = folder / f"answer{rank}.pt"
        assert answer.exists(), f"process {rank} of {world} did not answer"
        failure, result = torch.load(answer, weights_only=False)
        assert not failure, failure
        results.append(result)
    return results


class Pool:
    """Processes that wait for functions: starting them costs more than most of these.

    Args:
        world: How many.
        folder: Where they meet.
    """

    def __init__(self, world: int, folder: Path) -> None:
        fork = multiprocessing.get_context("fork")
        pipes = [fork.Pipe() for _ in range(world)]
        self.broken = False  # after a failure the others wait, or answer another question
        self._ends = [here for here, _ in pipes]
        self._workers = [
            fork.Process(target=_serve, args=(rank, world, folder, there), daemon=True)
            for rank, (_, there) in enumerate(pipes)
        ]
        for worker in self._workers:
            worker.start()

    def run(self, function: Callable[..., Any], *args: Any) -> list[Any]:
        """What ``function(rank, *args)`` returns on each; a function that can be imported."""
        self.broken = True
        for end in self._ends:
            end.send((function, args))
        answers = []
        for rank, end in enumerate(self._ends):
            assert end.poll(PATIENCE), f"process {rank} did not answer"
            answers.append(end.recv())
        for failure, _ in answers:
            assert not failure, failure
        self.broken = False
        return [result for _, result in answers]

    def close(self) -> None:
        """End all processes."""
        for worker in self._workers:
            worker.kill()
            worker.join()


def _serve(rank: int, world: int, folder: Path, end: Any) -> None:
    _join(rank, world, folder)
    while True:
        function, args = end.recv()
        try:
            answer = ("", function(rank, *args))
        except BaseException:
            answer = (traceback.format_exc(), None)
        end.send(answer)


def _join(rank: int, world: int, folder: Path) -> None:
    torch.set_num_threads(1)
    meeting = (folder / "meeting").absolute().as_uri()
    options = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=PATIENCE / 2)}
    dist.init_process_group("gloo", init_method=meeting, **options)


def _work(rank: int, world: int, folder: Path, function: Callable[[int], Any]) -> None:
    _join(rank, world, folder)
    try:
        answer = ("", function(rank))
    except BaseException:
        answer = (traceback.format_exc(), None)
    torch.save(answer, folder / f"answer{rank}.pt")
    if not answer[0]:
        with suppress(RuntimeError):  # some do not live to return
            dist.barrier()  # all wait until the last message
    dist.destroy_process_group()


@contextmanager
def messages() -> Iterator[list[int]]:
    """Numbers that this process puts into each sum or gather meanwhile."""
    sent: list[int] = []

    def noted(name: str) -> Callable[..., Any]:
        collective = getattr(dist, name)

        def call(values: Any, *rest: Any) -> Any:
            # A gather is given the parts to receive, then its own.
            sent.append((rest[0] if isinstance(values, list) else values).numel())
            return collective(values, *rest)

        return call

    with mock.patch.multiple(dist, **{name: noted(name) for name in ("all_reduce", "all_gather")}):
        yield sent
