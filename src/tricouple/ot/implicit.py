"""The implicit gradient: J w = cotangents, by conjugate gradients (mathematics §4)."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tricouple.numeric import divide_or_zero, on_host

if TYPE_CHECKING:
    from tricouple.ot.solver import Run

# Above this marginal error (L1) a plan is not the one that the implicit gradient is about.
_CONVERGED = 1e-3
# Steps of conjugate gradients on a device, which is not asked how far it is.
_STEPS = 100


def implicit_weights(run: Run, right: Sequence[Tensor]) -> list[Tensor]:
    """The solution w of J w = right, one vector per axis; warns if the plan has not converged.

    J = diag(marginals) + pair marginals is positive semi-definite. Its null space (a constant moved
    from one axis to another) is kept out of every residual, so that rounding cannot grow along it.
    A sharp plan that is not converged may have fallen into parts that no mass connects: then there
    is no solution, and the iterate with the smallest residual is the answer.
    """
    error = run.marginal_error()
    if on_host(error) and float(error) > _CONVERGED:
        warnings.warn(
            f'gradient="implicit" is that of a converged plan, but the marginals of this one are '
            f"{float(error):.2g} off: use more n_iters (with a tol), a larger epsilon, or "
            'gradient="unrolled"',
            stacklevel=2,
        )
    sizes = [len(part) for part in right]
    diagonal = torch.cat(run.marginals())
    host = on_host(diagonal)

    def totals(flat: Tensor) -> Tensor:
        sums = torch.stack([part.sum() for part in flat.split(sizes)])
        run.form.scores.shared(sums[:1])
        return sums

    def inner(left: Tensor, other: Tensor) -> Tensor:
        return totals(left * other).sum()

    def consistent(flat: Tensor) -> Tensor:
        """All axes must receive the same total."""
        found = totals(flat)
        excess = zip(diagonal.split(sizes), (found - found.mean()) / masses, strict=True)
        return flat - torch.cat([part * amount for part, amount in excess])

    masses = totals(diagonal)
    residual = consistent(torch.cat(list(right)))
    scaled = divide_or_zero(residual, diagonal)
    solution = best = torch.zeros_like(residual)
    direction, energy = scaled, inner(residual, scaled)
    smallest, rounding = energy, torch.finfo(residual.dtype).eps
    enough, ended = energy * rounding**2, torch.zeros_like(energy, dtype=torch.bool)
    # The same number on all processes, whichever rows they have.
    rows = run.form.scores.shared(residual.new_tensor(sizes[0]))
    for _ in range((2 * int(rows) + 4 * sizes[1] if host else 0) + _STEPS):
        pushed = run.form.push(run.potentials, list(direction.split(sizes)))
        image = diagonal * direction + torch.cat(pushed)  # J times it
        curvature = inner(direction, image)
        # At the end, or in the null space but for rounding.
        flat = curvature <= 100 * rounding * inner(direction, diagonal * direction)
        ended = ended | (energy <= enough) | flat
        if host and bool(ended):
            break
        step = energy / curvature
        solution = solution + step * direction
        residual = consistent(residual - step * image)
        scaled = divide_or_zero(residual, diagonal)
        previous, energy = energy, inner(residual, scaled)
        better = (energy < smallest) & ~ended
        smallest, best = torch.where(better, energy, smallest), torch.where(better, solution, best)
        direction = scaled + (energy / previous) * direction
    return list(best.split(sizes))
