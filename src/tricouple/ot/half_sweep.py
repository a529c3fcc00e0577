"""Half a sweep of pairs: log-sums of rows, as in InfoNCE, and their gradient in one pass."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tricouple.ot.rows import exponents
from tricouple.ot.scaling import RANGE, exponential
from tricouple.ot.scores import Scores, Tiles

_KEPT = 1 << 24  # bytes of tiles that are kept for a second pass instead of computed again


@dataclass
class HalfSweep:
    """``Σ_i w_i log Σ_j exp(c s_ij) + Σ_j v_j log Σ_i exp(c s_ij)`` and ∂/∂s, tile by tile.

    A row's part of the gradient needs its own sum alone; sums of columns take a pass before.
    """

    scores: Scores
    c: float | Tensor
    most: float  # what the host takes c to be at most
    rows: Any  # w, (N,), float64
    columns: Tensor | None = None  # v, (M,)
    joint: Tensor | None = None  # group of each row, 0 … M−1, whose log-sums are one, (N,)
    value: Tensor = field(init=False)  # complete when all tiles have come

    def __post_init__(self) -> None:
        self.value = self.rows.new_zeros(())
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
        (n, m), direct, totals = self.scores.shape, self._direct, None
        kept: list[tuple[slice, Tensor]] = []
        twice = self.columns is not None or self.joint is not None
        if twice and n * m * self.scores.dtype.itemsize <= _KEPT:
            kept = [(block, tile.clone()) for block, tile in self._tiles()]
        if self.joint is not None:
            self._share(self.joint, kept or self._tiles(), m)
        if self.columns is not None:
            totals = torch.full_like(self.columns, 0.0 if direct else -torch.inf)
            for _, tile in kept or self._tiles():
                more = tile.sum(0) if direct else torch.logsumexp(tile, 0)
                totals = totals + more if direct else torch.logaddexp(totals, more)
            self.value += (self.columns * (totals.log() if direct else totals)).sum()
        for block, tile in kept or self._tiles():
            yield block, self._weighted(tile, self.rows[block], totals)

    def _share(self, codes: Tensor, tiles: Tiles, number: int) -> None:
        """Make ``Σ_i w_i log Z_i`` into ``Σ_g w_g log Σ_{i in g} Z_i``, w_g a sum over the group.

        With ``w_i = w_g Z_i/Σ_{k in g} Z_k`` they differ by ``Σ_i w_i log(w_i/w_g)`` and have the
        same gradient.
        """
        group, rows = self.scores.group, self.rows
        sums = [rows[:0]]
        for _, tile in tiles:
            sums.append(tile.sum(1).to(rows.dtype).log() if self._direct else tile.logsumexp(1))
        logs = torch.cat(sums)
        masses = rows.new_zeros(number).index_add_(0, codes, rows)
        high = torch.full_like(masses, -torch.inf).scatter_reduce_(0, codes, logs, "amax")
        parts = torch.zeros_like(masses).index_add_(0, codes, (logs - high[codes]).exp())
        totals = high + parts.log()
        if group is not None:
            group.sum_(masses)
            group.log_sum_(totals)
        logs -= totals[codes]
        self.rows = masses[codes] * logs.exp()
        self.value -= (self.rows * logs).sum()

    def _weighted(self, tile: Tensor, rows: Tensor, totals: Tensor | None) -> Tensor:
        """C (w_i softmax over j + v_j softmax over i)."""
        if self._direct:
            sums = tile.sum(1).to(rows.dtype)
            self.value += (rows * sums.log()).sum()
            factor = (rows / sums * self.c).to(tile.dtype)[:, None]
            if totals is not None and self.columns is not None:
                factor = factor + (self.columns / totals * self.c).to(tile.dtype)
            return tile.mul_(factor)
        sums = torch.logsumexp(tile, 1)
        self.value += (rows * sums).sum()
        out = (tile - sums[:, None]).exp_() * (rows * self.c)[:, None]
        if totals is not None and self.columns is not None:
            out += (tile - totals).exp_() * (self.columns * self.c)
        return out
