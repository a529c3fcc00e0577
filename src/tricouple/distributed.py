"""One batch over several processes: who has which rows, and what they tell each other.

Kernels are distributed, vectors are not (mathematics §7): each process owns a share of every N×M
matrix, and sums over its rows or columns end in an all-reduce of N numbers, after which all
processes hold the same vectors. Whatever decides how to go on is agreed upon, for two hosts may
round differently, and a process that took another way would be waited for.
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

# For so many seconds a process waits awake for the others: waking takes longer than most messages.
_AWAKE = 0.01

_give_way = getattr(os, "sched_yield", lambda: time.sleep(0))

Group = Any
"""``None``, ``"world"``, a ``ProcessGroup`` or a one-dimensional ``DeviceMesh``."""


def check_group(group: Group) -> None:
    """Require what ``Team.of`` understands."""
    if group is None or group == "world" or hasattr(group, "get_group"):
        return
    if not (dist.is_available() and isinstance(group, dist.ProcessGroup)):
        raise ValueError(
            f'group must be None, "world", a torch.distributed.ProcessGroup or a DeviceMesh of one '
            f"dimension, got {group!r}"
        )


@dataclass(frozen=True)
class Team:
    """Processes that compute one thing together."""

    group: Any  # torch.distributed's
    rank: int  # of this process
    size: int  # how many they are

    @classmethod
    def of(cls, group: Group) -> Team | None:
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
        _wait_awake(dist.all_gather(list(both), values.contiguous(), self.group, True))
        return torch.add(*both, out=values)

    def max_(self, values: Tensor) -> Tensor:
        """The largest over processes, in place; one message."""
        return self._reduce(values, dist.ReduceOp.MAX)

    def _reduce(self, values: Tensor, operation: Any) -> Tensor:
        work = dist.all_reduce(values, operation, self.group, True)
        if values.is_cpu:  # nobody waits for a device
            _wait_awake(work)
        else:
            work.wait()
        return values

    def agree(self, decision: bool) -> bool:
        """Whether all processes decide so; one message of one number."""
        against = torch.tensor(int(not decision), device=self._talking_device())
        return int(self.max_(against)) == 0

    def gather(self, values: Tensor, counts: Sequence[int]) -> Tensor:
        """The rows of all processes in the order of their ranks, so many of each; one message."""
        most = max(counts)
        # Collectives want equal shapes: pad with rows that nobody reads.
        padded = values.contiguous()
        if len(values) < most:
            padded = values.new_zeros(most, *values.shape[1:])
            padded[: len(values)] = values
        received = values.new_empty(self.size, most, *values.shape[1:])
        dist.all_gather(list(received), padded, self.group)
        if min(counts) == most:
            return received.flatten(0, 1)
        return torch.cat([part[:count] for part, count in zip(received, counts, strict=True)])

    def exchange(self, numbers: Sequence[int], problem: str | None = None) -> list[list[int]]:
        """The numbers of every process, as many as this one's; one message.

        Raises:
            ValueError: The same one on all processes, if one of them has a problem.
        """
        text, device = (problem or "").encode(), self._talking_device()
        told = torch.tensor([[len(text), *numbers]], device=device)
        found: list[list[int]] = self.gather(told, [1] * self.size).tolist()
        lengths = [row[0] for row in found]
        if not any(lengths):
            return [row[1:] for row in found]
        letters = torch.tensor(list(text), dtype=torch.uint8, device=device)
        said = self.gather(letters, lengths)
        first = next(rank for rank, length in enumerate(lengths) if length)
        message = bytes(said[own(lengths, first)].tolist()).decode()
        raise ValueError(f"rank {first} of {self.size}: {message}")

    def before(self, count: int, problem: str | None = None) -> int:
        """How many samples the processes before this one have, which has so many; one message."""
        counts = [found for (found,) in self.exchange([count], problem)]
        return sum(counts[: self.rank])

    def _talking_device(self) -> torch.device:
        """Where messages of a few numbers can be sent from."""
        kinds = dist.get_backend_config(self.group)
        if "cpu:" in kinds:
            return torch.device("cpu")
        return torch.device(kinds.partition(":")[0])


@dataclass(frozen=True)
class Shard(Team):
    """A batch gathered from several processes, as one of them sees it.

    A function of such a batch needs to give the gradient of this process's own rows alone: the
    others are not asked for.
    """

    anchors: tuple[int, ...]  # how many each process has
    references: tuple[int, ...]  # likewise

    @property
    def rows(self) -> slice:
        """Which anchors are this process's own."""
        return own(self.anchors, self.rank)

    @property
    def columns(self) -> slice:
        """Which references are this process's own."""
        return own(self.references, self.rank)

    def mirrored(self) -> Shard:
        """The same with anchors for references."""
        return replace(self, anchors=self.references, references=self.anchors)


def _wait_awake(work: Any) -> None:
    """Wait for a message, with the core free for whoever needs it, and asleep if it takes long."""
    end = time.monotonic() + _AWAKE
    while not work.is_completed() and time.monotonic() < end:
        _give_way()
    work.wait()


def own(counts: Sequence[int], rank: int) -> slice:
    """The rows of one process, where each has so many.

    Example:
        >>> own([3, 0, 2], 2)
        slice(3, 5, None)
    """
    start = sum(counts[:rank])
    return slice(start, start + counts[rank])
