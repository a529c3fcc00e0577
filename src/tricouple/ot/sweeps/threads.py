"""Work shared among threads, none of which is left behind."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar

import torch

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    from concurrent.futures import ThreadPoolExecutor  # not before it is needed: it takes time

    return ThreadPoolExecutor(n_threads, "tricouple")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_threads(work: Callable[[Item], Result], shares: Sequence[Item]) -> list[Result]:
    """The results for all shares, each from a thread of its own.

    The work must be compiled code that releases the interpreter's lock, and no PyTorch operation
    that is parallel itself: OpenMP would give each thread a team of its own, and with more threads
    than cores all its teams, those of the whole process, go to sleep after every operation. For
    matrix products see ``in_passing_threads``.

    Nobody is left at work when this ends, not even by an error or Ctrl-C: the shares hold addresses
    of memory that others may have next.

    Example:
        >>> in_threads(sum, [[1, 2], [3]])
        [3, 3]
    """
    if len(shares) == 1:
        return [work(shares[0])]
    return _shared(_pool(len(shares) - 1), work, shares)


def dealt(items: Sequence[Item], thread: int, n_threads: int) -> list[Item]:
    """The share of a thread, dealt to and fro: of items in order of size all get about as much.

    Example:
        >>> dealt(range(6), 0, 2), dealt(range(6), 1, 2)
        ([0, 4, 3], [1, 5, 2])
    """
    step = 2 * n_threads
    return [*items[thread::step], *items[step - 1 - thread :: step]]


def in_passing_threads(work: Callable[[Item], None], shares: Sequence[Item]) -> None:
    """The same for work with matrix products, each of which stays on its thread.

    These threads end with the work: OpenMP counts every living thread that it has seen.
    """
    from concurrent.futures import ThreadPoolExecutor

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(max(1, len(shares) - 1)) as pool:
            _shared(pool, work, shares)
    finally:
        torch.set_num_threads(before)


def _shared(
    pool: ThreadPoolExecutor, work: Callable[[Item], Result], shares: Sequence[Item]
) -> list[Result]:
    """The first share here, the others in the pool."""
    others: list[Future[Result]] = []
    try:
        others.extend(pool.submit(work, share) for share in shares[1:])
        return [work(shares[0]), *(other.result() for other in others)]
    finally:
        _wait(others)


def _wait(others: Sequence[Future[Any]]) -> None:
    """Until all are done, however often Ctrl-C is pressed meanwhile."""
    from concurrent.futures import wait

    pressed: KeyboardInterrupt | None = None
    while not all(other.done() for other in others):
        try:
            wait(others)
        except KeyboardInterrupt as again:
            pressed = again
    if pressed is not None:
        raise pressed
