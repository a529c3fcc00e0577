"""What the forms of triplets with a ψ that is not linear have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tricouple.ot.forms import Form
from tricouple.ot.scores import Tiles, blocks

PairWeights = Callable[[slice], tuple[Tensor, Tensor]]
"""plus_ij and minus_ik of some rows, (R, M) each: the target is P̃_ijk = plus_ij minus_ik."""


@dataclass
class Shaped(Form):
    """Triplets whose costs are not linear in s."""

    def costs(self, weights: PairWeights) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Σ_jk plus_ij minus_ik C_ijk/ε of each row, and its derivative with respect to s."""
        for block, part in self.parts():
            sums, slopes = self.cost_rows(part, *weights(block))
            yield block, sums, slopes.to(self.scores.dtype)

    @abstractmethod
    def cost_rows(self, part: Any, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """``costs`` of some rows."""


def parts_of(tiles: Tiles, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Tiles in parts of at most so many rows."""
    for tile, s in tiles:
        for part in blocks(len(s), step):
            yield slice(tile.start + part.start, tile.start + part.stop), s[part]
