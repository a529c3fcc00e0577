"""Similarities of two sets: one product, stored as a matrix or recomputed tile by tile."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from tricouple.groups import Processes
from tricouple.numeric import blocks
from tricouple.ot.native import empty_matrix

Tiles = Iterable[tuple[slice, Tensor]]
"""Rows of an N×M matrix, from the first to the last; a tile may be overwritten by the next one."""

CACHED = 1 << 18  # entries of a tile of what is stored, which stays in the cache
_ROWS = 64  # of such a tile at least: products of fewer rows keep few threads busy
DEVICE_TILE = 1 << 26  # on an accelerator


@dataclass
class Scores:
    """s_ij = ⟨anchors_i, references_j⟩, or a given matrix, without the entries (i, own_i).

    Of several processes each has the scores of its own anchors with all references.
    """

    anchors: Tensor  # unit vectors, (N, d); or a given matrix s, (N, M), with references None
    references: Tensor | None  # (M, d); the same tensor as the anchors within one set
    own: Tensor  # (N,), int64: the reference that each anchor is, −1 for none
    dtype: torch.dtype  # of the entries; embeddings may have more digits
    group: Processes | None = None
    keep: bool = True  # whether s, and a gradient of that size, are stored as matrices
    stored: float = math.inf  # entries of a kernel that are stored
    tile_entries: int = 0  # of a tile; 0 for a default
    users: int = 1  # how many will overwrite s
    there: Scores | None = None  # those of the way there, of which these are the transposed

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        n, width = self.anchors.shape
        return n, width if self.references is None else len(self.references)

    @property
    def symmetric(self) -> bool:
        """Whether s_ij is s_ji: one set, all of its rows."""
        return self.anchors is self.references

    @property
    def height(self) -> int:
        """Rows of a tile."""
        n, m = self.shape
        entries = self.tile_entries or (CACHED if self.anchors.is_cpu else DEVICE_TILE)
        least = 1 if self.tile_entries else _ROWS
        return min(n, max(least, entries // max(1, m)))

    @cached_property
    def matrix(self) -> Tensor:
        """The one similarity product."""
        if self.there is not None:
            return self.there.matrix.T.contiguous()
        s = empty_matrix(self.anchors, *self.shape, dtype=self.dtype)
        for rows in [slice(0, len(s))] if self.anchors.dtype == self.dtype else self.blocks():
            self.tile(rows, s[rows])
        return s

    def shared(self, values: Tensor) -> Tensor:
        """The sum over processes of what each has of its own rows, in place."""
        return values if self.group is None else self.group.sum_(values)

    def taken(self, number: int, dtype: torch.dtype) -> Tensor:
        """The first rows of s to be overwritten: the matrix itself for the last of its users."""
        if not self.keep or number < len(self.anchors):
            out = empty_matrix(self.anchors, number, self.shape[1], dtype=dtype)
            for rows in blocks(number, self.height):
                self.tile(rows, out[rows])
            return out
        s, self.users = self.matrix, self.users - 1
        if self.users > 0:
            return s.to(dtype, copy=True)
        del self.matrix
        return s.to(dtype)

    def blocks(self) -> Iterator[slice]:
        """Rows of the tiles."""
        return blocks(self.shape[0], self.height)

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """Some rows of s, written to ``out``."""
        if self.references is None:
            return out.copy_(self.anchors[rows])
        if self.anchors.dtype == self.dtype == out.dtype:
            return torch.mm(self.anchors[rows], self.references.T, out=out)
        return out.copy_((self.anchors[rows] @ self.references.T).to(self.dtype))

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of s, a few at a time: stored, or in a buffer that the next tile uses."""
        buffer = None
        if not self.keep:
            buffer = self.anchors.new_empty(self.height, self.shape[1], dtype=self.dtype)
        for rows in self.blocks():
            if buffer is None:
                yield rows, self.matrix[rows]
            else:
                yield rows, self.tile(rows, buffer[: rows.stop - rows.start])

    @cached_property
    def transposed(self) -> Scores:
        """The same pairs with anchors for references, of two sets without common samples."""
        assert self.references is not None
        own = self.own.new_full((self.shape[1],), -1)
        here, there = self.references, self.anchors
        return replace(self, anchors=here, references=there, own=own, users=1, there=self)

    def pull(self, gradient: Tiles, to: Sequence[Tensor], *, both: bool = False) -> None:
        """Add ``G references``, (N, d), and ``Gᵀ anchors``, (M, d), from tiles of G = ∂L/∂s.

        If the tiles hold G + Gᵀ of one set, from the diagonal on, the first has ``both``. Of a
        given matrix it is G.
        """
        anchors = self.anchors.to(self.dtype)
        references = None if self.references is None else self.references.to(self.dtype)
        for rows, tile in gradient:
            part = tile.to(self.dtype)
            if references is None:
                to[0][rows] += part
                continue
            to[0][rows].addmm_(part, references[len(references) - part.shape[1] :])
            below = part[:, len(part) :] if both else part
            if below.shape[1]:
                to[1][-below.shape[1] :].addmm_(below.T, anchors[rows])
