"""Tiles of half a symmetric matrix: of one process, and of several that share it.

Alone, every tile goes from the diagonal to the last column: a triangle. Of several processes each
has whole rows, its own samples', and of two rows that meet one has the entry: blocks of rows in a
ring, each with the blocks up to half the way around. So all have equally much of as many rows, and
what a process holds is what the gradient of its own rows needs (mathematics §7).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import torch
from torch import Tensor


class Part(NamedTuple):
    """Some rows and columns, which may begin with a block on the diagonal.

    The rows of a tile and those of another thread share that block; every entry beyond it stands
    for its mirror image too.
    """

    rows: slice  # its rows
    columns: slice  # its columns
    own: int  # how many of them, the first ones, are the block on the diagonal
    start: int  # where it is stored, tile after tile; −1 if it is not

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return _length(self.rows), _length(self.columns)

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.shape[1]

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.size

    @property
    def place(self) -> tuple[int, int, int, int, int]:
        """What the compiled module calls rows, width, own, row and column."""
        return *self.shape, self.own, self.rows.start, self.columns.start

    def within(self, length: int) -> bool:
        """Whether it is stored in so many numbers."""
        return self.start >= 0 and self.stop <= length

    def split(self, number: int) -> list[Part]:
        """Its rows in about equal shares.

        Example:
            >>> [part.rows for part in triangle(5, height=4)[0].split(2)]
            [slice(0, 2, None), slice(2, 4, None)]
        """
        n_rows, width = self.shape
        ends = [n_rows * k // number for k in range(number + 1)]
        return [
            self._replace(
                rows=slice(self.rows.start + begin, self.rows.start + end),
                start=self.start if self.start < 0 else self.start + begin * width,
            )
            for begin, end in pairwise(ends)
            if end > begin
        ]


def table(parts: Sequence[Part]) -> Tensor:
    """What the compiled module wants to know of several tiles."""
    rows = [(part.start, *part.place) for part in parts]
    return torch.tensor(rows, dtype=torch.int64, device="cpu")


def triangle(n: int, height: int) -> list[Part]:
    """Tiles of an n×n matrix, each with so many rows.

    Example:
        >>> [part.shape for part in triangle(5, height=2)]
        [(2, 5), (2, 3), (1, 1)]
    """
    return _stored(
        Part(slice(first, min(first + height, n)), slice(first, n), min(height, n - first), 0)
        for first in range(0, n, height)
    )


def ring(counts: Sequence[int], rank: int, height: int) -> tuple[list[Part], list[Part]]:
    """The tiles of one of several processes, and what other entries its own rows have.

    Args:
        counts: How many rows each process has.
        rank: Which of them it is.
        height: Rows of a block, at most.

    Example:
        >>> tiles, others = ring([2, 2], 0, height=1)
        >>> [(part.rows.start, part.columns) for part in tiles]
        [(0, slice(0, 3, None)), (1, slice(1, 3, None))]
        >>> [(part.rows.start, part.columns) for part in others]
        [(0, slice(3, 4, None)), (1, slice(3, 4, None))]
    """
    numbers = [-(-count // height) for count in counts]  # of blocks
    ends, size = _ends(counts, numbers), sum(numbers)
    first, last = sum(numbers[:rank]), sum(numbers[: rank + 1])
    tiles, others = [], []
    for block in range(first, last):
        rows = slice(ends[block], ends[block + 1])
        # Of two blocks that face each other every second pair belongs to the first.
        facing = size % 2 == 0 and (block % (size // 2) % 2 == 0) == (block < size // 2)
        beyond = block + (size + 1) // 2 + int(facing)
        for columns in _arc(ends, block, beyond):
            own = _length(rows) if columns.start == rows.start else 0
            tiles.append(Part(rows, columns, own, 0))
        rest = _arc(ends, max(beyond, last), first + size)
        others += [Part(rows, columns, 0, -1) for columns in rest]
    return _stored(tiles), others


def two_rings(
    counts: Sequence[int], partners: Sequence[int], rank: int, height: int
) -> tuple[list[Part], list[Part]]:
    """The same of pairs of two sets, in a matrix of both: all of the first, all of the second.

    Args:
        counts: How many rows of the first set each process has.
        partners: How many of the second.
        rank: Which of them it is.
        height: Rows of a block, at most.

    Example:
        >>> tiles, others = two_rings([2], [2], 0, height=1)
        >>> [(part.rows.start, part.columns) for part in tiles]
        [(0, slice(2, 3, None)), (1, slice(3, 4, None)), (2, slice(1, 2, None)), (3, slice(0, 1, None))]
    """  # noqa: E501
    numbers = [-(-max(pair) // height) for pair in zip(counts, partners, strict=True)]
    near, size = _ends(counts, numbers), sum(numbers)
    far = [near[-1] + end for end in _ends(partners, numbers)]
    first, last = sum(numbers[:rank]), sum(numbers[: rank + 1])
    tiles, others = [], []
    # The first set has the blocks from its own one on, the second those from the next one on.
    for here, there, begin in ((near, far, 0), (far, near, 1)):
        for block in range(first, last):
            rows = slice(here[block], here[block + 1])
            beyond = block + begin + (size + 1 - begin) // 2
            arc = _arc(there, block + begin, beyond)
            rest = _arc(there, max(beyond, last), first + size)
            if rows.start < rows.stop:
                tiles += [Part(rows, columns, 0, 0) for columns in arc]
                others += [Part(rows, columns, 0, -1) for columns in rest]
    return _stored(tiles), others


def _ends(counts: Sequence[int], numbers: Sequence[int]) -> list[int]:
    """Where blocks begin and the last one ends, if every count is cut into so many."""
    heights = (
        count * (k + 1) // number - count * k // number
        for count, number in zip(counts, numbers, strict=True)
        for k in range(number)
    )
    return [0, *accumulate(heights)]


def _arc(ends: Sequence[int], first: int, last: int) -> list[slice]:
    """The rows of blocks from one to before another, around a ring of them."""
    size = len(ends) - 1
    turns = ((first, min(last, size)), (max(first, size) - size, last - size))
    return [
        slice(ends[begin], ends[end])
        for begin, end in turns
        if begin < end and ends[begin] < ends[end]
    ]


def _stored(parts: Iterable[Part]) -> list[Part]:
    """The same tiles, one after the other in memory."""
    stored: list[Part] = []
    for part in parts:
        stored.append(part._replace(start=stored[-1].stop if stored else 0))
    return stored


def _length(few: slice) -> int:
    length: int = few.stop - few.start
    return length
