"""Sums over kernels, which may come in tiles: stored, or recomputed whenever they pass."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tricouple.memory import CACHED
from tricouple.numeric import ScoreGradient


class Tile(NamedTuple):
    """Some rows of the kernels that were asked for.

    Attributes:
        rows: Which anchors.
        kernels: Shape (Q, rows, M) for each kernel asked for, Q the number of terms.
    """

    rows: slice
    kernels: Sequence[Tensor]


class Factors(NamedTuple):
    """A low-rank matrix for each term of a kernel: ``Σ_t left_tqi right_tj``.

    Attributes:
        left: Shape (T, Q, N).
        right: Shape (T, M).
    """

    left: Tensor
    right: Tensor


class Kernels(Protocol):
    """One or two kernels on the same similarities, each a sum of Q separable terms.

    Attributes:
        shape: (N, M).
        n_terms: Q.
        like: A tensor with the dtype and device of the entries.
    """

    shape: tuple[int, int]
    n_terms: int
    like: Tensor

    @property
    def column_shifts(self) -> Sequence[Tensor]:
        """``log(true scaling) = log(scaling) + shift`` of each kernel's columns, wide dtype."""

    def release(self) -> None:
        """Free the memory of what can be computed again."""

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Row sums of one kernel, turned into weights, through the columns of another.

        Args:
            near: The kernel whose row sums are taken.
            far: The kernel whose column sums are taken; may be the same.
            weights: Weights of the columns, shape (M,).
            between: Turns the sums of some rows, shape (Q, rows), into weights of that shape.

        Returns:
            Shape (M,).
        """

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """``Σ slope ∘ (left @ right) ∘ kernel`` over kernels and terms."""


class RowTiles(ABC):
    """Sums over kernels that come in tiles of whole rows."""

    shape: tuple[int, int]
    n_terms: int

    @abstractmethod
    def tiles(self, which: Sequence[int], entries: int | None = None) -> Iterator[Tile]:
        """All rows of some kernels, from the first to the last."""

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""
        sums = weights.new_empty(self.n_terms, self.shape[0])
        for rows, (kernel,) in self.tiles([which]):
            sums[:, rows] = _rows(kernel, weights)
        return sums

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""
        sums = weights.new_zeros(self.shape[1])
        for rows, (kernel,) in self.tiles([which]):
            _add_columns(sums, kernel, weights[:, rows])
        return sums

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Both in one pass over the tiles."""
        which = [near] if near == far else [near, far]
        received = weights.new_zeros(self.shape[1])
        # Rows that are used twice are best used twice while they are in the cache.
        for rows, used in self.tiles(which, CACHED if near == far else None):
            left = between(rows, _rows(used[0], weights))
            _add_columns(received, used[-1], left)
        return received


def _rows(kernel: Tensor, weights: Tensor) -> Tensor:
    return torch.mv(kernel.reshape(-1, kernel.shape[-1]), weights).view(kernel.shape[:-1])


def _add_columns(sums: Tensor, kernel: Tensor, weights: Tensor) -> None:
    torch.addmv(sums, kernel.reshape(-1, kernel.shape[-1]).T, weights.reshape(-1), out=sums)


def underflow_margin(dtype: torch.dtype) -> float:
    """How large a sum must be for terms lost to underflow not to matter (see ``exponential_``)."""
    info = torch.finfo(dtype)
    return float(3 * info.tiny / info.eps**2)
