"""Functions run in several processes that talk to each other, as DistributedDataParallel has it."""

import multiprocessing
import os
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist

import tricouple
from batches import Batch

PATIENCE = 600  # seconds that a slow machine may need for what takes some: nothing waits so long


def python(
    *words: object, code: int = 0, cwd: Path | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """A new interpreter with one thread, which finds the package and the tests' helpers."""
    places = Path(tricouple.__file__).parents[1], Path(__file__).parent
    paths = [*map(str, places), *filter(None, [os.environ.get("PYTHONPATH")])]
    own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)} | environment
    done = subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | own,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
    )
    assert done.returncode == code, f"{done.stdout[-4000:]}{done.stderr}"
    return done


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
    """Processes that wait for functions: starting them costs more than most of these."""

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


# --- losses of several processes ------------------------------------------------------------------


def shares(whole: Batch, sizes: Sequence[int]) -> list[Batch]:
    """A batch of each process; references are dealt out likewise, the rest of them to the last."""
    parts = [Batch(z) for z in whole.embeddings.detach().split(list(sizes))]
    others = sizes
    if whole.ref_emb is not None:
        others = [*sizes[:-1], len(whole.ref_emb) - sum(sizes[:-1])]
    dealt = {"labels": sizes, "ref_emb": others, "ref_labels": others}
    for name, lengths in dealt.items():
        if getattr(whole, name) is not None:
            split = getattr(whole, name).detach().split(list(lengths))
            parts = [replace(part, **{name: own}) for part, own in zip(parts, split, strict=True)]
    return parts


def differentiated(criterion, there: Batch, temperature: float | None = None):
    """The value, and the gradients of all embeddings and of the temperature."""
    there = there.to(there.embeddings.dtype)
    if temperature is None:
        value, learnt = there.loss(criterion), there.leaves
    else:
        tau = torch.tensor(temperature, dtype=torch.float64, requires_grad=True)
        value, learnt = there.loss(criterion, temperature=tau), [*there.leaves, tau]
    return value.detach(), torch.autograd.grad(value, learnt)


def _own(rank, make, settings, parts, *temperature):
    return differentiated(make(**settings, group="world"), parts[rank], *temperature)


def together(pools, make, settings: dict[str, Any], parts: list[Batch], *temperature: float):
    """The values that all processes have, and the gradients of all samples of a mean over them.

    The gradient of the temperature is that of each process.
    """
    answers = pools(len(parts)).run(_own, make, settings, parts, *temperature)
    sides = zip(*(gradients for _, gradients in answers), strict=True)
    gradients = [torch.cat(s) / len(s) if s[0].ndim else torch.stack(s) for s in sides]
    return torch.stack([value for value, _ in answers]), gradients


def farthest(pools, make, settings: dict[str, Any], whole: Batch, parts, *temperature) -> float:
    """The largest error beside one process with all samples, relative to the largest of each."""
    value, wanted = differentiated(make(**settings), whole, *temperature)
    values, gradients = together(pools, make, settings, parts, *temperature)
    pairs = zip([values, *gradients], [value, *wanted], strict=True)
    errors = [((one - other).abs().max() / other.abs().max()).double() for one, other in pairs]
    return float(torch.stack(errors).max())  # NaN if one of them is
