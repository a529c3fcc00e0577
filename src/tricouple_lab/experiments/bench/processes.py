"""The benchmark over several processes of one thread each, which share a batch.

They take turns as the contenders of one process do; a call takes as long as its slowest process.
Messages are the collectives that torch.distributed is asked for. Bytes are what a process sends in
them where they go around a ring, as on networks, whatever the backend does on this machine: of V
bytes and R processes 2V(R − 1)/R in an all-reduce, V(R − 1)/R in a gather of V in all, and as much
in its transpose.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._pytree import tree_leaves

from tricouple.torchvision_ops import declare_missing
from tricouple_lab.experiments.bench.contenders import GATHERED, LOSS, Gathered, Share
from tricouple_lab.experiments.bench.measure import (
    RUN_FAILURES,
    SMALLEST_WEIGHED,
    Effort,
    Measurement,
    Step,
    available_bytes,
    peak_memory_of,
    time_call,
    time_together,
)
from tricouple_lab.experiments.bench.problem import Problem

declare_missing()  # peers import torchvision

NETWORK = "all-reduce"

# Bytes of the bare all-reduces that a network is known by.
PAYLOADS = (4, 2**15, 2**19, 2**23)

# Processes that wait for work in a room of their own, with what they need imported.
FORKS = multiprocessing.get_context("forkserver")

# Smaller batches are not worth sharing, and take other code.
SHARED_FROM = 1056

# A process that waits longer than this has lost the others.
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class GroupEffort(Effort):
    """Sizes and effort of a run over processes."""

    sizes: tuple[int, ...] = (2048, 4096, 8192)
    rounds: int = 3
    processes: tuple[int, ...] = (2, 4)
    dims: tuple[int, ...] = (128, 512)
    budget: float = 5.0  # seconds, after which a contender has no more turns

    @property
    def contenders(self) -> list[Gathered]:
        """Those that run."""
        return [contender for contender in GATHERED.values() if self.names(contender.name)]

    @property
    def total(self) -> int:
        """How many measurements there will be, 0 if no contender runs."""
        losses = len(self.sizes) * len(self.dims) * len(self.contenders)
        return len(self.processes) * (len(PAYLOADS) + losses) if losses else 0


QUICK_GROUP = GroupEffort(
    sizes=(64,), rounds=2, seconds_per_round=0.0, memory=False, processes=(2,), dims=(16,)
)


# Methods of a process group that send, as torch.distributed calls them.
COLLECTIVES = (
    *("allreduce", "allgather", "_allgather_base", "alltoall", "alltoall_base", "broadcast"),
    *("reduce", "reduce_scatter", "_reduce_scatter_base", "scatter", "gather"),
)


class Counted:
    """Collectives while this context is open, and the bytes that this process sends in them.

    They are counted where they are called: a dispatch mode would see them too, but it changes how
    long tensors live, and so the memory of the call.
    """

    def __init__(self) -> None:
        self.messages, self.sent_bytes = 0, 0.0

    def __enter__(self) -> Counted:
        # As the class has them: an attribute asked for would no longer bind its group.
        self._originals = {name: vars(dist.ProcessGroup)[name] for name in COLLECTIVES}
        for name in COLLECTIVES:
            noting = self._noting(name, getattr(dist.ProcessGroup, name))
            setattr(dist.ProcessGroup, name, noting)
        return self

    def __exit__(self, *error: object) -> None:
        for name, original in self._originals.items():
            setattr(dist.ProcessGroup, name, original)

    def _noting(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(group: Any, *args: Any, **kwargs: Any) -> Any:
            self.messages += 1
            self.sent_bytes += _sent(name, args)
            return original(group, *args, **kwargs)

        return call


def _sent(name: str, args: Sequence[Any]) -> float:
    """Bytes that this process sends in a collective; the first argument is what it ends with."""
    rank, world = dist.get_rank(), dist.get_world_size()
    others = world - 1
    result = sum(part.nbytes for part in tree_leaves(args[0]) if isinstance(part, Tensor))
    if name == "scatter":  # the root sends all blocks but its own
        return result * others if args[2].rootRank == rank else 0.0
    if name in ("reduce_scatter", "_reduce_scatter_base"):
        return result * others
    return result * others / world * (2 if name == "allreduce" else 1)


def measure_processes(
    effort: GroupEffort, problem: Problem, on_turn: Callable[[str], None] = lambda text: None
) -> Iterator[Measurement]:
    """Yield bare all-reduces, and every contender for every number of processes, size and d.

    A first call in processes that do nothing else tells memory and messages. If each process has
    a core of its own, interleaved rounds follow: processes that share one are timed once.
    """
    peers = [contender.module for contender in effort.contenders if contender.module]
    FORKS.set_forkserver_preload([__name__, *peers])
    for world in effort.processes:
        on_turn(f"{world} processes: all-reduces")
        with suppress(*RUN_FAILURES):  # the losses will say why
            yield from _ask(world, _network, effort.rounds)
        for size, dim in product(effort.sizes, effort.dims):
            here, where = replace(problem, dim=dim), f"{world} processes, N={size}, d={dim}"
            rows = []
            for contender in effort.contenders:
                on_turn(f"{where}: {contender.name}")
                rows.append(_met(contender, world, size, here, effort))
            if world <= (os.cpu_count() or 1):
                on_turn(f"{where}: in turns")
                rows = _timed(rows, here, effort)
            yield from rows


def _met(
    contender: Gathered, world: int, size: int, problem: Problem, effort: GroupEffort
) -> Measurement:
    """What the first call of a contender costs, or why there is none."""
    row = Measurement(contender.name, LOSS, size, processes=world, dim=problem.dim)
    needed, free = contender.bytes_at_most(size, world), available_bytes()
    if not contender.installed:
        return replace(row, note="not installed")
    if free is not None and needed > free:
        return replace(row, note=f"skipped: may need {needed / 2**30:.0f} GiB")
    try:
        (found,) = _ask(world, _first, row, problem)
    except RUN_FAILURES as error:
        return replace(row, note=f"failed: {error}")
    weighed = effort.memory and size >= SMALLEST_WEIGHED
    return found if weighed else replace(found, peak_bytes=None, extra_bytes=None)


def _timed(rows: Sequence[Measurement], problem: Problem, effort: GroupEffort) -> list[Measurement]:
    """Time those that can run in interleaved rounds."""
    able = [row for row in rows if not row.note]
    try:
        timed = _ask(able[0].processes, _repeated, able, problem, effort) if able else []
    except RUN_FAILURES as error:
        timed = [replace(row, note=f"timed once, then failed: {error}") for row in able]
    found = {row.contender: row for row in timed}
    return [found.get(row.contender, row) for row in rows]


def _ask(world: int, function: Callable[..., list[Measurement]], *args: Any) -> list[Measurement]:
    """What a function finds in so many fresh processes together.

    They are forks of a process that has imported the peers, which takes longer than most calls.

    Raises:
        RuntimeError: If one of them failed, with what it said.
    """
    answers = []
    with tempfile.TemporaryDirectory() as folder, one_thread():
        meeting = (Path(folder) / "meeting").as_uri()
        workers = []
        try:
            for rank in range(world):
                here, there = FORKS.Pipe()
                task = (there, meeting, rank, world, function, args)
                workers.append((here, FORKS.Process(target=work, args=task, daemon=True)))
                workers[-1][1].start()
                there.close()
            for here, _ in workers:
                try:
                    answers.append(here.recv())
                except EOFError:
                    answers.append(("a process died", []))
        finally:
            for here, worker in workers:
                worker.kill()
                worker.join()
                here.close()
    for failure, _ in answers:
        if failure:
            raise RuntimeError(failure)
    return list(answers[0][1])


@contextmanager
def one_thread() -> Iterator[None]:
    """Libraries that are loaded meanwhile, by processes that start, have a thread each."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield
    finally:
        del os.environ["OMP_NUM_THREADS"]
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


