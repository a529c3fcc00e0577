"""Which balanced kernels suit given similarities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeGuard

from torch import Tensor

from tricouple.memory import IN_MATRICES, MemoryPlan
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.linear_kernels import LinearKernels
from tricouple.ot.sweeps.similarities import Products, Similarities
from tricouple.ot.sweeps.symmetric_kernels import SymmetricKernels
from tricouple.ot.sweeps.tiles import Kernels


class BalancedKernels(Kernels, Protocol):
    """Kernels ``exp(factor · s)``, balanced by row and column shifts."""

    @property
    def row_shifts(self) -> Sequence[Tensor]:
        """``log(true scaling) = log(scaling) + shift`` of each kernel's rows, wide dtype."""


def balanced_kernels(
    similarities: Similarities,
    factors: Sequence[float],
    *,
    within: bool,
    memory: MemoryPlan = IN_MATRICES,
    halved: bool = True,
) -> BalancedKernels:
    """``exp(factor · s)`` for each factor; half of each matrix where that tells the other half.

    Args:
        similarities: s, shape (N, M).
        factors: The factors, of one size; negative for a repelling kernel.
        within: Exclude the diagonal.
        memory: Whether the kernels are stored, or recomputed a tile at a time.
        halved: Whether half a matrix will do: it is faster, but rows and columns then share their
            shifts, which outliers do not suit.
    """
    # The compiled sweeps of small batches want whole matrices.
    small = not memory.streamed and native.suits(similarities)
    if halved and not small and can_be_halved(similarities, within=within):
        return SymmetricKernels(similarities, factors, memory)
    return LinearKernels(similarities, factors, within=within, memory=memory)


def can_be_halved(similarities: Similarities, *, within: bool) -> TypeGuard[Products]:
    """Whether they are those of one set with itself, and there is compiled code for halves."""
    return (
        native.compiled is not None
        and within
        and isinstance(similarities, Products)
        and similarities.anchors is similarities.references
        and similarities.like.device.type == "cpu"
    )
