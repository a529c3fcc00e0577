"""Where a coupling takes its similarities from: a matrix, or embeddings, a few rows at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from tricouple.memory import empty_matrix


class Similarities(Protocol):
    """An N×M matrix that need not exist as a whole."""

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""

    @property
    def like(self) -> Tensor:
        """A tensor with the dtype and device of the entries."""

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """Some rows, written to ``out``."""

    def matrix(self) -> Tensor:
        """All rows, contiguous. Not to be written to."""

    def widened(self, dtype: torch.dtype) -> Similarities:
        """The same in another precision."""


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
        """The matrix."""
        return self.values

    def tile(self, rows: slice, out: Tensor) -> Tensor:
        """A copy."""
        return out.copy_(self.values[rows])

    def matrix(self) -> Tensor:
        """The matrix."""
        return self.values.contiguous()

    def widened(self, dtype: torch.dtype) -> Matrix:
        """A copy in another precision."""
        return Matrix(self.values.to(dtype))


@dataclass(frozen=True)
class Products:
    """Inner products of anchors (N, d) and references (M, d)."""

    anchors: Tensor
    references: Tensor

    @property
    def shape(self) -> tuple[int, int]:
        """(N, M)."""
        return len(self.anchors), len(self.references)

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

    def widened(self, dtype: torch.dtype) -> Products:
        """Of the embeddings in another precision."""
        anchors = self.anchors.to(dtype)
        same = self.references is self.anchors
        return Products(anchors, anchors if same else self.references.to(dtype))
