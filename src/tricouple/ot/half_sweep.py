"""Half a sweep of pairs: log-sums of rows, as in InfoNCE, and their gradient in one pass."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.ot.rows import exponents
from tricouple.ot.scaling import RANGE, exponential
from tricouple.ot.scores import Scores

_KEPT = 1 << 24  # bytes of tiles that are kept for a second pass instead of computed again


@dataclass
class HalfSweep:
    """``Σ_i w_i log Σ_j exp(c s_ij) + Σ_j v_j log Σ_i exp(c s_ij)`` and ∂/∂s, tile by tile.

    A row's part of the gradient needs its own sum alone: one pass over tiles has both. Sums of
    columns, for the way back, take a pass before.
    """

    scores: Scores
    c: float | Tensor
    most: float  # what the host takes c to be at most
    rows: Tensor | None  # w, (N,), float64
    columns: Tensor | None = None  # v, (M,)
    value: Tensor = field(init=False)  # complete when all tiles have come

    def __post_init__(self) -> None:
        like = self.rows if self.rows is not None else self.columns
        assert like is not None
        self.value = like.new_zeros(())
        given = self.scores.references is None
        # Whether exp(c s) has room as it is; else exponents are shifted by their sums.
        self._direct = not given and 1.01 * self.most <= RANGE[self.scores.dtype]

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """exp(c s), or c s in float64; 0 or −∞ at own."""
        for block, tile in self.scores.tiles():
            own = self.scores.own[block]
            if self._direct:
                yield block, exponential(tile, own, self.c, 0.0)
            else:
                yield block, exponents(self.c, tile, self.value, own)

    def gradient(self) -> Iterator[tuple[slice, Tensor]]:
        """∂/∂s in tiles that the next one overwrites."""
        (n, m), totals = self.scores.shape, None
        tiles: Iterator[tuple[slice, Tensor]] = self._tiles()
        if self.columns is not None:
            kept: list[tuple[slice, Tensor]] | None = []
            if n * m * self.scores.dtype.itemsize > _KEPT:
                kept = None
            totals = torch.full_like(self.columns, 0.0 if self._direct else -torch.inf)
            for block, tile in tiles:
                if self._direct:
                    totals += tile.sum(0)
                else:
                    totals = torch.logaddexp(totals, torch.logsumexp(tile, 0))
                if kept is not None:
                    kept.append((block, tile.clone()))
            self.value += (self.columns * (totals.log() if self._direct else totals)).sum()
            tiles = self._tiles() if kept is None else iter(kept)
        for block, tile in tiles:
            rows = None if self.rows is None else self.rows[block]
            yield block, self._weighted(tile, rows, totals)

    def _weighted(self, tile: Tensor, rows: Tensor | None, totals: Tensor | None) -> Tensor:
        """C (w_i softmax over j + v_j softmax over i)."""
        if self._direct:
            factor: Tensor | float = 0.0
            if rows is not None:
                sums = tile.sum(1).to(rows.dtype)
                self.value += (rows * sums.log()).sum()
                factor = (rows / sums * self.c).to(tile.dtype)[:, None]
            if totals is not None and self.columns is not None:
                factor = factor + (self.columns / totals * self.c).to(tile.dtype)
            return tile.mul_(factor)
        out = torch.zeros_like(tile)
        if rows is not None:
            sums = torch.logsumexp(tile, 1)
            self.value += (rows * sums).sum()
            out += (tile - sums[:, None]).exp_() * (rows * self.c)[:, None]
        if totals is not None and self.columns is not None:
            out += (tile - totals).exp_() * (self.columns * self.c)
        return out
