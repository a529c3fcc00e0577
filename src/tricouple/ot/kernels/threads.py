"""Work that releases the interpreter's lock, shared among as many threads as PyTorch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "tricouple")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def in_threads(work: Callable[[Item], Result], shares: Sequence[Item]) -> list[Result]:
    """The results for all shares, each from a thread of its own.

    The work must be compiled code that releases the interpreter's lock, and no PyTorch operation
    that is parallel itself: OpenMP would give each thread a team of its own, and with more threads
    than cores all its teams, those of the whole process, go to sleep after every operation.

    Example:
        >>> in_threads(sum, [[1, 2], [3]])
        [3, 3]
    """
    others = [_pool(len(shares) - 1).submit(work, share) for share in shares[1:]]
    return [work(shares[0]), *(other.result() for other in others)]
