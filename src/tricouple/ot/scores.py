"""Similarities of two sets: one product, stored as a matrix or recomputed tile by tile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple.groups import Processes
from tricouple.numeric import fill_own
from tricouple.ot.native import empty_matrix

Tiles = Iterable[tuple[slice, Tensor]]
"""Rows of an N×M matrix, from the first to the last; a tile may be overwritten by the next one."""

TILE = 1 << 20  # entries of a tile that is recomputed
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
    keep: bool = True  # whether the N×M matrix is stored
    room: float = 0.0  # bytes for some of its rows, if not all are stored
    group: Processes | None = None
    tile_entries: int = TILE  # of a tile on the CPU

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        others = self.anchors.shape[1] if self.references is None else len(self.references)
        return len(self.anchors), others

    @property
    def symmetric(self) -> bool:
        """Whether s_ij is s_ji: one set, all of its rows."""
        return self.anchors is self.references

    @property
    def height(self) -> int:
        """Rows of a tile that is recomputed."""
        n, m = self.shape
        entries = self.tile_entries if self.anchors.is_cpu else DEVICE_TILE
        if self.room:  # tiles that are kept and the one in work
            entries = min(entries, int(self.room // (8 * self.dtype.itemsize)))
        return max(1, min(n, entries // max(1, m)))

    @cached_property
    def matrix(self) -> Tensor:
        """s, stored for sweeps by rows."""
        return self.product()

    def product(self) -> Tensor:
        """The one similarity product; 0 at own_i, so that it does not widen the range of s."""
        if "matrix" in self.__dict__:
            taken: Tensor = self.__dict__.pop("matrix")
            return taken
        n, m = self.shape
        s = empty_matrix(self.anchors, n, m, dtype=self.dtype)
        if self.references is None:
            s.copy_(self.anchors)
        elif self.anchors.dtype == self.dtype:
            torch.mm(self.anchors, self.references.T, out=s)
        else:
            for rows in self.blocks():
                self.tile(rows, s[rows])
        return fill_own(s, self.own, 0.0)

    def blocks(self) -> Iterator[slice]:
        """Rows of the tiles that are recomputed."""
        n, height = self.shape[0], self.height
        return (slice(start, min(start + height, n)) for start in range(0, n, height))

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """Some rows of s, written to ``out``."""
        if self.references is None:
            return out.copy_(self.anchors[rows])
        if self.anchors.dtype == self.dtype:
            return torch.mm(self.anchors[rows], self.references.T, out=out)
        return out.copy_(self.anchors[rows] @ self.references.T)

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Rows of s: all of them if stored, else a few in a buffer that the next tile uses."""
        n, m = self.shape
        if self.keep:
            if n:
                yield slice(0, n), self.matrix
            return
        buffer = self.anchors.new_empty(self.height, m, dtype=self.dtype)
        for rows in self.blocks():
            yield rows, self.tile(rows, buffer[: rows.stop - rows.start])

    @cached_property
    def transposed(self) -> Scores:
        """The same pairs with anchors for references, of two sets without common samples."""
        assert self.references is not None
        own = self.own.new_full((self.shape[1],), -1)
        sides = self.references, self.anchors
        return Scores(*sides, own, self.dtype, self.keep, self.room, self.group, self.tile_entries)

    def pull(self, gradient: Tiles, *, both: bool = False) -> tuple[Tensor, Tensor]:
        """Gradients of both sides from tiles of ∂L/∂s: two products, or one.

        Args:
            gradient: G = ∂L/∂s in tiles.
            both: Whether the tiles hold G + Gᵀ, of one set: then one product has all.

        Returns:
            ``G references``, (N, d), and ``Gᵀ anchors``, (M, d), or zeros if the first has both;
            of a given matrix, G itself and nothing.
        """
        if self.references is None:
            total = empty_matrix(self.anchors, *self.shape, dtype=self.dtype).zero_()
            for rows, tile in gradient:
                total[rows] += tile
            return total, total.new_zeros(0)
        anchors, references = self.anchors.to(self.dtype), self.references.to(self.dtype)
        to_anchors, to_references = torch.zeros_like(anchors), torch.zeros_like(references)
        for rows, tile in gradient:
            part = tile.to(self.dtype)
            to_anchors[rows].addmm_(part, references)
            if not both:
                to_references.addmm_(part.T, anchors[rows])
        return to_anchors, to_references
