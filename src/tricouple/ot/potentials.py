"""Potentials of a coupling as a differentiable function of its similarities.

The bridge between the kernels, which know no autograd, and PyTorch: solve fast, and carefully
where fast cannot be trusted; differentiate by one of the three rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.kernels.pair_log import LogPair
from tricouple.ot.kernels.pair_scaled import ScaledPair
from tricouple.ot.kernels.plan import Kernel, Masses, Solution
from tricouple.ot.kernels.triplet_log import LogTriplet
from tricouple.ot.kernels.triplet_scaled import ScaledTriplet


class _Solver(Kernel, Protocol):
    def __init__(self, similarity: Tensor, sharpness: float, *, within: bool) -> None: ...

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None: ...


# Fast first; the last one never gives up.
PAIR: tuple[type[_Solver], ...] = (ScaledPair, LogPair)
TRIPLET: tuple[type[_Solver], ...] = (ScaledTriplet, LogTriplet)


@dataclass(frozen=True)
class Settings:
    """How to solve and how to differentiate; ``sizes`` are the lengths of the axes."""

    solvers: tuple[type[_Solver], ...]
    sizes: tuple[int, ...]
    within: bool
    n_iters: int
    tol: float | None
    gradient: str


def solve_potentials(
    similarity: Tensor, sharpness: float | Tensor, marginals: Tensor, settings: Settings
) -> tuple[Tensor, int]:
    """Log-scalings (wide dtype), all axes in one vector, and the number of sweeps done.

    Args:
        similarity: Shape (N, M), float32 or float64.
        sharpness: The factor that turns similarities into scores; a tensor gets its gradient.
        marginals: Imposed masses, all axes in one vector.
        settings: The solver's settings.
    """
    return _Potentials.apply(similarity, sharpness, marginals, settings)  # type: ignore[no-any-return, no-untyped-call]


class _Potentials(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        sharpness: float | Tensor,
        marginals: Tensor,
        settings: Settings,
    ) -> tuple[Tensor, int]:
        factor = float(sharpness)
        # Sweeps are many small operations, and inference mode makes each of them cheaper.
        with torch.inference_mode():
            solution = _solve(similarity, factor, marginals, settings)
        ctx.save_for_backward(similarity)
        # Outputs must not be kept here: they refer to this context, and the cycle would hold the
        # kernels' N×N matrices until the garbage collector comes by.
        ctx.solution = replace(solution, potentials=torch.empty(0))
        ctx.settings, ctx.factor = settings, factor
        ctx.factor_dtype = sharpness.dtype if isinstance(sharpness, Tensor) else None
        return solution.potentials.clone(), solution.n_sweeps

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        (similarity,) = ctx.saved_tensors
        rule = GRADIENTS[ctx.settings.gradient]
        with torch.inference_mode():
            # The second cotangent belongs to the number of sweeps.
            parts = cotangents[0].to(similarity.dtype).split(ctx.settings.sizes)
            scores = rule(ctx.solution, parts)
        sharpness = None
        if ctx.needs_input_grad[1]:
            allowed = torch.where(torch.isfinite(similarity), similarity, 0.0)
            sharpness = torch.sum(scores * allowed).to(ctx.factor_dtype)
        return scores * ctx.factor, sharpness, None, None


def _solve(similarity: Tensor, sharpness: float, marginals: Tensor, settings: Settings) -> Solution:
    """The answer of the first solver that can be trusted."""
    masses = Masses.of(marginals.to(similarity.dtype), settings.sizes)
    for solver in settings.solvers:
        kernel = solver(similarity, sharpness, within=settings.within)
        solution = kernel.solve(masses, settings.n_iters, settings.tol)
        if solution is not None:
            return solution
    raise AssertionError("the last solver always answers")
