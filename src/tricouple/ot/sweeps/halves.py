"""Balanced kernels exp(±c·s) within one set, where s_ij = s_ji: half of each matrix is enough.

Half of the memory, half of the products and exponentials that fill it, half of the traffic of every
matrix-vector product: an entry above the diagonal is used for its mirror image while it is in a
register (``_halves.h``).

A kernel stays symmetric if rows and columns have the same shifts. With u_i = half of sample i's
largest similarity no entry exceeds 1. The largest of a row falls short of that where all neighbours
of a sample have closer neighbours themselves; the same step on what is left halves the shortfall.

Nobody but ``engine`` knows that there are halves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import Loan, Storage
from tricouple.numeric import OwnGradient, Patch, ScoreGradient, wide_dtype
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.kernels import Factors, Kernels, Products
from tricouple.ot.sweeps.parts import Part, ring, table, triangle, two_rings
from tricouple.ot.sweeps.threads import dealt, in_passing_threads

# Rows of a tile, at most.
ROWS = 512

# Entries of a tile: enough for BLAS to use all cores, and for the cache to hold it.
LINE = 1 << 20

# Columns of a block that a thread computes and uses at once, not fewer than ROWS.
COLUMNS = 1024

# Rows whose largest entry is above e^{−SHORTFALL} keep their digits.
SHORTFALL, ROUNDS = 10.0, 6


class SymmetricKernels(Kernels):
    """``exp(factor · s)`` for one factor or several, the diagonal 0; one separable term each.

    Args:
        similarities: Of one set with itself.
        factors: The factors, of one size; negative for a repelling kernel.
        storage: Whether the kernels are stored, or recomputed a tile at a time. Some similarities
            are kept even then: half of them, or what half of the budget holds.
        shard: Processes, each of which has a share of the tiles.
        first: Of two sets, one after the other, how many samples the first has: then there are
            only entries between samples of different sets.
    """

    def __init__(
        self,
        similarities: Products,
        factors: Sequence[float],
        storage: Storage,
        shard: Shard | None = None,
        first: int | None = None,
    ) -> None:
        self.shard = shard
        self.like = similarities.anchors.contiguous()
        self.shape = similarities.shape
        self.factors = tuple(factors)
        n = len(self.like)
        budget = storage.budget / self.like.element_size()
        height = budget / 8 // n if storage.streamed else max(LINE // n, ROWS // 4)
        self._rows: list[slice] = []  # this process's own, if there are several
        self._parts, self._others = self._tiles(int(min(max(1, height), ROWS)), first)
        self._n_threads = max(1, torch.get_num_threads())
        split = [part.split(self._n_threads) for part in self._parts]
        shares = [[line[k] for line in split if k < len(line)] for k in range(self._n_threads)]
        self._tables = [(len(share), table(share)) for share in shares if share]
        entries = self._parts[-1].stop if self._parts else 0
        self._matrices: list[Tensor] = []
        self._backwards = False
        self._kept = self._nothing = self.like.new_empty(0)
        if storage.streamed:
            self._loan: Loan | None = Loan(1, self.like, int(min(entries, budget) / 2))
        else:
            self._loan = Loan(len(factors), self.like, entries)
        self._keep(self._loan.matrices[0])
        self._shifts = self._balance()
        if not storage.streamed:
            self._replace(self._loan.matrices)

    def _tiles(self, height: int, first: int | None) -> tuple[list[Part], list[Part]]:
        """The tiles of this process, and others that the gradient of its own rows has."""
        n, shard = len(self.like), self.shard
        if shard is None:
            if first is None:
                return triangle(n, height), []
            return two_rings([first], [n - first], 0, height)
        height = min(height, -(-n // (8 * shard.size)))  # the more, the more even the shares
        self._rows = [shard.rows]
        if first is None:
            return ring(shard.anchors, shard.rank, height)
        self._rows.append(slice(first + shard.columns.start, first + shard.columns.stop))
        return two_rings(shard.anchors, shard.references, shard.rank, height)

    def release(self) -> None:
        """Give the matrices back; from now on tiles are recomputed."""
        self._loan, self._matrices, self._kept = None, [], self._nothing

    @cached_property
    def row_shifts(self) -> list[Tensor]:  # type: ignore[override]
        """``log(true scaling) = log(scaling) + shift`` of each kernel's rows, wide dtype."""
        return [-abs(factor) * (shifts + middle) for factor, shifts, middle in self._sides()]

    @cached_property
    def column_shifts(self) -> list[Tensor]:  # type: ignore[override]
        """The same of the columns: as small as can be, for sweeps start at exp(−shift)."""
        return [-abs(factor) * (shifts - middle) for factor, shifts, middle in self._sides()]

    def _sides(self) -> Iterator[tuple[float, Tensor, Tensor]]:
        wide = self._shifts.to(wide_dtype(self.like.device))
        for factor in self.factors:
            shifts = wide[_side(factor)]
            yield factor, shifts, (shifts.amin() + shifts.amax()) / 2

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_ij weights_j``, shape (1, N)."""
        sums = self.like.new_zeros(self._n_threads, len(self.like))  # of each thread
        if self._matrices:
            self._add_stored(which, weights.contiguous(), sums)
        else:
            self._add_streamed(which, weights.contiguous(), sums)
        total = sums.sum(0, keepdim=True)
        return total if self.shard is None else self.shard.sum_(total)

    def _add_stored(self, which: int, weights: Tensor, sums: Tensor) -> None:
        matrix, x = native.addresses(self._matrices[which], weights)
        size, n = weights.element_size(), len(weights)
        turn, y = int(self._backwards), native.address(sums)
        # Sweeps take each kernel twice: what the first product used last is still in the cache.
        self._backwards = not self._backwards
        calls = [
            (size, count, turn, native.address(parts), matrix, x, y + thread * n * size)
            for thread, (count, parts) in enumerate(self._tables)
        ]
        native.shared(native.compiled.tiles_product, calls)

    def _add_streamed(self, which: int, weights: Tensor, sums: Tensor) -> None:
        """Every thread computes blocks of its own, and uses them while they are in its cache."""
        n, size, factor = len(weights), weights.element_size(), self.factors[which]
        height = max((part.shape[0] for part in self._parts), default=0)
        rooms = self.like.new_empty(self._n_threads, height * min(COLUMNS, n))
        few_rows = self.like.new_empty(self._n_threads, 4 * n)
        vectors = native.addresses(self._shifts[_side(factor)], weights)

        @torch.inference_mode()
        def work(thread: int) -> None:
            ends = (*vectors, *native.addresses(sums[thread], few_rows[thread]))
            for part in dealt(self._parts, thread, self._n_threads):
                row = part.rows.start
                for columns, own, block in self._blocks(part, rooms[thread]):
                    place = (*block.shape, own, row, columns)
                    native.compiled.tile_stream(size, *place, factor, native.address(block), *ends)

        in_passing_threads(work, range(self._n_threads))

    def _blocks(self, part: Part, room: Tensor) -> Iterator[tuple[int, int, Tensor]]:
        """The similarities of a tile: first column, how many are its own, values."""
        n_rows, first, end = part.shape[0], part.columns.start, part.columns.stop
        if part.within(len(self._kept)):
            yield first, part.own, _stored(self._kept, part).view(part.shape)
            return
        rows = self.like[part.rows]
        for start in range(first, end, COLUMNS):
            columns = self.like[start : min(start + COLUMNS, end)]
            block = room[: n_rows * len(columns)].view(n_rows, -1)
            own = part.own if start == first else 0
            yield start, own, torch.mm(rows, columns.T, out=block)

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
        """Slopes are ±1, relative to the first kernel's score; every pair comes once.

        Of several processes each takes its own tiles, and computes the rest of its own rows.
        """
        if self.shard is None:
            return self._gradient(factors, self._parts)
        parts = [*self._parts, *self._others]
        few = [share for part in parts for share in part.split(-(-part.size // (LINE // 4)))]
        return OwnGradient(self._gradient(factors, few), self._rows)

    def _gradient(self, factors: Sequence[Factors], parts: Sequence[Part]) -> Iterator[Patch]:
        signs = [factor / self.factors[0] for factor in self.factors]
        lefts = [left[:, 0] for left, _ in factors]
        # An entry and its mirror image in one product.
        back = [torch.cat([right, left]) for left, (_, right) in zip(lefts, factors, strict=True)]
        room, spare = self._room(parts), self._room(parts)
        buffers = self.like.new_empty(2, max((part.size for part in parts), default=0))
        for part in parts:
            total, weights = (buffer[: part.size].view(part.shape) for buffer in buffers)
            stored = self._is_stored(part)
            scores = self._nothing if stored else self._similarities(part, room)
            for which, sign in enumerate(signs):
                product = weights if which else total
                ahead = torch.cat([lefts[which][:, part.rows], factors[which].right[:, part.rows]])
                torch.mm(ahead.T, back[which][:, part.columns], out=product)
                if stored:
                    tile = _stored(self._matrices[which], part)
                else:
                    self._exponentiate(which, part, scores, spare)
                    tile = spare
                self._weigh(part, sign, tile, product, total)
            if self.shard is None:
                total[:, : part.own] /= 2  # on the diagonal block each pair is there twice
            yield Patch(part.rows, total, part.columns)
            for rows in self._rows if part.start >= 0 else []:
                # What it has of other own rows is nowhere else.
                first = part.columns.start
                begin, end = max(first + part.own, rows.start), min(part.columns.stop, rows.stop)
                if begin < end:
                    values = total[:, begin - first : end - first].T
                    yield Patch(slice(begin, end), values, part.rows)

    def _is_stored(self, part: Part) -> bool:
        return bool(self._matrices) and part.start >= 0

    def _weigh(self, part: Part, sign: float, tile: Tensor, weights: Tensor, out: Tensor) -> None:
        """Multiply weights by the kernel, onto ``out`` unless that is the weights."""
        size = out.element_size()
        arrays = native.addresses(tile, weights, out)

        calls = [
            (size, *own.shape, own.shape[1], sign, *(address + skipped for address in arrays))
            for own, skipped in self._in_rows(part)
        ]
        native.shared(native.compiled.tile_weigh, calls)

    def _in_rows(self, part: Part) -> list[tuple[Part, int]]:
        """The rows of a tile for each thread, and how many bytes of the tile are before them."""
        line = part.shape[1] * self.like.element_size()
        shares = part.split(self._n_threads)
        return [(own, (own.rows.start - part.rows.start) * line) for own in shares]

    def _keep(self, room: Tensor) -> None:
        """Compute similarities once, as many as there is room for."""
        for part in self._parts:
            if part.within(len(room)):
                self._similarities(part, _stored(room, part))
        self._kept = room

    def _replace(self, matrices: Sequence[Tensor]) -> None:
        """Fill matrices with the kernels, the first of which took the similarities so far."""
        for part in self._parts:
            tile = _stored(matrices[0], part)
            for which in reversed(range(len(matrices))):
                self._exponentiate(which, part, tile, _stored(matrices[which], part))
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
        n, size = len(self.like), self.like.element_size()
        tops = self.like.new_full((self._n_threads, 2, n), -torch.inf)
        room = self._room(self._parts)
        for part in self._parts:
            tile, begin, out = native.addresses(self._similarities(part, room), shifts, tops)
            calls = [
                (size, *own.place, n, tile + skipped, begin, out + thread * 2 * n * size)
                for thread, (own, skipped) in enumerate(self._in_rows(part))
            ]
            native.shared(native.compiled.tile_tops, calls)
        highest = tops.amax(0)
        return highest if self.shard is None else self.shard.max_(highest)

    def _room(self, parts: Sequence[Part]) -> Tensor:
        """Where tiles are computed."""
        sizes = (part.size for part in parts if not self._is_stored(part))
        return self.like.new_empty(max(sizes, default=0))

    def _similarities(self, part: Part, room: Tensor) -> Tensor:
        """A tile of similarities, kept or computed."""
        if part.within(len(self._kept)):
            return _stored(self._kept, part)
        out = room[: part.size].view(part.shape)
        return torch.mm(self.like[part.rows], self.like[part.columns].T, out=out)

    def _exponentiate(self, which: int, part: Part, tile: Tensor, out: Tensor) -> None:
        size, factor = out.element_size(), self.factors[which]
        shifts = native.address(self._shifts[_side(factor)])
        source, target = native.addresses(tile, out)

        calls = [
            (size, *own.place, factor, source + skipped, shifts, target + skipped)
            for own, skipped in self._in_rows(part)
        ]
        native.shared(native.compiled.tile_kernel, calls)


def _side(factor: float) -> int:
    """Which half of the shifts belongs to a kernel."""
    return 0 if factor > 0 else 1


def _stored(matrix: Tensor, part: Part) -> Tensor:
    return matrix[part.start : part.stop]
