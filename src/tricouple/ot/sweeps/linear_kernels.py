"""Balanced kernels exp(factor · s).

At the paper's defaults the entries of exp(c·s) span e^{±100}, beyond float32. Sinkhorn's scalings
undo most of that, so a kernel has row and column shifts that make the largest entry of every
column exactly 1 and that of every row nearly so; the scalings that remain are moderate, and
matrix-vector products in plain float32 replace log-sum-exp over N² entries.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from tricouple.memory import IN_MATRICES, Loan, MemoryPlan
from tricouple.numeric import Patch, ScoreGradient, exponential_, row_blocks, wide_dtype
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.tiles import Factors, RowTiles, Tile


class LinearKernels(RowTiles):
    """``exp(factor · s)`` for one factor or several, excluded entries 0; one separable term each.

    Args:
        similarities: s, shape (N, M); an entry with score −∞ is excluded.
        factors: The factors; negative for a repelling kernel.
        within: Exclude the diagonal.
        memory: Whether the kernels are stored, or recomputed a tile at a time.
    """

    n_terms = 1

    def __init__(
        self,
        similarities: Similarities,
        factors: Sequence[float],
        *,
        within: bool,
        memory: MemoryPlan = IN_MATRICES,
    ) -> None:
        self.similarities, self.factors, self.within = similarities, tuple(factors), within
        self.shape, self.like = similarities.shape, similarities.like
        self.tile_entries = memory.tile_entries
        self.stored = not memory.streamed
        self._loan: Loan | None = None
        self._matrices: list[Tensor] = []
        if self.stored:
            self.tops = self._build()
        else:
            self.tops = self._tops(None)

    def _build(self) -> list[tuple[Tensor, Tensor]]:
        """Fill the matrices; return the tops of their rows and columns."""
        if native.suits(self):
            return self._compiled()
        self._loan = Loan(len(self.factors), self.like, *self.shape)
        self._matrices = self._loan.matrices
        tops = self._tops(self._matrices)
        for block in row_blocks(*self.shape):
            for matrix, factor, (_, columns) in zip(
                self._matrices, self.factors, tops, strict=True
            ):
                exponential_(matrix[block].sub_(columns).mul_(abs(factor)))
        return tops

    def release(self) -> None:
        """Give the matrices back; whoever asks for them again has them built again."""
        self._loan, self._matrices = None, []

    def whole(self, number: int) -> Tensor:
        """A stored kernel, shape (N, M)."""
        if not self._matrices:
            self._build()
        return self._matrices[number]

    @cached_property
    def row_shifts(self) -> list[Tensor]:
        """``log(true scaling) = log(scaling) + shift`` of the rows, wide dtype."""
        return [self._shift(rows, factor) for factor, (rows, _) in self._sides()]

    @cached_property
    def column_shifts(self) -> list[Tensor]:
        """The same of the columns."""
        return [self._shift(columns, factor) for factor, (_, columns) in self._sides()]

    def _sides(self) -> Iterator[tuple[float, tuple[Tensor, Tensor]]]:
        return zip(self.factors, self.tops, strict=True)

    def _shift(self, top: Tensor, factor: float) -> Tensor:
        return top.to(wide_dtype(self.like.device)) * -abs(factor)

    def _tops(self, logs: Sequence[Tensor] | None) -> list[tuple[Tensor, Tensor]]:
        """The largest ±s of every row, and then of every column, for each kernel.

        Tops are taken before the factor is applied: differences of nearby similarities are exact in
        floating point, so the entries that matter keep their digits. With matrices for ``logs``,
        ``±s − top of row`` is left in them.
        """
        n, m = self.shape
        lowest = torch.finfo(self.like.dtype).min  # stands for −∞ where a whole line is excluded
        tops = [(self.like.new_empty(n), self.like.new_full((m,), lowest)) for _ in self.factors]
        blocks = self._blocks(self.tile_entries)
        similarity, spare = self.like.new_empty(2, blocks[0].stop, m)
        for block in blocks:
            size = block.stop - block.start
            tile = self.similarities.tile(block, similarity[:size])
            for number, (factor, (rows, columns)) in enumerate(
                zip(self.factors, tops, strict=True)
            ):
                out = spare[:size] if logs is None else logs[number][block]
                sign = 1.0 if factor > 0 else -1.0
                if self.within:  # keep the diagonal out of the top
                    tile.diagonal(block.start).fill_(-torch.inf * sign)
                top = tile.amax(1) if factor > 0 else -tile.amin(1)
                rows[block] = top.clamp_min_(lowest)
                torch.add(-rows[block, None], tile, alpha=sign, out=out)
                torch.maximum(columns, out.amax(0), out=columns)
        return tops

    def _compiled(self) -> list[tuple[Tensor, Tensor]]:
        """The same by the compiled module, which wants each kind in one piece of memory."""
        similarity = self.similarities.matrix()
        n, m = self.shape
        self._loan = Loan(1, similarity, len(self.factors), n, m)
        (kernels,) = self._loan.matrices
        tops = similarity.new_empty(len(self.factors), n + m)
        for kernel, top, factor in zip(kernels, tops, self.factors, strict=True):
            native.balance_into(similarity, factor, self.within, kernel, top)
        self._matrices = list(kernels)
        return [(top[:n], top[n:]) for top in tops]

    def tiles(self, which: Sequence[int], entries: int | None = None) -> Iterator[Tile]:
        """Views of what is stored, else tiles in buffers that the next tile overwrites."""
        if self.stored:
            for block in [slice(0, self.shape[0])] if entries is None else self._blocks(entries):
                yield Tile(block, [self.whole(number)[None, block] for number in which])
            return
        floor = math.log(2 * torch.finfo(self.like.dtype).tiny)
        blocks = self._blocks(self.tile_entries)
        buffers = self.like.new_empty(1 + len(which), blocks[0].stop, self.shape[1])
        shifts = [
            (
                self.row_shifts[number].to(self.like.dtype),
                self.column_shifts[number].to(self.like.dtype),
            )
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

    def _blocks(self, entries: int) -> list[slice]:
        return row_blocks(*self.shape, entries)

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Slopes are ±1, relative to the first kernel's score; a tile is valid until the next."""
        signs = [factor / self.factors[0] for factor in self.factors]
        blocks = self._blocks(self.tile_entries)
        buffers = self.like.new_empty(2, blocks[0].stop, self.shape[1])
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
