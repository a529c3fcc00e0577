"""The door to the compiled module: whole runs of sweeps in one call, for small batches on the CPU.

A sweep of 256 samples is twenty PyTorch calls for a few microseconds of arithmetic; the compiled
module makes it one call for all sweeps. It is optional: built where there is a C compiler, and used
only where it pays.
"""

from __future__ import annotations

import importlib
import warnings
from typing import Any, Protocol

from torch import Tensor

# The calls of the compiled module; to be raised here and in _native.c whenever one changes.
CALLS = 1


def load() -> Any:
    """The compiled module; None where it was not built, or from other sources than these."""
    try:
        module = importlib.import_module("tricouple.ot.sweeps._native")
    except ImportError:  # built without a compiler
        return None
    if getattr(module, "CALLS", 0) != CALLS:
        warnings.warn(
            f"{module.__file__} was built from another version of tricouple and is not used, which "
            "costs speed: install the package again (pip install -e .)",
            stacklevel=2,
        )
        return None
    return module


compiled = load()

# Above this many entries PyTorch's products on all cores win over one core here.
LARGEST = 1024 * 1024


class Sized(Protocol):
    """A matrix, or what stands for one."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""

    @property
    def like(self) -> Tensor:
        """A tensor on its device."""


def suits(matrix: Sized) -> bool:
    """Whether the compiled module is there and is the faster choice for an N×M matrix."""
    n, m = matrix.shape
    return compiled is not None and matrix.like.device.type == "cpu" and n * m <= LARGEST


def addresses(*arrays: Tensor) -> list[int]:
    """Where contiguous arrays start."""
    return [array.data_ptr() for array in arrays]


def balance_into(
    similarity: Tensor, sharpness: float, within: bool, kernel: Tensor, tops: Tensor
) -> None:
    """Write a balanced kernel and the tops of its rows and columns."""
    n, m = similarity.shape
    arrays = addresses(similarity, kernel, tops, tops[n:])
    compiled.balance(kernel.element_size(), n, m, int(within), sharpness, *arrays)


def optional(tol: float | None) -> float:
    """The C side takes a negative tolerance for "none"."""
    return -1.0 if tol is None else float(tol)
