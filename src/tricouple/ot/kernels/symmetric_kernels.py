"""Balanced kernels exp(±c·s) within one set, where s_ij = s_ji: half of each matrix is enough.

Half of the memory, half of the products and exponentials that fill it, half of the traffic of every
matrix-vector product: an entry above the diagonal is used for its mirror image while it is in a
register (``_triangle.h``).

A kernel stays symmetric if rows and columns have the same shifts. With u_i = half of sample i's
largest similarity no entry exceeds 1. The largest of a row falls short of that where all neighbours
of a sample have closer neighbours themselves; the same step on what is left halves the shortfall.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial

import torch
from torch import Tensor

from tricouple.memory import Loan, MemoryPlan
from tricouple.numeric import wide_dtype
from tricouple.ot.kernels import native
from tricouple.ot.kernels.plan import Patch, ScoreGradient
from tricouple.ot.kernels.similarities import Products
from tricouple.ot.kernels.threads import dealt, in_threads
from tricouple.ot.kernels.tiles import Factors
from tricouple.ot.kernels.triangle import COLUMNS, ROWS, Part, Share, triangle

# Rows whose largest entry is above e^{−SHORTFALL} keep their digits.
SHORTFALL, ROUNDS = 10.0, 6


class SymmetricKernels:
    """``exp(factor · s)`` for one factor or several, the diagonal 0; one separable term each.

    Args:
        similarities: Of one set with itself.
        factors: The factors, of one size; negative for a repelling kernel.
        memory: Whether the kernels are stored, or recomputed a tile at a time. Some similarities
            are kept even then: a quarter of them, or what a quarter of the budget holds.
    """

    n_terms = 1

    def __init__(
        self, similarities: Products, factors: Sequence[float], memory: MemoryPlan
    ) -> None:
        self.like = similarities.anchors.contiguous()
        self.shape = similarities.shape
        self.factors = tuple(factors)
        n = len(self.like)
        affordable = memory.budget / 4 / self.like.element_size() if memory.streamed else math.inf
        self._lines = triangle(n, max(1, int(min(ROWS, affordable / (2 * n)))))
        # Large tiles first, so that all threads get about the same.
        parts = [part for line in self._lines for part in line]
        self._parts = sorted(parts, key=lambda part: -part.size)
        self._shares = [Share.of(own) for own in dealt(self._parts)]
        entries = sum(part.size for part in parts)
        self._matrices: list[Tensor] = []
        self._kept = self._nothing = self.like.new_empty(0)
        if memory.streamed:
            self._loan: Loan | None = Loan(1, self.like, int(min(entries / 4, affordable)))
        else:
            self._loan = Loan(len(factors), self.like, entries)
        self._keep(self._loan.matrices[0])
        self._shifts = self._balance()
        if not memory.streamed:
            self._replace(self._loan.matrices)

    def release(self) -> None:
        """Give the matrices back; from now on tiles are recomputed."""
        self._loan, self._matrices, self._kept = None, [], self._nothing

    @cached_property
    def row_shifts(self) -> list[Tensor]:
        """``log(true scaling) = log(scaling) + shift`` of the rows, wide dtype."""
        return [-abs(factor) * (shifts + middle) for factor, shifts, middle in self._sides()]

    @cached_property
    def column_shifts(self) -> list[Tensor]:
        """The same of the columns: as small as can be, for sweeps start at exp(−shift)."""
        return [-abs(factor) * (shifts - middle) for factor, shifts, middle in self._sides()]

    def _sides(self) -> Iterator[tuple[float, Tensor, Tensor]]:
        wide = self._shifts.to(wide_dtype(self.like.device))
        for factor in self.factors:
            shifts = wide[_side(factor)]
            yield factor, shifts, (shifts.amin() + shifts.amax()) / 2

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_ij weights_j``, shape (1, N)."""
        work = self._stored_sums if self._matrices else self._streamed_sums
        sums = in_threads(partial(work, which, weights.contiguous()), self._shares)
        return torch.stack(sums).sum(0, keepdim=True)

    def _stored_sums(self, which: int, weights: Tensor, share: Share) -> Tensor:
        """What the tiles of a share contribute to the row sums."""
        sums = torch.zeros_like(weights)
        arrays = native.addresses(share.table, self._matrices[which], weights, sums)
        native.compiled.tiles_product(sums.element_size(), len(share.parts), *arrays)
        return sums

    def _streamed_sums(self, which: int, weights: Tensor, share: Share) -> Tensor:
        """The same, where each tile is computed first."""
        sums, size = torch.zeros_like(weights), weights.element_size()
        x, y = native.addresses(weights, sums)
        room, work = self._room(), self.like.new_empty(4 * COLUMNS)
        for part in share.parts:
            tile = self._similarities(part, room)
            known = native.addresses(tile, *self._shifts_of(which, part))
            rows, columns = part.rows.start * size, part.columns.start * size
            vectors = (x + rows, x + columns, y + rows, y + columns)
            native.compiled.tile_stream(
                size, *part.shape, part.own, self.factors[which], *known, *vectors, work.data_ptr()
            )
        return sums

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_i kernel_ij weights_i``, shape (N,)."""
        return self.row_sums(which, weights[0])[0]

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Row sums of one kernel, turned into weights, through the columns of another."""
        sums = self.row_sums(near, weights)
        return self.column_sums(far, between(slice(0, self.shape[0]), sums))

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Slopes are ±1, relative to the first kernel's score; every pair comes once."""
        n = len(self.like)
        signs = [factor / self.factors[0] for factor in self.factors]
        lefts = [left[:, 0] for left, _ in factors]
        # An entry and its mirror image in one product.
        ahead = [torch.cat([left, right]) for left, (_, right) in zip(lefts, factors, strict=True)]
        back = [torch.cat([right, left]) for left, (_, right) in zip(lefts, factors, strict=True)]
        buffers = self.like.new_empty(2, self._lines[0][0].rows.stop * n)
        for line in self._lines:
            rows, columns = line[0].rows, slice(line[0].columns.start, n)
            shape = (rows.stop - rows.start, n - columns.start)
            total, weights = (buffer[: shape[0] * shape[1]].view(shape) for buffer in buffers)
            for which, sign in enumerate(signs):
                product = weights if which else total
                torch.mm(ahead[which][:, rows].T, back[which][:, columns], out=product)
                self._weigh(which, line, sign, product, total)
            total[:, : line[0].own] /= 2  # on the diagonal block each pair is there twice
            yield Patch(rows, total, columns)

    def _weigh(
        self, which: int, line: Sequence[Part], sign: float, weights: Tensor, out: Tensor
    ) -> None:
        """Multiply a line of weights by the kernel, onto ``out`` unless that is the weights."""
        size = out.element_size()

        def work(parts: Sequence[Part]) -> None:
            room = self._room()
            for part in parts:
                tile = self._tile(which, part, room)
                skipped = (part.columns.start - line[0].columns.start) * size
                places = [address + skipped for address in native.addresses(weights, out)]
                native.compiled.tile_weigh(
                    size, *part.shape, out.shape[1], sign, tile.data_ptr(), *places
                )

        in_threads(work, dealt(line))

    def _keep(self, room: Tensor) -> None:
        """Compute similarities once, as many as there is room for."""

        def work(parts: Sequence[Part]) -> None:
            for part in parts:
                self._similarities(part, _stored(room, part))

        in_threads(work, dealt([part for part in self._parts if part.stop <= len(room)]))
        self._kept = room

    def _replace(self, matrices: Sequence[Tensor]) -> None:
        """Fill matrices with the kernels, the first of which took the similarities so far."""

        def work(parts: Sequence[Part]) -> None:
            for part in parts:
                tile = self._similarities(part, self._nothing)
                for which in reversed(range(len(matrices))):
                    self._exponentiate(which, part, tile, _stored(matrices[which], part))

        in_threads(work, dealt(self._parts))
        self._matrices, self._kept = list(matrices), self._nothing

    def _balance(self) -> Tensor:
        """Find u, of attracting and of repelling kernels; shape (2, N)."""
        sharpness = max(map(abs, self.factors))
        tops = self._tops(self.like.new_zeros(2, len(self.like)))
        shifts = tops / 2
        shortfall = (tops.amax(1, keepdim=True) - tops) / 2  # at most
        for _ in range(ROUNDS):
            if sharpness * float(shortfall.max()) <= SHORTFALL:
                break
            shortfall = shifts - self._tops(shifts)
            shifts -= shortfall / 2
        return shifts

    def _tops(self, shifts: Tensor) -> Tensor:
        """The largest ``±s_ij − u_j`` of every sample, shape (2, N)."""

        def work(parts: Sequence[Part]) -> Tensor:
            room, tops = self._room(), torch.full_like(shifts, -torch.inf)
            for part in parts:
                tile = self._similarities(part, room)
                starts = (part.rows.start, part.columns.start)
                native.compiled.tile_tops(
                    tops.element_size(), *part.shape, part.own, len(self.like), *starts,
                    *native.addresses(tile, shifts, tops),
                )  # fmt: skip
            return tops

        return torch.stack(in_threads(work, dealt(self._parts))).amax(0)

    def _room(self) -> Tensor:
        """Where a thread computes tiles."""
        return self._nothing if self._matrices else self.like.new_empty(self._parts[0].size)

    def _tile(self, which: int, part: Part, room: Tensor) -> Tensor:
        """A tile of a kernel, stored or computed."""
        if self._matrices:
            return _stored(self._matrices[which], part)
        self._exponentiate(which, part, self._similarities(part, room), room)
        return room

    def _similarities(self, part: Part, room: Tensor) -> Tensor:
        """A tile of similarities, kept or computed."""
        if part.stop <= len(self._kept):
            return _stored(self._kept, part)
        out = room[: part.size].view(part.shape)
        return torch.mm(self.like[part.rows], self.like[part.columns].T, out=out)

    def _exponentiate(self, which: int, part: Part, tile: Tensor, out: Tensor) -> None:
        known = native.addresses(tile, *self._shifts_of(which, part), out)
        factor = self.factors[which]
        native.compiled.tile_kernel(out.element_size(), *part.shape, part.own, factor, *known)

    def _shifts_of(self, which: int, part: Part) -> tuple[Tensor, Tensor]:
        shifts = self._shifts[_side(self.factors[which])]
        return shifts[part.rows], shifts[part.columns]


def _side(factor: float) -> int:
    """Which half of the shifts belongs to a kernel."""
    return 0 if factor > 0 else 1


def _stored(matrix: Tensor, part: Part) -> Tensor:
    return matrix[part.start : part.stop]
