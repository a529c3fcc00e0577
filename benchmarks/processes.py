"""One batch over several processes of one thread each, beside losses that gather their batch.

All contenders compare N×N pairs: N samples with themselves, or N pairs of two sets. A call takes as
long as its slowest process.
"""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from datetime import timedelta
from itertools import product
from pathlib import Path
from typing import Any, cast
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from benchmarks import measure, memory
from benchmarks.contenders import LOSS, OURS, SUP_CON, Call, installed, ours, peer
from benchmarks.measure import Effort, Row, Say
from benchmarks.problem import Problem, make_batch
from tricouple.torchvision_ops import declare_missing

declare_missing()  # peers import torchvision

FORKS = multiprocessing.get_context("forkserver")  # forks of a process that has imported the peers
SMALLER = 1056  # samples of a first call, which loads what the measured one needs
PATIENCE = timedelta(minutes=10)


@dataclass(frozen=True)
class GroupEffort(Effort):
    """Sizes and effort of a run over processes."""

    sizes: tuple[int, ...] = (2048, 4096, 8192)
    rounds: int = 3
    processes: tuple[int, ...] = (2, 4)
    dims: tuple[int, ...] = (128, 512)
    budget: float = 5.0  # seconds, after which a contender has no more turns


QUICK_GROUP = GroupEffort((64,), rounds=2, seconds_per_round=0.0, memory=False, dims=(16,))


# --- contenders -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """A row of the table of contenders over several processes."""

    build: Callable[[Problem], Callable[..., Tensor]]
    module: str = ""  # of another library
    pairs: bool = False  # two sets of N; otherwise one, with labels
    whole: bool = False  # every process computes the loss of the whole batch

    def bytes_at_most(self, size: int, world: int) -> int:
        """Return an upper bound on the memory of all processes together."""
        return 4 * size**2 * (14 * world if self.whole else 8)

    def prepare(self, size: int, problem: Problem) -> Call:
        """Return a call that evaluates the loss and the gradients of this process's rows."""
        leaves, labels, identities = share(dist.get_rank(), dist.get_world_size(), size, problem)
        criterion = self.build(problem)
        both = [leaf.requires_grad_() for leaf in leaves[: 2 if self.pairs else 1]]
        marks = identities if self.pairs else labels
        return lambda: torch.autograd.grad(criterion(*both, marks), both)


