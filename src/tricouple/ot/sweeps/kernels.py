"""Kernels, the N×M matrices that couplings scale: their similarities, their tiles, their sums.

At the paper's defaults the entries of exp(c·s) span e^{±100}, beyond float32. Sinkhorn's scalings
undo most of that, so a kernel has row and column shifts that make the largest entry of every
column exactly 1 and that of every row nearly so; the scalings that remain are moderate, and
matrix-vector products in plain float32 replace log-sum-exp over N² entries (mathematics §2,
trust). Kernels come in tiles: stored, or recomputed whenever they pass.
"""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import CACHED, IN_MATRICES, Loan, Storage, empty_matrix
from tricouple.numeric import (
    OwnGradient,
    Patch,
    ScoreGradient,
    exponential_,
    row_blocks,
    wide_dtype,
)
from tricouple.ot.sweeps.contract import Coupling


@dataclass(frozen=True)
class Matrix:
    """Similarities that were given."""

    values: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        n, m = self.values.shape
        return n, m

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the entries."""
        return self.values

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """A copy of some rows, written to ``out``."""
        return out.copy_(self.values[rows])

    def matrix(self) -> Tensor:
        """All rows, contiguous. Not to be written to."""
        return self.values.contiguous()

    def widened(self) -> Matrix:
        """A copy in the wide dtype."""
        return Matrix(self.values.to(wide_dtype(self.values.device)))

    def scaled(self, factor: float | Tensor) -> Matrix:
        """A copy in the wide dtype times a factor, which nobody reads."""
        return Matrix(self.widened().values * factor)


@dataclass(frozen=True)
class Products:
    """Inner products of anchors (N, d) and references (M, d)."""

    anchors: Tensor
    references: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return self.anchors.shape[0], self.references.shape[0]  # quicker than len()

    @property
    def like(self) -> Tensor:
        """The anchors."""
        return self.anchors

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """One matrix product."""
        return torch.mm(self.anchors[rows], self.references.T, out=out)

    def matrix(self) -> Tensor:
        """All products."""
        return self.tile(slice(None), empty_matrix(self.anchors, *self.shape))

    def mirrored(self) -> Products:
        """Transposed."""
        return Products(self.references, self.anchors)

    def bound(self) -> float:
        """What no product exceeds in size."""
        norms = [side.norm(dim=1).max() for side in (self.anchors, self.references)]
        return 1.001 * float(norms[0] * norms[1])

    def widened(self) -> Products:
        """Of the embeddings in the wide dtype."""
        wide = wide_dtype(self.anchors.device)
        anchors = self.anchors.to(wide)
        same = self.references is self.anchors
        return Products(anchors, anchors if same else self.references.to(wide))

    def scaled(self, factor: float | Tensor) -> Products:
        """Of the embeddings in the wide dtype, the anchors times a factor."""
        wide = self.widened()
        return Products(wide.anchors * factor, wide.references)


Similarities = Matrix | Products
"""An N×M matrix that need not exist as a whole."""


class Tile(NamedTuple):
    """Some rows of the kernels that were asked for."""

    rows: slice  # which anchors
    kernels: Sequence[Tensor]  # shape (Q, rows, M) for each kernel asked for, Q the number of terms


class Factors(NamedTuple):
    """A low-rank matrix for each term of a kernel: ``Σ_t left_tqi right_tj``."""

    left: Tensor  # shape (T, Q, N)
    right: Tensor  # shape (T, M)


class Kernels(ABC):
    """One or two kernels on the same similarities, each a sum of Q separable terms."""

    shape: tuple[int, int]  # (N, M)
    n_terms: int = 1  # Q
    shard: Shard | None = None  # the processes that have a share of them, if there are several
    like: Tensor  # a tensor with the dtype and device of the entries
    # Logarithm of the product of both kernels' entries at j = k, summed over terms (mathematics §2:
    # there E⁺E⁻ = 1).
    log_excluded: float = 0.0
    # ``log(true scaling) = log(scaling) + shift`` of each kernel's rows, wide dtype.
    row_shifts: Sequence[Tensor]
    column_shifts: Sequence[Tensor]  # the same of each kernel's columns

    @cached_property
    def row_shift(self) -> Tensor:
        """The shift of rows that all kernels share, as the anchors of triplets."""
        return torch.stack(list(self.row_shifts)).sum(0)

    @abstractmethod
    def release(self) -> None:
        """Free the memory of what can be computed again."""

    @abstractmethod
    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""

    @abstractmethod
    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""

    @abstractmethod
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

    @abstractmethod
    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """``Σ slope ∘ (left @ right) ∘ kernel`` over kernels and terms (mathematics §4)."""


class ScaledCoupling(Coupling):
    """Kernels that are scaled to marginals in their own digits."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels, self.dtype, self.shard = kernels, kernels.like.dtype, kernels.shard

    def release(self) -> None:
        """Give up the kernels' matrices until they are needed again."""
        self.kernels.release()

    def forces(self, terms: Sequence[Any]) -> ScoreGradient:
        """``left rightᵀ ∘ kernel`` for each kernel, in one product (mathematics §4, unrolled).

        A term is the left vectors, shape (Q, N), of all kernels, and the right ones, (M,). What
        j ≠ k excludes adds nothing: at j = k the product of the kernels is constant.
        """
        lefts, rights = (zip(*side, strict=True) for side in zip(*terms, strict=True))
        return self.kernels.score_gradient(
            [
                Factors(torch.stack(left), torch.stack(right))
                for left, right in zip(lefts, rights, strict=True)
            ]
        )


