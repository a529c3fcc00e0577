"""The benchmark over several processes of one thread each, which share a batch.

They take turns as the contenders of one process do; a call takes as long as its slowest process.
Messages are the collectives that torch.distributed is asked for. Bytes are what a process sends in
them where they go around a ring, as on networks, whatever the backend does on this machine: of V
bytes and R processes 2V(R − 1)/R in an all-reduce, V(R − 1)/R in a gather of V in all, and as much
in its transpose.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tricouple.experiments.bench.contenders import LOSS
from tricouple.experiments.bench.gathered import BY_NAME, GATHERED, Share
from tricouple.experiments.bench.measure import (
    RUN_FAILURES,
    SMALLEST_WEIGHED,
    Effort,
    Measurement,
    Step,
    time_call,
    time_together,
)
from tricouple.experiments.bench.memory import WARM_UP_SIZE, available_bytes, peak_memory_of
from tricouple.experiments.bench.problem import Problem

NETWORK = "all-reduce"

# Bytes of the bare all-reduces that a network is known by.
PAYLOADS = (4, 2**15, 2**19, 2**23)

# A process that waits longer than this has lost the others.
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class GroupEffort(Effort):
    """Sizes and effort of a run over processes."""

    sizes: tuple[int, ...] = (4096, 8192)
    processes: tuple[int, ...] = (2, 4)
    dims: tuple[int, ...] = (128, 512)


QUICK_GROUP = GroupEffort(
    sizes=(64,), rounds=2, seconds_per_round=0.0, memory=False, processes=(2,), dims=(16,)
)


class Counted(TorchDispatchMode):
    """Collectives while this mode is on, and the bytes that this process sends in them."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.messages, self.sent_bytes = 0, 0.0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func.namespace == "c10d":
            self.messages += 1
            self.sent_bytes += _sent(func.overloadpacket.__name__, args)
        return func(*args, **(kwargs or {}))


