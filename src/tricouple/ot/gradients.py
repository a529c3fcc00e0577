"""Three notions of the gradient of a coupling's potentials with respect to its scores.

``unrolled`` is the exact gradient of what the sweeps computed; ``implicit`` is the exact gradient
of the converged plan, for any marginals; ``envelope`` (Danskin) is exact only when the sweeps have
converged and the target has the marginals that were imposed (mathematics §4).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient, divide_or_zero, on_host
from tricouple.ot.sweeps.contract import Plan, Solution


def unrolled(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """The adjoint of the sweeps (mathematics §4), from the vectors that their history stored."""
    return solution.history.adjoint(cotangents)


def envelope(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """Danskin's rule, ∂g/∂C = (P̃ − P)/ε (mathematics §4; paper's appendix).

    It takes the cotangents to be the plan's own marginals times their total: then the implicit
    system has the solution (total, 0, …) and nothing needs to be solved.
    """
    sink = solution.coupling.sink()
    total = cotangents[0].sum()
    weights = torch.ones_like(cotangents[0]) * -total
    solution.plan().push(0, weights, sink)
    return sink.total()


def implicit(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """Differentiate "the plan has the imposed marginals" (mathematics §4).

    The marginals' Jacobian with respect to the log-scalings is the symmetric matrix J with the
    marginals on its diagonal and the pair marginals off it. With ``J w = cotangents`` the gradient
    is minus that of ``Σ w · marginals`` at fixed potentials.
    """
    plan = solution.plan()
    sink = solution.coupling.sink()
    for axis, weights in enumerate(_solve(plan, cotangents, solution.coupling.agreed)):
        plan.push(axis, -weights, sink)
    return sink.total()


# Steps of the solver on a device.
_STEPS = 100

# Above this marginal error (L1) a plan is not the one that the implicit gradient is about.
_CONVERGED = 1e-3


def marginal_error(plan: Plan, imposed: Sequence[Tensor]) -> float:
    """The largest L1 distance between the plan's marginals and those imposed on it."""
    found = (plan.marginal(axis) for axis in range(len(imposed)))
    return max(float((a - b).abs().sum()) for a, b in zip(found, imposed, strict=True))


def warn_unless_converged(plan: Plan, imposed: Sequence[Tensor]) -> None:
    """Say so where the implicit gradient belongs to another plan than the one at hand."""
    error = marginal_error(plan, imposed)
    if error > _CONVERGED:
        warnings.warn(
            f'gradient="implicit" is that of a converged plan, but the marginals of this one are '
            f"{error:.2g} off: use more n_iters (with a tol), a larger epsilon, or "
            'gradient="unrolled"',
            stacklevel=2,
        )


def _solve(plan: Plan, right: Sequence[Tensor], agreed: Callable[[bool], bool]) -> list[Tensor]:
    """Conjugate gradients with a diagonal preconditioner for J w = right.

    J is positive semi-definite. Its null space (a constant moved from one axis to another) is kept
    out of every residual, so that rounding cannot grow along it. A sharp plan that is not converged
    may have fallen into parts that no mass connects: then there is no solution, residuals cannot
    vanish, and the iterate with the smallest is the answer. A device, which is not asked how far it
    is, takes a fixed number of steps; those after the end do not count.
    """
    sizes = [len(part) for part in right]
    diagonal = torch.cat([plan.marginal(axis) for axis in range(len(right))])
    shares = [part / part.sum() for part in diagonal.split(sizes)]

    def apply(flat: Tensor) -> Tensor:
        """J w: diag p on the diagonal, pair marginals P¹², P¹³, P²³ off it."""
        result = list((diagonal * flat).split(sizes))
        for axis, weights in enumerate(flat.split(sizes)):
            for other, pushed in plan.push(axis, weights).items():
                result[other] = result[other] + pushed
        return torch.cat(result)

    def consistent(flat: Tensor) -> Tensor:
        """All axes must receive the same total."""
        parts = flat.split(sizes)
        totals = torch.stack([part.sum() for part in parts])
        excess = totals - totals.mean()
        return flat - torch.cat([e * share for e, share in zip(excess, shares, strict=True)])

    residual = consistent(torch.cat(list(right)))
    solution = best = torch.zeros_like(residual)
    scaled = divide_or_zero(residual, diagonal)
    direction = scaled
    energy = smallest = residual @ scaled
    rounding = torch.finfo(residual.dtype).eps
    goal = energy * rounding**2
    ended = torch.zeros_like(energy, dtype=torch.bool)  # on a device

    def over(found: Tensor) -> bool:
        """Whether to leave the loop for this reason."""
        if on_host(found):
            return agreed(bool(found))
        ended.logical_or_(found)
        return False

    for _ in range(2 * len(residual) + 100 if on_host(residual) else _STEPS):
        if over(energy <= goal):
            break
        image = apply(direction)
        curvature = direction @ image
        if over(curvature <= 100 * rounding * (direction @ (diagonal * direction))):
            break  # the direction is in the null space but for rounding
        step = energy / curvature
        solution = solution + step * direction
        residual = consistent(residual - step * image)
        scaled = divide_or_zero(residual, diagonal)
        previous, energy = energy, residual @ scaled
        better = (energy < smallest) & ~ended
        smallest, best = torch.where(better, energy, smallest), torch.where(better, solution, best)
        direction = scaled + (energy / previous) * direction
    return list(best.split(sizes))


GradientRule = Callable[[Solution, Sequence[Tensor]], ScoreGradient]

GRADIENTS: dict[str, GradientRule] = {
    "unrolled": unrolled,
    "implicit": implicit,
    "envelope": envelope,
}
"""Each takes a solution and the gradients of a scalar with respect to its log-scalings, and gives
the gradient with respect to the scores."""
