"""How a symmetric matrix is cut into tiles on and above its diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Small enough for a core's share of the cache, and for BLAS to compute a tile on that core.
ROWS, COLUMNS = 512, 1024


class Part(NamedTuple):
    """A tile; every entry that is not on a diagonal block stands for its mirror image too.

    Attributes:
        rows: Its rows.
        columns: Its columns.
        own: How many of its columns, the first ones, are its rows: all of them, or none.
        start: Where it is stored, tile after tile.
    """

    rows: slice
    columns: slice
    own: int
    start: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows.stop - self.rows.start, self.columns.stop - self.columns.start

    @property
    def size(self) -> int:
        """Number of entries."""
        rows, columns = self.shape
        return rows * columns

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.size


class Share(NamedTuple):
    """Tiles of one thread.

    Attributes:
        parts: The tiles.
        table: What the compiled module wants to know of them.
    """

    parts: Sequence[Part]
    table: Tensor

    @classmethod
    def of(cls, parts: Sequence[Part]) -> Share:
        """A share with its table."""
        rows = [
            (part.start, *part.shape, part.own, part.rows.start, part.columns.start)
            for part in parts
        ]
        return cls(parts, torch.tensor(rows, dtype=torch.int64))


def triangle(n: int, height: int = ROWS) -> list[list[Part]]:
    """Tiles of an n×n matrix, those with the same rows together.

    Example:
        >>> [[part.shape for part in line] for line in triangle(5, height=2)]
        [[(2, 5)], [(2, 3)], [(1, 1)]]
    """
    lines, stored = [], 0
    for first in range(0, n, height):
        rows = slice(first, min(first + height, n))
        line = []
        for begin in range(first, n, COLUMNS):
            own = rows.stop - rows.start if begin == first else 0
            part = Part(rows, slice(begin, min(begin + COLUMNS, n)), own, stored)
            stored += part.size
            line.append(part)
        lines.append(line)
    return lines
