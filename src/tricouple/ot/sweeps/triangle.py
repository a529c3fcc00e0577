"""How a symmetric matrix is cut into tiles on and above its diagonal."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

ROWS = 512


class Part(NamedTuple):
    """Some rows, from the diagonal to the last column.

    The rows of a tile and those of another thread share a block on the diagonal; every entry beyond
    that block stands for its mirror image too.

    Attributes:
        rows: Its rows.
        width: Its columns, the last ones of the matrix.
        own: How many of them, the first ones, are the block on the diagonal.
        offset: The place of its first row in that block.
        start: Where it is stored, tile after tile.
    """

    rows: slice
    width: int
    own: int
    offset: int
    start: int

    @property
    def shape(self) -> tuple[int, int]:
        """Numbers of rows and columns."""
        return self.rows.stop - self.rows.start, self.width

    @property
    def size(self) -> int:
        """Number of entries."""
        return self.shape[0] * self.width

    @property
    def stop(self) -> int:
        """Where it ends."""
        return self.start + self.size

    def split(self, number: int) -> list[Part]:
        """Its rows in about equal shares.

        Example:
            >>> [part.rows for part in triangle(5, height=4)[0].split(2)]
            [slice(0, 2, None), slice(2, 4, None)]
        """
        n_rows = self.shape[0]
        ends = [n_rows * k // number for k in range(number + 1)]
        first = self.rows.start
        return [
            self._replace(
                rows=slice(first + begin, first + end),
                offset=self.offset + begin,
                start=self.start + begin * self.width,
            )
            for begin, end in pairwise(ends)
            if end > begin
        ]


def table(parts: Sequence[Part]) -> Tensor:
    """What the compiled module wants to know of several tiles."""
    rows = [(part.start, *part.shape, part.own, part.offset) for part in parts]
    return torch.tensor(rows, dtype=torch.int64)


def triangle(n: int, height: int = ROWS) -> list[Part]:
    """Tiles of an n×n matrix, each with so many rows.

    Example:
        >>> [part.shape for part in triangle(5, height=2)]
        [(2, 5), (2, 3), (1, 1)]
    """
    parts, stored = [], 0
    for first in range(0, n, height):
        rows = slice(first, min(first + height, n))
        part = Part(rows, n - first, rows.stop - first, 0, stored)
        stored = part.stop
        parts.append(part)
    return parts
