"""Work that releases the interpreter's lock, shared among as many threads as PyTorch uses."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import TypeVar

import torch

Item = TypeVar("Item")
Result = TypeVar("Result")


@cache
def _pool(n_threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(n_threads, "tricouple")


if hasattr(os, "register_at_fork"):  # a forked process has none of its parent's threads
    os.register_at_fork(after_in_child=_pool.cache_clear)


def dealt(items: Sequence[Item]) -> list[list[Item]]:
    """Shares for threads, the same each time, so that sums are the same each time.

    Items are dealt to and fro: if they come in order of size, all shares are about as large.

    Example:
        >>> sorted(sum(dealt(range(10)), [])) == list(range(10))
        True
    """
    n = max(1, min(torch.get_num_threads(), len(items)))
    return [[*items[k :: 2 * n], *items[2 * n - 1 - k :: 2 * n]] for k in range(n)]


def in_threads(work: Callable[[Item], Result], shares: Sequence[Item]) -> list[Result]:
    """The results for all shares, each from a thread of its own.

    Example:
        >>> in_threads(sum, [[1, 2], [3]])
        [3, 3]
    """
    own = torch.inference_mode()(work)  # a setting of each thread
    others = [_pool(len(shares) - 1).submit(own, share) for share in shares[1:]]
    return [own(shares[0]), *(other.result() for other in others)]
