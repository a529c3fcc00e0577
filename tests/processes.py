"""Functions run in several processes that talk to each other, as DistributedDataParallel has it."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist


def in_processes(world: int, folder: Path, function: Callable[[int], Any]) -> list[Any]:
    """What ``function(rank)`` returns on each of ``world`` processes, forked from this one."""
    fork = multiprocessing.get_context("fork")
    workers = [
        fork.Process(target=_work, args=(rank, world, folder, function)) for rank in range(world)
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
        worker.kill()
    results = []
    for rank in range(world):
        answer = folder / f"answer{rank}.pt"
        assert answer.exists(), f"process {rank} of {world} did not answer"
        failure, result = torch.load(answer, weights_only=False)
        assert not failure, failure
        results.append(result)
    return results


def _work(rank: int, world: int, folder: Path, function: Callable[[int], Any]) -> None:
    torch.set_num_threads(1)
    meeting = (folder / "meeting").absolute().as_uri()
    options = {"rank": rank, "world_size": world, "timeout": timedelta(seconds=30)}
    dist.init_process_group("gloo", init_method=meeting, **options)
    try:
        answer = ("", function(rank))
    except BaseException:
        answer = (traceback.format_exc(), None)
    torch.save(answer, folder / f"answer{rank}.pt")
    dist.destroy_process_group()
