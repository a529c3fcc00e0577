"""Danskin's gradient: the plan itself."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tricouple.ot.sweeps.plan import ScoreGradient, Solution


def envelope(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """Take the cotangents to be the plan's own marginals times their total (paper's appendix).

    Then the implicit system has the solution (total, 0, …) and nothing needs to be solved.
    """
    sink = solution.kernel.sink()
    total = cotangents[0].sum()
    weights = torch.ones_like(cotangents[0]) * -total
    solution.plan().push(0, weights, sink)
    return sink.total()