# --- in one of the processes ----------------------------------------------------------------------


def work(
    end: Connection,
    meeting: str,
    rank: int,
    world: int,
    function: Callable[..., list[Measurement]],
    args: Sequence[Any],
) -> None:
    """The life of one process."""
    # Peers call functions of torch.distributed that are to be renamed.
    warnings.simplefilter("ignore", FutureWarning)
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if world <= len(cores):  # a core of its own, as launchers have it: two on one would take turns
        os.sched_setaffinity(0, {cores[rank]})
    try:
        dist.init_process_group("gloo", meeting, PATIENCE, world_size=world, rank=rank)
        answer = "", function(*args)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}".splitlines()[0], []
    end.send(answer)
    with suppress(EOFError):
        end.recv()  # the others may still listen to this process, which ends when all are done


def _first(row: Measurement, problem: Problem) -> list[Measurement]:
    """Memory, messages and time of a call, after a smaller one that loads the code it needs."""
    _step(row.contender, min(row.size, SHARED_FROM), problem)()
    step = _step(row.contender, row.size, problem)
    counted = Counted()

    def call() -> None:
        with counted:
            step()

    durations: list[float] = []
    found = peak_memory_of(lambda: durations.append(_slowest(call)))
    numbers = found.peak_bytes, found.extra_bytes, counted.messages, counted.sent_bytes
    peak, extra, messages, sent = map(int, _largest(*numbers))
    row = replace(row, peak_bytes=peak, extra_bytes=extra, messages=messages, sent_bytes=sent)
    return [row.timed(durations)]


def _repeated(
    rows: Sequence[Measurement], problem: Problem, effort: GroupEffort
) -> list[Measurement]:
    """The best of the first call, which is known, and of interleaved rounds."""
    steps = {row.contender: _step(row.contender, row.size, problem) for row in rows}
    turns = effort.rounds, effort.seconds_per_round
    timed = time_together(steps, *turns, clock=_slowest, budget=effort.budget)
    return [row.timed([row.seconds or math.inf, *timed[row.contender]]) for row in rows]


def _step(name: str, size: int, problem: Problem) -> Step:
    share = Share.of(dist.get_rank(), dist.get_world_size(), size, problem)
    return GATHERED[name].prepare(share, problem)


def _network(rounds: int) -> list[Measurement]:
    """Bare all-reduces of some sizes, whose latency and bandwidth the model takes."""
    world, rows = dist.get_world_size(), []
    for payload in PAYLOADS:
        step = partial(dist.all_reduce, torch.zeros(payload // 4))
        timed = [_slowest(step) for _ in range(10 * rounds)]
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
