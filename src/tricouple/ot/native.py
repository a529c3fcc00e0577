"""The compiled module, called by addresses: loading, threads, large matrices.

PyTorch code computes the same where there is no compiled module.
"""

import importlib
import os
import warnings
from typing import Any

import torch  # first: the module then finds PyTorch's own OpenMP runtime
from torch import Tensor

from tricouple.numeric import on_host

# The calls of the compiled module; to be raised here and in module.c whenever one changes.
CALLS = 122

_SMALL = 1 << 17  # entries of a matrix below which one thread is faster than two
_LARGE = 1 << 22  # bytes of a matrix that asks for huge pages


def _load() -> Any:
    """The compiled module; None where it is not wanted, not built, or from other sources."""
    if os.environ.get("TRICOUPLE_NATIVE") == "0":
        return None
    try:
        module = importlib.import_module("tricouple.ot._native")
    except ImportError:  # built without a compiler
        return None
    if getattr(module, "CALLS", 0) != CALLS:
        warnings.warn(
            f"{module.__file__} was built from another version of tricouple and is not used, which "
            "costs speed: delete it and install the package again (pip install -e .)",
            stacklevel=2,
        )
        return None
    return module


library = _load()
_process = os.getpid()  # OpenMP has no threads in processes forked from it


def compiled() -> bool:
    """Whether the compiled module is in use, which is faster; results are the same to rounding.

    It is not if there was no C compiler when the package was installed, and not with the
    environment variable ``TRICOUPLE_NATIVE=0``.

    Example:
        >>> compiled() in (True, False)
        True
    """
    return library is not None


def in_c(tensor: Tensor) -> bool:
    """Whether there is compiled code for a tensor where it is."""
    return library is not None and on_host(tensor)


def call(name: str, like: Tensor, *arguments: Any) -> int:
    """Call a function for the dtype of ``like``: numbers, then tensors, callbacks or None."""
    passed = [_address(x) if type(x) is Tensor else x for x in arguments]
    found: int = getattr(library, name)(like.element_size(), *passed)
    return found


def _address(array: Tensor) -> int:
    if not (array.is_cpu and array.is_contiguous()):
        where = f"{array.device}, strides {array.stride()}"
        raise RuntimeError(f"compiled code needs contiguous memory of the CPU, got {where}")
    return array.data_ptr()


def threads(entries: int) -> int:
    """How many threads share a pass over so many entries."""
    return 1 if entries < _SMALL or os.getpid() != _process else torch.get_num_threads()


def empty_matrix(like: Tensor, *shape: int, dtype: torch.dtype | None = None) -> Tensor:
    """An uninitialised tensor on the device of another; large ones ask for huge pages.

    Fresh memory in pages of 4 KiB costs more than the product that fills it.
    """
    matrix = like.new_empty(shape, dtype=dtype)
    if matrix.nbytes >= _LARGE and in_c(matrix):
        library.advise(matrix.data_ptr(), matrix.nbytes)
    return matrix
