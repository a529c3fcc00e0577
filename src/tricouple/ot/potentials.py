"""Potentials of a coupling as a differentiable function of its similarities.

The bridge between the kernels, which know no autograd, and PyTorch: solve fast, and carefully
where fast cannot be trusted; differentiate by one of the three rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tricouple.eager import never_compiled
from tricouple.numeric import FlushedDenormals
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.kernels import native
from tricouple.ot.kernels.native_triplet import NativeTriplet
from tricouple.ot.kernels.pair_log import LogPair
from tricouple.ot.kernels.pair_scaled import ScaledPair
from tricouple.ot.kernels.plan import Kernel, Masses, Solution
from tricouple.ot.kernels.triplet_log import careful_linear
from tricouple.ot.kernels.triplet_log_sigmoid import careful_log_sigmoid, scaled_log_sigmoid
from tricouple.ot.kernels.triplet_scaled import scaled_linear


class Solver(Kernel, Protocol):
    """A kernel that finds its own scalings."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted."""


class SolverFactory(Protocol):
    """Makes a solver of similarities, the factor that turns them into scores, and the setting."""

    def __call__(self, similarity: Tensor, factor: float, /, *, within: bool) -> Solver:
        """Build the kernel."""


def fast_linear(similarity: Tensor, sharpness: float, /, *, within: bool) -> Solver:
    """The fast triplet coupling for linear ψ: compiled for small batches, PyTorch for large."""
    make = NativeTriplet if native.suits(similarity) else scaled_linear
    return make(similarity, sharpness, within=within)


# Fast first; the last one never gives up.
PAIR: tuple[SolverFactory, ...] = (ScaledPair, LogPair)
LINEAR_TRIPLET: tuple[SolverFactory, ...] = (fast_linear, careful_linear)


def log_sigmoid_triplet(epsilon: float, tolerance: float) -> tuple[SolverFactory, ...]:
    """Solvers for log-sigmoid shaping, by quadrature to a tolerance on the kernel."""
    power = 1 / epsilon
    return (
        partial(scaled_log_sigmoid, power=power, tolerance=tolerance),
        partial(careful_log_sigmoid, power=power, tolerance=tolerance),
    )


@dataclass(frozen=True)
class Settings:
    """How to solve and how to differentiate; ``sizes`` are the lengths of the axes."""

    solvers: tuple[SolverFactory, ...]
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
        solution = _solve(similarity, factor, marginals, settings)
        ctx.save_for_backward(similarity)
        # Outputs must not be kept here: they refer to this context, and the cycle would hold the
        # kernels' N×N matrices until the garbage collector comes by.
        ctx.solution = replace(solution, potentials=torch.empty(0))
        ctx.settings, ctx.factor = settings, factor
        ctx.factor_dtype = sharpness.dtype if isinstance(sharpness, Tensor) else None
        return solution.potentials.clone(), solution.n_sweeps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        (similarity,) = ctx.saved_tensors
        # The second cotangent belongs to the number of sweeps.
        scores = _differentiate(ctx.solution, cotangents[0], ctx.settings)
        sharpness = None
        if ctx.needs_input_grad[1]:
            allowed = torch.where(torch.isfinite(similarity), similarity, 0.0)
            sharpness = torch.sum(scores * allowed).to(ctx.factor_dtype)
        # The gradient of the fast path is a matrix of its own, free to be scaled in place.
        scaled = scores * ctx.factor if scores.is_inference() else scores.mul_(ctx.factor)
        return scaled.to(similarity.dtype), sharpness, None, None


# Sweeps are many small operations, and inference mode makes each of them cheaper.


@never_compiled
@torch.inference_mode()
def _solve(similarity: Tensor, sharpness: float, marginals: Tensor, settings: Settings) -> Solution:
    """The answer of the first solver that can be trusted."""
    with FlushedDenormals():
        for solver in settings.solvers:
            kernel = solver(similarity, sharpness, within=settings.within)
            masses = Masses(marginals, settings.sizes, kernel.dtype)
            solution = kernel.solve(masses, settings.n_iters, settings.tol)
            if solution is not None:
                return solution
    raise AssertionError("the last solver always answers")


@never_compiled
@torch.inference_mode()
def _differentiate(solution: Solution, cotangent: Tensor, settings: Settings) -> Tensor:
    """The gradient with respect to the scores, shape (N, M)."""
    parts = cotangent.to(solution.kernel.dtype).split(settings.sizes)
    with FlushedDenormals():
        return GRADIENTS[settings.gradient](solution, parts)