class LinearKernels(Kernels):
    """``exp(factor · s)`` for one factor or several, excluded entries 0; one separable term each.

    They come in tiles of whole rows. They are not the one-term case of ``TermKernels``, which take
    logarithms of what is multiplied already: here tops are subtracted before the factor is applied,
    and differences of nearby similarities are exact in floating point, so the entries that matter
    keep their digits.

    Args:
        similarities: s, shape (N, M); an entry with score −∞ is excluded.
        factors: The factors; negative for a repelling kernel.
        within: Exclude the diagonal.
        storage: Whether the kernels are stored, or recomputed a tile at a time.
        shard: Processes, each of which has the rows of its own anchors.
    """

    def __init__(
        self,
        similarities: Similarities,
        factors: Sequence[float],
        *,
        within: bool,
        storage: Storage = IN_MATRICES,
        shard: Shard | None = None,
    ) -> None:
        self.similarities, self.factors, self.within = similarities, tuple(factors), within
        self.shard = shard
        self.shape, self.like = similarities.shape, similarities.like
        self.tile_entries = storage.tile_entries
        self.stored = not storage.streamed
        self.loan: Loan | None = None
        self.matrices: Sequence[Tensor] = []
        self.tops = self._build() if self.stored else self._tops(None)

    def _build(self) -> list[tuple[Tensor, Tensor]]:
        """Fill the matrices; return the tops of their rows and columns."""
        n_rows = self._own.stop - self._own.start
        self.loan = Loan(len(self.factors), self.like, n_rows, self.shape[1])
        self.matrices = self.loan.matrices
        tops = self._tops(self.matrices)
        for block in row_blocks(n_rows, self.shape[1]):
            for matrix, factor, (_, columns) in zip(self.matrices, self.factors, tops, strict=True):
                exponential_(matrix[block].sub_(columns).mul_(abs(factor)))
        return tops

    @property
    def _own(self) -> slice:
        """The rows that are this process's."""
        return slice(0, self.shape[0]) if self.shard is None else self.shard.rows

    def _blocks(self, entries: int) -> list[slice]:
        own = self._own
        blocks = row_blocks(own.stop - own.start, self.shape[1], entries)
        return [slice(own.start + block.start, own.start + block.stop) for block in blocks]

    def _rooms(self, number: int, blocks: Sequence[slice]) -> Tensor:
        """Room for so many tiles."""
        height = max((block.stop - block.start for block in blocks), default=0)
        return self.like.new_empty(number, height, self.shape[1])

    def release(self) -> None:
        """Give the matrices back; whoever asks for them again has them built again."""
        self.loan, self.matrices = None, []

    def whole(self, number: int) -> Tensor:
        """A stored kernel, shape (N, M); of several processes, this one's rows."""
        if not self.matrices:
            self._build()
        return self.matrices[number]

    @cached_property
    def row_shifts(self) -> list[Tensor]:  # type: ignore[override]
        """``log(true scaling) = log(scaling) + shift`` of each kernel's rows, wide dtype."""
        return self._shifts(0)

    @cached_property
    def column_shifts(self) -> list[Tensor]:  # type: ignore[override]
        """The same of the columns."""
        return self._shifts(1)

    def _shifts(self, side: int) -> list[Tensor]:
        kernels, wide = zip(self.factors, self.tops, strict=True), wide_dtype(self.like.device)
        return [tops[side].to(wide) * -abs(factor) for factor, tops in kernels]

    def _tops(self, logs: Sequence[Tensor] | None) -> list[tuple[Tensor, Tensor]]:
        """The largest ±s of every row, and then of every column, for each kernel.

        With matrices for ``logs``, ``±s − top of row`` is left in them.
        """
        n, m = self.shape
        lowest = torch.finfo(self.like.dtype).min  # stands for −∞ where a whole line is excluded
        found = self.like.new_full((len(self.factors), n + m), lowest)
        tops = [(of_kernel[:n], of_kernel[n:]) for of_kernel in found]
        blocks, first = self._blocks(self.tile_entries), self._own.start
        similarity, spare = self._rooms(2, blocks)
        for block in blocks:
            size, here = block.stop - block.start, slice(block.start - first, block.stop - first)
            tile = self.similarities.tile(block, similarity[:size])
            for number, (factor, (rows, columns)) in enumerate(
                zip(self.factors, tops, strict=True)
            ):
                out = spare[:size] if logs is None else logs[number][here]
                sign = 1.0 if factor > 0 else -1.0
                if self.within:  # keep the diagonal out of the top
                    tile.diagonal(block.start).fill_(-torch.inf * sign)
                top = tile.amax(1) if factor > 0 else -tile.amin(1)
                rows[block] = top.clamp_min_(lowest)
                torch.add(-rows[block, None], tile, alpha=sign, out=out)
                torch.maximum(columns, out.amax(0), out=columns)
        if self.shard is not None:
            self.shard.max_(found)
        return tops

    def tiles(self, which: Sequence[int], entries: int | None = None) -> Iterator[Tile]:
        """Views of what is stored, else tiles in buffers that the next tile overwrites."""
        if self.stored:
            first = self._own.start
            for block in [self._own] if entries is None else self._blocks(entries):
                here = slice(block.start - first, block.stop - first)
                yield Tile(block, [self.whole(number)[None, here] for number in which])
            return
        floor = math.log(2 * torch.finfo(self.like.dtype).tiny)
        blocks = self._blocks(self.tile_entries)
        buffers = self._rooms(1 + len(which), blocks)
        shifts = [
            [side[number].to(self.like.dtype) for side in (self.row_shifts, self.column_shifts)]
            for number in which
        ]
        for block in blocks:
            size = block.stop - block.start
            similarity = self.similarities.tile(block, buffers[0, :size])
            kernels = buffers[1:, None, :size]
            for kernel, number, (rows, columns) in zip(kernels, which, shifts, strict=True):
                factor = self.factors[number]
                torch.add(rows[block, None], similarity, alpha=factor, out=kernel[0])
                # At the floor is as good as at zero, and the exponential is slow below it.
                kernel.add_(columns).clamp_(min=floor).exp_()
                if self.within:
                    kernel[0].diagonal(block.start).zero_()
            yield Tile(block, list(kernels))

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""
        new = weights.new_empty if self.shard is None else weights.new_zeros
        sums = new(self.n_terms, self.shape[0])
        for rows, (kernel,) in self.tiles([which]):
            sums[:, rows] = _rows(kernel, weights)
        return sums if self.shard is None else self.shard.sum_(sums)

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""
        sums = weights.new_zeros(self.shape[1])
        for rows, (kernel,) in self.tiles([which]):
            _add_columns(sums, kernel, weights[:, rows])
        return sums if self.shard is None else self.shard.sum_(sums)

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Both in one pass over the tiles; of several processes, in one message."""
        which = [near] if near == far else [near, far]
        n = self.n_terms * self.shape[0] if self.shard is not None else 0
        found = weights.new_zeros(n + self.shape[1])
        sums, received = found[:n].view(self.n_terms, -1), found[n:]
        # Rows that are used twice are best used twice while they are in the cache.
        for rows, used in self.tiles(which, CACHED if near == far else None):
            mine = _rows(used[0], weights)
            _add_columns(received, used[-1], between(rows, mine))
            if self.shard is not None:
                sums[:, rows] = mine
        if self.shard is not None:
            self.shard.sum_(found)
            own = self.shard.rows
            for rows in (slice(0, own.start), slice(own.stop, self.shape[0])):
                between(rows, sums[:, rows])
        return received

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Slopes are ±1, relative to the first kernel's score; a tile is valid until the next."""
        if self.shard is None:
            return self._gradient(factors)
        mirrored = [Factors(right[:, None], left[:, 0]) for left, right in factors]
        received = self._mirrored(self.shard)._gradient(mirrored)
        return OwnGradient(self._gradient(factors), [self.shard.rows], received)

    def _mirrored(self, shard: Shard) -> LinearKernels:
        """The transposed kernels, of which a process has the rows of its own references."""
        assert isinstance(self.similarities, Products)
        mirror = copy.copy(self)
        mirror.similarities = self.similarities.mirrored()
        mirror.shape, mirror.shard = mirror.similarities.shape, shard.mirrored()
        mirror.tops = [(columns, rows) for rows, columns in self.tops]
        mirror.row_shifts, mirror.column_shifts = self.column_shifts, self.row_shifts
        mirror.stored, mirror.loan, mirror.matrices = False, None, []
        return mirror

    def _gradient(self, factors: Sequence[Factors]) -> Iterator[Patch]:
        signs = [factor / self.factors[0] for factor in self.factors]
        buffers = self._rooms(2, self._blocks(self.tile_entries))
        for block, kernels in self.tiles(range(len(self.factors)), self.tile_entries):
            size = block.stop - block.start
            total, weights = buffers[0, :size], buffers[1, :size]
            for number, (kernel, (left, right), sign) in enumerate(
                zip(kernels, factors, signs, strict=True)
            ):
                rows = left[:, 0, block].T
                if number == 0:
                    torch.mm(rows, right, out=total).mul_(kernel[0])
                else:
                    torch.mm(rows, right, out=weights)
                    total.addcmul_(weights, kernel[0], value=sign)
            yield Patch(block, total)


def _rows(kernel: Tensor, weights: Tensor) -> Tensor:
    return torch.mv(kernel.reshape(-1, kernel.shape[-1]), weights).view(kernel.shape[:-1])


def _add_columns(sums: Tensor, kernel: Tensor, weights: Tensor) -> None:
    torch.addmv(sums, kernel.reshape(-1, kernel.shape[-1]).T, weights.reshape(-1), out=sums)


def underflow_limit(dtype: torch.dtype, shape: Sequence[int]) -> float:
    """How many times what is left of a sum may have been lost to underflow without mattering.

    An entry below the smallest normal number is lost (see ``exponential_``): with weights of at
    most w all lost entries of a line add up to less than max(N, M) · 3 · tiny · w.
    """
    info = torch.finfo(dtype)
    return float(info.eps**2 / (3 * info.tiny * max(shape)))