def share(rank: int, world: int, size: int, problem: Problem) -> tuple[list[Tensor], ...]:
    """Return the rows of a rank: samples and partners, (n, d) each, classes, numbers, (n,)."""
    batch, other = (make_batch(size, replace(problem, seed=problem.seed + k)) for k in range(2))
    own = slice(size * rank // world, size * (rank + 1) // world)
    samples, noise = batch.embeddings[own].clone(), other.embeddings[own]
    return [samples, samples + 0.5 * noise], batch.labels[own], torch.arange(size)[own]  # type: ignore[return-value]


def clip_loss(problem: Problem) -> Callable[..., Tensor]:
    """``ClipLoss`` of open_clip, own rows only, with the gradient of what was gathered."""
    ranks = {"rank": dist.get_rank(), "world_size": dist.get_world_size()}
    criterion = peer(CLIP_LOSS, local_loss=True, gather_with_grad=True, **ranks)
    scale = 1 / problem.temperature
    return lambda x, y, _: criterion(normalize(x, dim=1), normalize(y, dim=1), scale)


def nt_xent(problem: Problem) -> Callable[..., Tensor]:
    """``NTXentLoss`` of lightly: own rows are two views of half as many samples."""
    criterion = peer(NT_XENT, problem.temperature, gather_distributed=True)
    return lambda embeddings, _: criterion(*embeddings.chunk(2))


def gathered_sup_con(problem: Problem) -> Any:
    """``SupConLoss`` of pytorch-metric-learning, gathered."""
    wrapper = "pytorch_metric_learning.utils.distributed.DistributedLossWrapper"
    return peer(wrapper, peer(SUP_CON, problem.temperature))


def ranking(problem: Problem) -> Callable[..., Tensor]:
    """``MultipleNegativesRankingLoss`` of sentence-transformers, of embeddings."""
    options = {"scale": 1 / problem.temperature, "gather_across_devices": True}
    criterion = peer(RANKING, nn.Identity(), **options)
    return lambda x, y, marks: criterion.compute_loss_from_embeddings([x, y], marks)


WORLD = {"group": "world"}
CLIP, CLIP_LOSS = "ClipLoss (open_clip)", "open_clip.loss.ClipLoss"
NT_XENT = "lightly.loss.NTXentLoss"
RANKING = "sentence_transformers.sentence_transformer.losses.MultipleNegativesRankingLoss"
GATHERED = {
    OURS: Gathered(ours(OURS, **WORLD)),
    f"{OURS}, both directions": Gathered(
        lambda p: tc.BothDirections(cast(Any, ours(OURS, **WORLD)(p))), pairs=True
    ),
    "PushPull": Gathered(ours("PushPull", **WORLD)),
    "InfoNCE": Gathered(ours("InfoNCE", **WORLD)),
    CLIP: Gathered(clip_loss, CLIP_LOSS, pairs=True),
    "NTXentLoss (lightly)": Gathered(nt_xent, NT_XENT),
    "SupConLoss (PML)": Gathered(gathered_sup_con, SUP_CON, whole=True),
    "MultipleNegativesRankingLoss (ST)": Gathered(ranking, RANKING, pairs=True),
}


# --- the run --------------------------------------------------------------------------------------


def measure_processes(
    effort: GroupEffort, problem: Problem, say: Say = lambda text: None
) -> Iterator[Row]:
    """Yield a row per number of processes, size, dimension and contender.

    A first call in fresh processes gives memory. If each process has a core of its
    own, interleaved rounds follow; more processes than cores are timed once.
    """
    chosen = {name: c for name, c in GATHERED.items() if measure.matches(name, effort.only)}
    peers = [c.module.rpartition(".")[0] for c in chosen.values() if c.module]
    FORKS.set_forkserver_preload([__name__, *peers])
    for world, size, dim in product(effort.processes, effort.sizes, effort.dims):
        here, where = replace(problem, dim=dim), f"{world} processes, N = {size}, d = {dim}"
        rows: list[Row] = []
        for name, contender in chosen.items():
            say(f"{where}: {name}")
            place = {"contender": name, "task": LOSS, "size": size, "processes": world, "dim": dim}
            rows.append({**place, **_first_call(name, contender, world, size, here)})
            if not effort.memory or size < measure.SMALLEST_WEIGHED:
                rows[-1] |= {"peak_bytes": None, "extra_bytes": None}
        able = [row["contender"] for row in rows if not row["note"]]
        if able and world <= (os.cpu_count() or 1):
            say(f"{where}: in turns")
            try:
                found = ask(world, repeated, able, size, here, effort)
            except measure.FAILURES as error:
                found = {name: {"note": f"timed once, then failed: {error}"} for name in able}
            rows = [row | found.get(row["contender"], {}) for row in rows]
        yield from rows


def _first_call(name: str, contender: Gathered, world: int, size: int, problem: Problem) -> Row:
    needed = contender.bytes_at_most(size, world)
    if not installed(contender.module):
        return {"note": "not installed"}
    if needed > memory.available_bytes():
        return {"note": f"skipped: may need {needed / 2**30:.0f} GiB"}
    try:
        return {"note": "", **ask(world, first, name, size, problem)}
    except measure.FAILURES as error:
        return {"note": f"failed: {error}"}


def ask(world: int, function: Callable[..., Row], *arguments: Any) -> Row:
    """Return what a function finds in so many fresh processes together.

    Raises:
        RuntimeError: If it failed in one of them.
    """
    environment = {"OMP_NUM_THREADS": "1", **measure.child()}
    with tempfile.TemporaryDirectory() as folder, mock.patch.dict(os.environ, environment):
        meeting = (Path(folder) / "meeting").as_uri()
        with ProcessPoolExecutor(world, FORKS) as pool:
            tasks = [
                pool.submit(work, rank, world, meeting, function, *arguments)
                for rank in range(world)
            ]
            errors = [error for task in tasks if (error := task.exception())]
            if errors:  # gloo reports in the other processes that one has gone
                raise RuntimeError(str(min(errors, key=lambda error: "gloo" in str(error))))
            return tasks[0].result()


def work(rank: int, world: int, meeting: str, function: Callable[..., Row], *arguments: Any) -> Row:
    """Call a function in one of the processes."""
    warnings.simplefilter("ignore", FutureWarning)  # peers call what is to be renamed
    torch.set_num_threads(1)
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    if world <= len(cores):  # a core of its own, as launchers give it
        os.sched_setaffinity(0, {cores[rank]})
    dist.init_process_group("gloo", meeting, PATIENCE, world_size=world, rank=rank)
    try:
        return function(*arguments)
    except Exception as error:
        raise RuntimeError(f"{type(error).__name__}: {error}".splitlines()[0]) from None
    finally:
        dist.destroy_process_group()  # the others stop waiting for this process


def first(name: str, size: int, problem: Problem) -> Row:
    """Memory and time of a call, after a smaller one."""
    contender, seconds = GATHERED[name], []
    contender.prepare(min(size, SMALLER), problem)()
    step = contender.prepare(size, problem)
    found = memory.peak_memory_of(lambda: seconds.append(slowest(step)))
    numbers = largest(*found.values())
    return dict(zip(found, map(int, numbers), strict=True)) | measure.timed(seconds)


def repeated(
    contenders: Sequence[str], size: int, problem: Problem, effort: GroupEffort
) -> dict[str, Row]:
    """Times of interleaved rounds, by contender."""
    steps = {name: GATHERED[name].prepare(size, problem) for name in contenders}
    for step in steps.values():
        step()
    turns = effort.rounds, effort.seconds_per_round
    found = measure.time_together(steps, *turns, clock=slowest, budget=effort.budget)
    return {name: measure.timed(durations) for name, durations in found.items()}


def slowest(step: Call) -> float:
    """Seconds of the slowest process if all begin at once."""
    dist.barrier()
    return largest(measure.time_call(step))[0]


def largest(*numbers: float) -> list[float]:
    """The largest of each number over all processes."""
    values = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return list(values.tolist())
