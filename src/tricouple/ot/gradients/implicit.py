"""The exact gradient at convergence, by conjugate gradients on the plan's own operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero
from tricouple.ot.sweeps.plan import Plan, ScoreGradient, Solution


def implicit(solution: Solution, cotangents: Sequence[Tensor]) -> ScoreGradient:
    """Differentiate "the plan has the imposed marginals".

    The marginals' Jacobian with respect to the log-scalings is the symmetric matrix J with the
    marginals on its diagonal and the pair marginals off it. With ``J w = cotangents`` the gradient
    is minus that of ``Σ w · marginals`` at fixed potentials.
    """
    plan = solution.plan()
    sink = solution.kernel.sink()
    for axis, weights in enumerate(_solve(plan, cotangents)):
        plan.push(axis, -weights, sink)
    return sink.total()


def _solve(plan: Plan, right: Sequence[Tensor]) -> list[Tensor]:
    """Conjugate gradients with a diagonal preconditioner for J w = right.

    J is positive semi-definite. Its null space (a constant moved from one axis to another) is kept
    out of every residual, so that rounding cannot grow along it. A sharp plan that is not converged
    may have fallen into parts that no mass connects: then there is no solution, residuals cannot
    vanish, and the iterate with the smallest is the answer.
    """
    sizes = [len(part) for part in right]
    diagonal = torch.cat([plan.marginal(axis) for axis in range(len(right))])
    shares = [part / part.sum() for part in diagonal.split(sizes)]

    def apply(flat: Tensor) -> Tensor:
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
    for _ in range(2 * len(residual) + 100):
        if energy <= goal:
            break
        image = apply(direction)
        curvature = direction @ image
        if curvature <= 100 * rounding * (direction @ (diagonal * direction)):
            break  # the direction is in the null space but for rounding
        step = energy / curvature
        solution = solution + step * direction
        residual = consistent(residual - step * image)
        scaled = divide_or_zero(residual, diagonal)
        previous, energy = energy, residual @ scaled
        if energy < smallest:
            smallest, best = energy, solution
        direction = scaled + (energy / previous) * direction
    return list(best.split(sizes))