def _sent(name: str, args: Sequence[Any]) -> float:
    """Bytes that this process sends in a collective; the first argument is what it ends with."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = world - 1
    result = sum(part.nbytes for part in tree_leaves(args[0]) if isinstance(part, Tensor))
    if name == "scatter_":  # the root sends all blocks but its own
        return result * others if args[3] == rank else 0.0
    if name in ("reduce_scatter_", "_reduce_scatter_base_"):
        return result * others
    return result * others / world * (2 if name == "allreduce_" else 1)


def measure_processes(
    effort: GroupEffort, problem: Problem, on_turn: Callable[[str], None] = lambda text: None
) -> Iterator[Measurement]:
    """Yield the measurement of every contender for every number of processes, size and d."""
    for world, size, dim in product(effort.processes, effort.sizes, effort.dims):
        here, where = replace(problem, dim=dim), f"{world} processes, N={size}, d={dim}"
        on_turn(where)
        for row in _timed(world, size, here, effort):
            if effort.memory and row.dim and row.seconds and size >= SMALLEST_WEIGHED:
                on_turn(f"{where}: memory of {row.contender}")
                yield _weighed(row, here)
            else:
                yield row


def _timed(world: int, size: int, problem: Problem, effort: GroupEffort) -> list[Measurement]:
    """All contenders of one size, those that can run in interleaved rounds; bare all-reduces."""
    rows, free = {}, available_bytes()
    for contender in GATHERED:
        if effort.names(contender.name):
            needed, note = contender.bytes_at_most(size, world), ""
            if not contender.installed:
                note = "not installed"
            elif free is not None and needed > free:
                note = f"skipped: may need {needed / 2**30:.0f} GiB"
            row = Measurement(contender.name, LOSS, size, note=note)
            rows[row.contender] = replace(row, processes=world, dim=problem.dim)
    able = [row for row in rows.values() if not row.note]
    turns = {"rounds": effort.rounds, "seconds": effort.seconds_per_round}
    request = {"do": "time", "problem": asdict(problem), **turns}
    try:
        found = _ask(world, request | {"rows": [asdict(row) for row in able]})
    except RUN_FAILURES as error:
        found = [replace(row, note=f"failed: {error}") for row in able]
    known = {row.contender: row for row in found if row.dim}
    return [*(row for row in found if not row.dim), *(rows | known).values()]


def _weighed(row: Measurement, problem: Problem) -> Measurement:
    """Add the peak memory of the process that has the highest."""
    try:
        request = {"do": "weigh", "row": asdict(row), "problem": asdict(problem)}
        (found,) = _ask(row.processes, request)
    except RUN_FAILURES as error:
        return replace(row, note=f"memory not measured: {error}")
    return found


def _ask(world: int, request: dict[str, Any]) -> list[Measurement]:
    """What so many fresh processes find together.

    Raises:
        RuntimeError: If one of them failed, with the last line that it said.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(world)}
        meeting = (Path(folder) / "meeting").as_uri()
        workers = [
            subprocess.Popen(
                [sys.executable, "-m", __name__, meeting, json.dumps(request)],
                env=environment | {"RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for rank in range(world)
        ]
        try:
            ended = [worker.communicate() for worker in workers]
        finally:
            for worker in workers:
                worker.kill()
    for worker, (_, said) in zip(workers, ended, strict=True):
        if worker.returncode != 0:
            raise RuntimeError((said.strip().splitlines() or ["a process died"])[-1])
    return [Measurement(**row) for row in json.loads(ended[0][0])]


# --- in one of the processes ----------------------------------------------------------------------


def answer(request: dict[str, Any]) -> list[Measurement]:
    """Do in this process, together with the others, what is asked for."""
    problem = Problem(**request["problem"])
    if request["do"] == "weigh":
        row = Measurement(**request["row"])
        _step(row.contender, WARM_UP_SIZE, problem)()
        step = _step(row.contender, row.size, problem)
        dist.barrier()
        found = peak_memory_of(step)
        peak, extra = _largest(found.peak_bytes, found.extra_bytes)
        return [replace(row, peak_bytes=int(peak), extra_bytes=int(extra))]
    rows = {row["contender"]: Measurement(**row) for row in request["rows"]}
    steps = {name: _step(name, row.size, problem) for name, row in rows.items()}
    for name, step in steps.items():
        with Counted() as counted:
            step()
        messages, sent = map(int, _largest(counted.messages, counted.sent_bytes))
        rows[name] = replace(rows[name], messages=messages, sent_bytes=sent)
    timed = time_together(steps, request["rounds"], request["seconds"], clock=_slowest)
    losses = [rows[name].timed(durations) for name, durations in timed.items()]
    return [*_network(request["rounds"]), *losses]


def _step(name: str, size: int, problem: Problem) -> Step:
    share = Share.of(dist.get_rank(), dist.get_world_size(), size, problem)
    return BY_NAME[name].prepare(share, problem)


def _network(rounds: int) -> list[Measurement]:
    """Bare all-reduces of some sizes, whose latency and bandwidth the model takes."""
    world, rows = dist.get_world_size(), []
    for payload in PAYLOADS:
        values = torch.zeros(payload // 4)
        timed = [_slowest(lambda v=values: dist.all_reduce(v)) for _ in range(10 * rounds)]  # type: ignore[misc]
        sent = int(2 * payload * (world - 1) / world)
        row = Measurement(NETWORK, NETWORK, payload, processes=world, messages=1, sent_bytes=sent)
        rows.append(row.timed(timed))
    return rows


def _slowest(step: Step) -> float:
    """Seconds that the slowest process takes, if all begin at once; the same on all of them."""
    dist.barrier()
    (seconds,) = _largest(time_call(step))
    return seconds


def _largest(*numbers: float) -> list[float]:
    """The largest of each number over all processes."""
    values = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    found: list[float] = values.tolist()
    return found


def work(meeting: str, request: str) -> None:
    """The life of one process."""
    # Peers call functions of torch.distributed that are to be renamed.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    dist.init_process_group("gloo", meeting, PATIENCE, world_size=world, rank=rank)
    rows = answer(json.loads(request))
    if rank == 0:
        print(json.dumps([asdict(row) for row in rows]))
    dist.destroy_process_group()


if __name__ == "__main__":
    work(*sys.argv[1:])
