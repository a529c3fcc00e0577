"""Room for N×N matrices, and how to do without.

The system hands out fresh memory in pages of 4 KiB, and touching each for the first time costs more
than the arithmetic that fills it. Where Linux offers huge pages on request, large matrices ask.
"""

from __future__ import annotations

import ctypes
import math
import sys
import weakref
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

# Entries of a tile on which several operations are done while it is in the cache.
CACHED = 1 << 21

DEFAULT_BUDGET = 2**31  # bytes

MEMORY_MODES = ("auto", "matrices", "streamed")

_LARGE = 1 << 22  # bytes; below this the request costs more than it saves
_PAGE = 4096
_MADV_HUGEPAGE = 14


@cache
def _madvise() -> Any:
    if sys.platform != "linux":
        return None
    try:
        function = ctypes.CDLL(None, use_errno=True).madvise
    except (OSError, AttributeError):
        return None
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return function


def empty_matrix(like: Tensor, *shape: int) -> Tensor:
    """An uninitialised tensor with the dtype and device of another, on huge pages if large.

    An ordinary tensor even under inference mode: it may end up as somebody's gradient.
    """
    with torch.inference_mode(False):
        matrix = torch.empty(shape, dtype=like.dtype, device=like.device)
    size = matrix.numel() * matrix.element_size()
    if size >= _LARGE and matrix.device.type == "cpu" and _madvise() is not None:
        start = matrix.data_ptr()
        aligned = -(-start // _PAGE) * _PAGE
        _madvise()(aligned, size - (aligned - start), _MADV_HUGEPAGE)  # advice: it may be ignored
    return matrix


# Matrices that were given back, for the next batch: their memory is known to the system. By kind,
# those last asked for at the end.
_Kind = tuple[tuple[int, ...], torch.dtype]
_returned: OrderedDict[_Kind, list[Tensor]] = OrderedDict()

# Two losses, or full batches and a last one that is not, take turns; hard ones take several kinds.
_KINDS = 3

# Of each kind: what one step asks for. More are left by many losses that were alive at once.
_OF_A_KIND = 4


def empty_cache() -> None:
    """Give the system all matrices that wait for their next use.

    Example:
        >>> empty_cache()
    """
    _returned.clear()


class Loan:
    """Uninitialised matrices for as long as this object lives; then others may have them.

    Training asks for the same matrices in every step, and fresh memory costs more than the
    arithmetic that fills it. Only a few matrices of the kinds last asked for are kept, until
    ``empty_cache``, and only on the CPU: other devices have allocators that do this.
    """

    def __init__(self, number: int, like: Tensor, *shape: int) -> None:
        self.matrices: list[Tensor] = []
        if like.device.type == "cpu":
            kind = (shape, like.dtype)
            kept = _returned.setdefault(kind, [])
            _returned.move_to_end(kind)
            while len(_returned) > _KINDS:
                _returned.popitem(last=False)
            while kept and len(self.matrices) < number:
                self.matrices.append(kept.pop())
            weakref.finalize(self, _give_back, kind, self.matrices).atexit = False
        missing = number - len(self.matrices)
        self.matrices += [empty_matrix(like, *shape) for _ in range(missing)]


def _give_back(kind: _Kind, matrices: list[Tensor]) -> None:
    if kind in _returned:
        kept = _returned[kind]
        kept += matrices[: _OF_A_KIND - len(kept)]


@dataclass(frozen=True)
class Storage:
    """How a coupling of one batch uses memory."""

    streamed: bool  # recompute tiles of the kernels in each pass, instead of storing N×M matrices
    tile_entries: int  # numbers in a tile
    budget: float  # bytes that matrices may take; infinite if they are asked for


# For what is not worth streaming, such as similarities that were given as a matrix.
IN_MATRICES = Storage(streamed=False, tile_entries=CACHED, budget=math.inf)


def choose_storage(
    mode: str, budget: float, shape: tuple[int, int], like: Tensor, *, matrices: float
) -> Storage:
    """Choose between stored and streamed kernels.

    Args:
        mode: ``"matrices"``, ``"streamed"``, or ``"auto"``: matrices if the budget allows them.
        budget: Bytes for the N×M matrices, or for the tiles.
        shape: (N, M).
        like: A tensor with the dtype and device of the entries.
        matrices: How many N×M matrices would be stored.

    Raises:
        ValueError: If not even a tile of one row fits in the budget.
    """
    n, m = shape
    size = like.element_size()
    streamed = mode == "streamed" or (mode == "auto" and matrices * n * m * size > budget)
    # Similarities, both kernels, and two more in the backward pass.
    tiles = 5
    if streamed and tiles * m * size > budget:
        raise ValueError(
            f"memory_budget={budget:.0f} bytes is too small: a tile of one row of {m} references "
            f"takes {tiles * m * size}"
        )
    # Matrix products like larger tiles than sums do; accelerators like them larger still.
    wanted = 2 * CACHED if like.device.type == "cpu" else 32 * CACHED
    fitting = int(min(wanted, budget // (tiles * size)))
    return Storage(streamed, max(m, fitting), math.inf if mode == "matrices" else budget)
