"""One batch over several processes of one thread each, beside losses that gather their batch.

All contenders compare N×N pairs: N samples with themselves, or N pairs of two sets. A call takes as
long as its slowest process.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from datetime import timedelta
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from benchmarks import measure, memory
from benchmarks.contenders import LOSS, OURS, SUP_CON, Call, Contender, ours, peer
from benchmarks.measure import Effort, Row, say
from benchmarks.problem import Batch, Problem, gradient, make_batch
from tricouple.torchvision_ops import declare_missing

declare_missing()  # peers import torchvision

FORKS = multiprocessing.get_context("forkserver")  # forks of a process that has imported the peers
SMALLER = 1056  # samples of a first call, which loads what the measured one needs
PATIENCE = timedelta(minutes=10)
FULL = Effort((2048, 4096, 8192), rounds=3, budget=5.0)
QUICK = Effort((64,), rounds=2, seconds_per_round=0.0, memory=False, dims=(16,))
CLIP, CLIP_LOSS = "ClipLoss (open_clip)", "open_clip.loss.ClipLoss"
NT_XENT = "lightly.loss.NTXentLoss"
RANKING = "sentence_transformers.sentence_transformer.losses.MultipleNegativesRankingLoss"


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


def both_directions(problem: Problem) -> Any:
    """Our loss across two sets."""
    return tc.BothDirections(ours(problem, OURS, **WORLD))  # type: ignore[arg-type]


def share(batch: Batch, problem: Problem, rank: int, world: int) -> list[Tensor]:
    """Return the rows of a rank: samples and partners, (n, d) each, classes, numbers, (n,)."""
    n = len(batch.labels)
    own = slice(n * rank // world, n * (rank + 1) // world)
    noise = make_batch(n, replace(problem, seed=problem.seed + 1)).embeddings[own]
    samples = batch.embeddings[own]
    return [samples, samples + 0.5 * noise, batch.labels[own], torch.arange(n)[own]]


def gathered(
    name: str, build: Callable[[Problem], Any], module: str = "", *, pairs: bool = False,
    matrices: int = 8,
) -> Contender:  # fmt: skip
    """Return a contender for the rows of this process; of two sets, or of one with labels."""

    def prepare(batch: Batch, problem: Problem) -> Call:
        x, y, classes, numbers = share(batch, problem, dist.get_rank(), dist.get_world_size())
        if pairs:
            return gradient(build(problem), x, y, marks=numbers)
        return gradient(build(problem), x, marks=classes)

    return Contender(name, LOSS, prepare, module, matrices=matrices)


WORLD = {"group": "world"}
CONTENDERS = (
    gathered(OURS, partial(ours, name=OURS, **WORLD)),
    gathered(f"{OURS}, both directions", both_directions, pairs=True),
    gathered("PushPull", partial(ours, name="PushPull", **WORLD)),
    gathered("InfoNCE", partial(ours, name="InfoNCE", **WORLD)),
    gathered(CLIP, clip_loss, CLIP_LOSS, pairs=True),
    gathered("NTXentLoss (lightly)", nt_xent, NT_XENT),
    # Every process computes the loss of the whole batch.
    gathered("SupConLoss (PML)", gathered_sup_con, SUP_CON, matrices=56),
    gathered("MultipleNegativesRankingLoss (ST)", ranking, RANKING, pairs=True),
)
BY_NAME = {contender.name: contender for contender in CONTENDERS}


def measure_processes(effort: Effort, problem: Problem) -> Iterator[Row]:
    """Yield a row per number of processes, size, dimension and contender.

    A first call in fresh processes gives memory. If each process has a core of its
    own, interleaved rounds follow; more processes than cores are timed once.
    """
    chosen = [contender for contender in CONTENDERS if effort.matches(contender.name)]
    peers = [one.module.rpartition(".")[0] for one in chosen if one.module]
    FORKS.set_forkserver_preload([__name__, *peers])
    for world, size, dim in product(effort.processes, effort.sizes, effort.dims):
        here, where = replace(problem, dim=dim), f"{world} processes, N = {size}, d = {dim}"
        rows: dict[str, Row] = {}
        for contender in chosen:
            name, note = contender.name, contender.obstacle(size, here)
            say(f"{where}: {name}")
            row = {"contender": name, "task": LOSS, "size": size, "processes": world, "dim": dim}
            rows[name] = row | {"note": note}
            if not note:
                try:
                    rows[name] |= ask(world, first, name, size, here)
                except measure.FAILURES as error:
                    rows[name]["note"] = f"failed: {error}"
            if not effort.memory or size < measure.SMALLEST_WEIGHED:
                rows[name] |= {"peak_bytes": None, "extra_bytes": None}
        able = [name for name, row in rows.items() if not row["note"]]
        if able and world <= (os.cpu_count() or 1):
            say(f"{where}: in turns")
            try:
                for name, found in ask(world, repeated, able, size, here, effort).items():
                    rows[name] |= found
            except measure.FAILURES as error:
                for name in able:
                    rows[name]["note"] = f"timed once, then failed: {error}"
        yield from rows.values()


def ask(world: int, function: Callable[..., Row], *arguments: Any) -> Row:
    """Return what a function finds in so many fresh processes together.

    Raises:
        RuntimeError: If it failed in one of them.
    """
    environment = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
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
    prepare, seconds = BY_NAME[name].prepare, []
    prepare(make_batch(min(size, SMALLER), problem), problem)()
    step = prepare(make_batch(size, problem), problem)
    found = memory.peak_memory_of(lambda: seconds.append(slowest(step)))
    numbers = largest(*found.values())
    return dict(zip(found, map(int, numbers), strict=True)) | measure.timed(seconds)


def repeated(
    contenders: Sequence[str], size: int, problem: Problem, effort: Effort
) -> dict[str, Row]:
    """Times of interleaved rounds, by contender."""
    batch = make_batch(size, problem)
    steps = {name: BY_NAME[name].prepare(batch, problem) for name in contenders}
    for step in steps.values():
        step()
    found = measure.time_together(steps, effort, clock=slowest)
    return {name: measure.timed(durations) for name, durations in found.items()}


def slowest(step: Call) -> float:
    """Seconds of the slowest process if all begin at once."""
    dist.barrier()
    return largest(measure.time_call(step))[0]


def largest(*numbers: float) -> list[float]:
    """The largest of each number over all processes."""
    values = torch.tensor(numbers, dtype=torch.float64)
    dist.all_reduce(values, dist.ReduceOp.MAX)
    return values.tolist()
