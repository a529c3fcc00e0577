"""Which form solves the triplet plan of a ψ."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tricouple import checks
from tricouple.ot.any_shaping import AnyShaping
from tricouple.ot.forms import Linear
from tricouple.ot.hinge import hinge_form
from tricouple.ot.log_sigmoid import LARGEST_EPSILON, LogSigmoid
from tricouple.ot.scores import Scores
from tricouple.ot.solver import DEFAULT_BUDGET
from tricouple.shaping import Hinge, Shaping, check_margins, resolve


def epsilon_of_factor(shaping: str | Shaping, epsilon: float) -> float:
    """The ε in the factor 1/(τε) of s: 1 unless ψ(t)/ε is a function of t/ε (linear, hinges)."""
    return epsilon if shaping == "linear" or isinstance(resolve(shaping), Hinge) else 1.0


def kernel_of(
    shaping: str | Shaping,
    factor: float | Tensor,
    epsilon: float,
    dtype: torch.dtype,
    *,
    kernel_tol: float = 1e-3,
    reach: float | None = None,
    used: Callable[[], Tensor] | None = None,
    streamed: bool = False,
    memory_budget: float = DEFAULT_BUDGET,
) -> Callable[[Scores], Any]:
    """The form of exp(−C_ijk/ε), C_ijk = ψ((s_ij − s_ik)/τ), as a function of the scores s.

    Args:
        shaping: ψ, a name or a function.
        factor: What s is multiplied by, 1/(τε) with the ε of ``epsilon_of_factor``.
        epsilon: ε.
        dtype: That of the N×M matrices.
        kernel_tol: Relative error of the log-sigmoid kernel.
        reach: The largest ``factor · |s|`` on a device, where it is not read.
        used: Gives values of ``factor · s``, between which a ψ that is a function is checked.
        streamed: Whether kernels may not be stored.
        memory_budget: Bytes for the costs of a ψ without a fast form.
    """
    psi = resolve(shaping)
    if shaping == "linear":
        return partial(Linear, sharpness=factor, axes=3)
    if isinstance(psi, Hinge):
        return partial(hinge_form, factor=factor, hinge=psi.over(epsilon), budget=memory_budget)
    if shaping == "log_sigmoid" and epsilon <= LARGEST_EPSILON:
        checks.positive_number("kernel_tol", kernel_tol)
        checks.quadrature_tolerance(kernel_tol, dtype)
        form = partial(LogSigmoid, factor=factor, epsilon=epsilon)
        return partial(form, tolerance=kernel_tol, reach=reach)
    checks.positive_number("memory_budget", memory_budget)
    if streamed:
        raise ValueError(
            'memory="streamed" needs shaping="linear", "log_sigmoid" or a hinge, got '
            f'{shaping!r}: use memory="auto", which takes the costs of a few anchors at a time'
        )
    if used is not None and not isinstance(shaping, str):
        check_margins(psi, used())
    return partial(AnyShaping, factor=factor, psi=psi, epsilon=epsilon, memory_budget=memory_budget)
