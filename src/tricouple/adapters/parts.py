"""What the adapters share: criteria that take any batch, and the rows of all processes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from tricouple.losses.base import ContrastiveLoss


@contextmanager
def adapted_library() -> Iterator[None]:
    """Around the imports of an adapted library: says which extra installs it if it is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        library = (error.name or str(error)).partition(".")[0]
        raise ImportError(
            f"{library} is missing: pip install '.[adapters]' in a clone of tricouple"
        ) from error


def for_any_batch(criterion: ContrastiveLoss) -> ContrastiveLoss:
    """The criterion, which from now on gives zero where there is nothing to learn.

    Loops of these libraries meet such batches (the last one of an epoch has one sample, a miner
    finds nothing) and expect zero.
    """
    if not isinstance(criterion, ContrastiveLoss):
        raise TypeError(
            "criterion must be a loss of tricouple, such as tricouple.NegMMIOT(), got "
            f"{type(criterion).__name__}"
        )
    criterion.empty = "zero"
    return criterion


def gathered(rows: Tensor) -> Tensor:
    """The rows of all processes, in the order of their ranks; the rows themselves if alone.

    Every process is to compute the same loss of all rows. Its own rows then receive R times their
    gradient for R processes, which the mean that DistributedDataParallel takes over parameters
    turns into the gradient of that one loss; nothing is sent in the backward pass. Processes may
    have different numbers of rows.
    """
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1):
        return rows
    return _Gathered.apply(rows)  # type: ignore[no-any-return, no-untyped-call]


class _Gathered(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        rank, world = dist.get_rank(), dist.get_world_size()
        shapes = [
            torch.empty(rows.ndim, dtype=torch.long, device=rows.device) for _ in range(world)
        ]
        dist.all_gather(shapes, torch.tensor(rows.shape, device=rows.device))
        sizes = [int(shape[0]) for shape in shapes]
        if len({tuple(shape[1:].tolist()) for shape in shapes}) > 1:
            widths = [shape[1:].tolist() for shape in shapes]
            raise ValueError(f"the processes have rows of different dimensions: {widths}")
        # Collectives want equal shapes: pad with rows that nobody reads.
        padded = rows.new_zeros(max(sizes), *rows.shape[1:])
        padded[: len(rows)] = rows
        received = [torch.empty_like(padded) for _ in sizes]
        dist.all_gather(received, padded)
        start = sum(sizes[:rank])
        ctx.own, ctx.world = slice(start, start + len(rows)), world
        return torch.cat([part[:size] for part, size in zip(received, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        own: Tensor = gradients[0][ctx.own] * ctx.world
        return own
