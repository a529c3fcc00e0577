"""Three notions of the gradient of a coupling's potentials with respect to its scores.

``unrolled`` is the exact gradient of what the sweeps computed; ``implicit`` is the exact gradient
of the converged plan, for any marginals; ``envelope`` (Danskin) is exact only when the sweeps have
converged and the target has the marginals that were imposed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from torch import Tensor

from tricouple.ot.gradients.envelope import envelope
from tricouple.ot.gradients.implicit import implicit
from tricouple.ot.gradients.unrolled import unrolled
from tricouple.ot.sweeps.plan import ScoreGradient, Solution

GradientRule = Callable[[Solution, Sequence[Tensor]], ScoreGradient]

GRADIENTS: dict[str, GradientRule] = {
    "unrolled": unrolled,
    "implicit": implicit,
    "envelope": envelope,
}
"""Each takes a solution and the gradients of a scalar with respect to its log-scalings, and gives
the gradient with respect to the scores."""
