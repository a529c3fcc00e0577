"""One batch over several processes: which rows each has, and their messages.

Each process has the rows of its own anchors (mathematics §7). A sum over anchors takes one message
of one number per reference, after which all processes hold the same vector. Branches depend on such
sums alone, so that all processes take the same one.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from tricouple.numeric import wide_dtype

T = TypeVar("T")
Call = Any  # batch.Call: the arguments of a loss

Group = Any
"""``None``, ``"world"``, a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``."""

# Seconds of polling for the other processes: waking takes longer than most messages.
_POLLED = 0.01

_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))


def check_group(group: Group) -> None:
    """Require what ``Processes.of`` understands."""
    if group is None or group == "world" or hasattr(group, "get_group"):
        return
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(
            f'group must be None, "world", a torch.distributed.ProcessGroup or a DeviceMesh of one '
            f"dimension, got {group!r}"
        )


@dataclass(frozen=True)
class Processes:
    """Processes that compute one thing together."""

    group: Any  # torch.distributed's
    rank: int  # of this process
    size: int  # how many they are

    @classmethod
    def of(cls, group: Group) -> Self | None:
        """The processes of a group; None for a process alone, as before any group was set up."""
        check_group(group)
        if group is None or not (dist.is_available() and dist.is_initialized()):
            return None
        if group == "world":
            group = dist.group.WORLD
        elif hasattr(group, "get_group"):
            if group.ndim != 1:
                raise ValueError(
                    f"group must be a DeviceMesh of one dimension, got {group.ndim}: take one of "
                    'them, as in mesh["data"]'
                )
            group = group.get_group()
        rank, size = dist.get_rank(group), dist.get_world_size(group)
        if rank < 0:
            raise ValueError(f"process {dist.get_rank()} is not in the group of this loss")
        return cls(group, rank, size) if size > 1 else None

    def sum_(self, values: Tensor) -> Tensor:
        """The sum over processes, in place; one message."""
        if self.size > 2 or not values.is_cpu:
            return self._reduce(values, dist.ReduceOp.SUM)
        # Between two, a gather sends as many numbers as an all-reduce, in one hop instead of two.
        both = values.new_empty(2, *values.shape)
        _poll(dist.all_gather(list(both), values.contiguous(), self.group, True))
        return values.copy_(torch.add(*both))

    def max_(self, values: Tensor) -> Tensor:
        """The largest over processes, in place; one message."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def log_sum_(self, logs: Tensor) -> Tensor:
        """``log Σ exp`` over processes, in place; two messages."""
        high = self.max_(logs.clone())
        finite = torch.where(torch.isfinite(high), high, 0.0)
        return logs.copy_(self.sum_((logs - finite).exp_()).log_().add_(finite))

    def _reduce(self, values: Tensor, operation: Any) -> Tensor:
        work = dist.all_reduce(values, operation, self.group, True)
        if values.is_cpu:  # nothing waits for a device
            _poll(work)
        else:
            work.wait()
        return values

    def gather(self, values: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes in the order of their ranks, so many of each; one message."""
        most = max(counts)
        # Collectives want equal shapes: pad with rows that are dropped again.
        padded = values.contiguous()
        if len(values) < most:
            padded = values.new_zeros(most, *values.shape[1:])
            padded[: len(values)] = values
        received = values.new_empty(self.size, most, *values.shape[1:])
        dist.all_gather(list(received), padded, self.group)
        if min(counts) == most:
            return received.flatten(0, 1)
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    def exchange(self, found: T, problem: str | None = None) -> list[T]:
        """What every process has found, small and on the host.

        If one of them has a problem, all of them raise the same ValueError.
        """
        answers: list[Any] = [None] * self.size
        dist.all_gather_object(answers, (found, problem), self.group)
        for rank, (_, message) in enumerate(answers):
            if message:
                raise ValueError(f"rank {rank} of {self.size}: {message}")
        return [of_rank for of_rank, _ in answers]

    def before(self, count: int, problem: str | None = None) -> int:
        """How many samples the processes before this one have."""
        return sum(self.exchange(count, problem)[: self.rank])


def _poll(work: Any) -> None:
    """Wait for a message: first by polling, then asleep."""
    end = time.monotonic() + _POLLED
    while not work.is_completed() and time.monotonic() < end:
        _give_way()
    work.wait()


def own_rows(counts: Sequence[int], rank: int) -> slice:
    """The rows of one process, where each has so many."""
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])


# --- one call of several processes ----------------------------------------------------------------


@dataclass(frozen=True)
class Gathered:
    """Which rows of a gathered batch each process has; it needs the gradient of its own alone."""

    processes: Processes
    anchors: tuple[int, ...]  # how many each process has
    references: tuple[int, ...]  # likewise

    @property
    def rows(self) -> slice:
        """The anchors of this process."""
        return own_rows(self.anchors, self.processes.rank)

    def mirrored(self) -> Self:
        """The same with anchors for references."""
        return replace(self, anchors=self.references, references=self.anchors)


def gather_call(
    processes: Processes, call: Call, checked: Callable[[], Call], settings: Mapping[str, str]
) -> tuple[Call, Gathered]:
    """The call with the rows of all processes, and with indices of them; and who has which.

    ``checked`` gives the call with integers as tensors, or an error about it. If a call is bad, or
    calls differ in kind or losses in settings, all processes raise the same ValueError.
    """
    problem, lengths, common = None, (0, 0, 0, 0), dict(settings)
    try:
        call = checked()
        parts = call.indices_tuple or ((), (), ())
        lengths, common = (*call.shape, len(parts[0]), len(parts[2])), common | _kind(call)
    except (TypeError, ValueError) as error:
        problem = str(error)
    found, tables = zip(*processes.exchange((lengths, common), problem), strict=True)
    _require_equal(tables)
    rows, others, first, second = zip(*found, strict=True)
    gathered, device = Gathered(processes, rows, others), call.embeddings.device
    starts = gathered.rows.start, own_rows(others, processes.rank).start

    def integers(values: Any, counts: tuple[int, ...], first_row: int = 0) -> Any:
        if values is None:
            return None
        return processes.gather(torch.as_tensor(values).to(device, torch.long) + first_row, counts)

    ref_emb, ref_index, indices, weights = call.ref_emb, call.ref_index, None, call.weights
    embeddings = _GatheredRows.apply(call.embeddings, processes, rows)  # type: ignore[no-untyped-call]
    if ref_emb is not None:
        ref_emb = _GatheredRows.apply(ref_emb, processes, others)  # type: ignore[no-untyped-call]
    if ref_index is not None:
        # Beyond the process's own references, it is beyond all.
        moved = torch.where(ref_index < others[processes.rank], ref_index + starts[1], sum(others))
        ref_index = torch.where(ref_index < 0, -1, moved)
    if call.indices_tuple is not None:
        axes = (0, 1, 1) if len(call.indices_tuple) == 3 else (0, 1, 0, 1)
        each = zip(call.indices_tuple, (first, first, second, second), axes, strict=False)
        indices = tuple(integers(values, counts, starts[axis]) for values, counts, axis in each)
    if weights is not None:
        weights = processes.gather(weights.to(wide_dtype(weights.device)), rows)
    labels, ref_labels = integers(call.labels, rows), integers(call.ref_labels, others)
    ref_index = integers(ref_index, rows)
    whole = embeddings, labels, indices, ref_emb, ref_labels, ref_index, None, weights
    return call._make(whole), gathered


def _kind(call: Call) -> dict[str, str]:
    """What the calls of all processes must have in common, by name."""
    found: dict[str, str] = {}
    for name in ("embeddings", "ref_emb"):
        values, facts = getattr(call, name), ("none",) * 4
        if values is not None:
            wanted = values.requires_grad and torch.is_grad_enabled()
            dtype = str(values.dtype).removeprefix("torch.")
            facts = f"{values.shape[1]}", dtype, values.device.type, "yes" if wanted else "no"
        names = (f"{name}.{fact}" for fact in ("shape[1]", "dtype", "device", "requires_grad"))
        found |= dict(zip(names, facts, strict=True))
    for name in ("labels", "ref_labels", "ref_index", "weights"):
        found[name] = "missing" if getattr(call, name) is None else "given"
    indices = call.indices_tuple
    return found | {"indices_tuple": "missing" if indices is None else f"{len(indices)}"}


def _require_equal(tables: Sequence[dict[str, str]]) -> None:
    """Raise an error that names the first entry in which a process differs from rank 0."""
    for rank, table in enumerate(tables):
        for name in tables[0] | table:
            here, there = (of_rank.get(name, "missing") for of_rank in (tables[0], table))
            if here != there:
                raise ValueError(
                    f"{name} is {here} on rank 0, {there} on rank {rank}: one loss of several "
                    "processes needs the same settings and batches of one kind on all of them"
                )


class _GatheredRows(torch.autograd.Function):
    """The rows of all processes, in the order of their ranks.

    A process's own rows receive R times their gradient, for R processes: the mean over processes
    that DistributedDataParallel takes is then exact. The backward pass sends nothing.
    """

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: Processes, counts: tuple[int, ...]) -> Tensor:
        ctx.own, ctx.size = own_rows(counts, processes.rank), processes.size
        return processes.gather(rows.detach(), counts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return gradients[0][ctx.own] * ctx.size, None, None
