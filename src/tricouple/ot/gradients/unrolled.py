"""The exact gradient of the sweeps that were done."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from tricouple.ot.sweeps.plan import ScoreGradient, Solution


def unrolled(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """The adjoint of the sweeps, from the vectors that their history stored."""
    return solution.history.adjoint(cotangents)
