"""Balanced kernels of several separable terms: Q rows for each anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tricouple.memory import CACHED, Loan
from tricouple.numeric import Patch, ScoreGradient, exponential_, row_blocks, wide_dtype
from tricouple.ot.sweeps.quadrature import Terms
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.tiles import Factors, RowTiles, Tile


class TermKernels(RowTiles):
    """The factors of positives and of negatives, ``exp(attract_q(x))`` and ``exp(repel_q(x))``.

    Rows of one anchor belong to different terms and are added up after multiplying those of the
    two kernels; they are brought to a common scale, half of it on each side, so that the weight of
    a term is in its entries.

    Args:
        similarities: s, shape (N, M).
        factor: 1/τ, so that x = s/τ.
        terms: The separable terms.
        within: Exclude the diagonal.
        stored: Keep both kernels in memory: 2·Q·N·M numbers.
        tile_entries: Size of a tile that is recomputed, or worked on entry by entry.
    """

    def __init__(
        self,
        similarities: Similarities,
        factor: float,
        terms: Terms,
        *,
        within: bool,
        stored: bool = True,
        tile_entries: int = CACHED,
    ) -> None:
        self.similarities, self.factor, self.terms = similarities, factor, terms
        self.within = within
        self.shape, self.like = similarities.shape, similarities.like
        self.n_terms = len(terms.nodes)
        self.tile_entries = tile_entries
        self._sides = (terms.attract, terms.repel)
        self._slopes = (terms.attract_slope, terms.repel_slope)
        n, m = self.shape
        # For each side: what is added to the logarithms of the rows (Q, N) and of the columns.
        self._row_shifts = [self.like.new_empty(self.n_terms, n) for _ in self._sides]
        self.anchor_shift = self._balance_rows()
        self._column_shifts = self._balance_columns()
        wide = wide_dtype(self.like.device)
        self.column_shifts = [shift.to(wide) for shift in self._column_shifts]
        self._loan: Loan | None = None
        if stored:
            loan = Loan(2, self.like, self.n_terms, n, m)
            for block, scores in self._scores():
                for number, kernel in enumerate(loan.matrices):
                    self._fill(number, scores, block, kernel[:, block])
            self._loan = loan

    def release(self) -> None:
        """Give the stored kernels back; from now on tiles are recomputed."""
        self._loan = None

    def _balance_rows(self) -> Tensor:
        """Set the row shifts; the anchors' shift, wide dtype, is what the scalings are short of."""
        lowest = torch.finfo(self.like.dtype).min / 4  # where a factor underflows for a whole row
        anchor_shift = self.like.new_empty(self.shape[0])
        for block, scores in self._scores():
            tops = []
            for side in self._sides:
                logs = (self._mask(side(scores, node), block) for node in self.terms.nodes)
                tops.append(torch.stack([log.amax(1) for log in logs]).clamp_min_(lowest))
            peak = tops[0] + tops[1]  # (Q, rows)
            torch.neg(peak.amax(0), out=anchor_shift[block])
            weight = (peak + anchor_shift[block]) / 2
            for shift, top in zip(self._row_shifts, tops, strict=True):
                torch.sub(weight, top, out=shift[:, block])
        return anchor_shift.to(wide_dtype(self.like.device))

    def _balance_columns(self) -> list[Tensor]:
        lowest = torch.finfo(self.like.dtype).min / 4
        tops = [self.like.new_full((self.shape[1],), lowest) for _ in self._sides]
        for block, scores in self._scores():
            for number, top in enumerate(tops):
                for term in range(self.n_terms):
                    torch.maximum(top, self._logs(number, term, scores, block).amax(0), out=top)
        return [-top for top in tops]

    def _scores(self) -> Iterator[tuple[slice, Tensor]]:
        """x, a block of rows at a time."""
        blocks = row_blocks(*self.shape, max(1, self.tile_entries // self.n_terms))
        buffer = self.like.new_empty(blocks[0].stop, self.shape[1])
        for block in blocks:
            tile = self.similarities.tile(block, buffer[: block.stop - block.start])
            yield block, tile * self.factor

    def _mask(self, logs: Tensor, rows: slice) -> Tensor:
        if self.within:
            logs.diagonal(rows.start).fill_(-torch.inf)
        return logs

    def _logs(self, side: int, term: int, scores: Tensor, rows: slice) -> Tensor:
        """Logarithms of a factor with the rows' shifts, (rows, M)."""
        logs = self._sides[side](scores, self.terms.nodes[term])
        return self._mask(logs.add_(self._row_shifts[side][term, rows, None]), rows)

    def tiles(self, which: Sequence[int], entries: int | None = None) -> Iterator[Tile]:
        """What is stored, in one tile, else tiles in buffers that the next tile overwrites."""
        if self._loan is not None:
            matrices = self._loan.matrices
            yield Tile(slice(0, self.shape[0]), [matrices[number] for number in which])
            return
        buffers: Tensor | None = None
        for block, scores in self._scores():
            if buffers is None:
                buffers = self.like.new_empty(len(which), self.n_terms, *scores.shape)
            size = block.stop - block.start
            kernels = [buffer.view(-1)[: self.n_terms * scores.numel()] for buffer in buffers]
            kernels = [kernel.view(self.n_terms, size, -1) for kernel in kernels]
            for kernel, number in zip(kernels, which, strict=True):
                self._fill(number, scores, block, kernel)
            yield Tile(block, kernels)

    def _fill(self, side: int, scores: Tensor, rows: slice, out: Tensor) -> None:
        """Write some rows of all terms of a kernel, shape (Q, rows, M)."""
        for term in range(self.n_terms):
            logs = self._logs(side, term, scores, rows)
            exponential_(torch.add(logs, self._column_shifts[side], out=out[term]))

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Chain the gradients of all factors with their slopes, a term at a time."""
        lowest = torch.finfo(self.like.dtype).min
        for block, scores in self._scores():
            total = torch.zeros_like(scores)
            for number, (left, right) in enumerate(factors):
                for term, node in enumerate(self.terms.nodes):
                    weights = left[:, term, block].T @ right
                    if self._loan is None:
                        logs = self._logs(number, term, scores, block)
                        kernel = exponential_(logs.add_(self._column_shifts[number]))
                    else:
                        kernel = self._loan.matrices[number][term, block]
                    # Where the slope overflows the kernel is exactly zero.
                    slope = self._slopes[number](scores, node).clamp_min_(lowest)
                    total.addcmul_(weights.mul_(kernel), slope)
            yield Patch(block, total)
