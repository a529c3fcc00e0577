"""Room for N×N matrices.

The system hands out fresh memory in pages of 4 KiB, and touching each for the first time costs more
than the arithmetic that fills it. Where Linux offers huge pages on request, large matrices ask.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

import torch
from torch import Tensor

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
