"""Potentials of a coupling as a differentiable function of its similarities or embeddings.

The bridge between the kernels, which know no autograd, and PyTorch: solve fast, and carefully
where fast cannot be trusted; differentiate by one of the three rules.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from tricouple.memory import empty_matrix
from tricouple.numeric import ScoreGradient, never_compiled, pull, wide_dtype
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.solvers import SolverFactory
from tricouple.ot.sweeps.plan import Masses, Releasable, Solution
from tricouple.ot.sweeps.similarities import Matrix, Products, Similarities


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
    return _OfSimilarities.apply(similarity, sharpness, marginals, settings)  # type: ignore[no-any-return, no-untyped-call]


def embedded_potentials(
    anchors: Tensor,
    references: Tensor,
    sharpness: float | Tensor,
    marginals: Tensor,
    settings: Settings,
) -> Tensor:
    """The same for similarities ``anchors @ references.T``, of which only tiles ever exist.

    Args:
        anchors: Shape (N, d), float32 or float64.
        references: Shape (M, d); the same tensor within one set.
        sharpness: The factor that turns similarities into scores; a tensor gets its gradient.
        marginals: Imposed masses, all axes in one vector.
        settings: The solver's settings.
    """
    return _OfEmbeddings.apply(anchors, references, sharpness, marginals, settings)  # type: ignore[no-any-return, no-untyped-call]


class _OfSimilarities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        sharpness: float | Tensor,
        marginals: Tensor,
        settings: Settings,
    ) -> tuple[Tensor, int]:
        ctx.save_for_backward(similarity)
        solution = _remember(ctx, Matrix(similarity), sharpness, marginals, settings)
        return solution.potentials.clone(), solution.n_sweeps

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        (similarity,) = ctx.saved_tensors
        # The second cotangent belongs to the number of sweeps.
        gradient, slope = _score_matrix(ctx, cotangents[0], similarity)
        to_factor = slope.to(ctx.factor_dtype, copy=True) if ctx.needs_input_grad[1] else None
        return gradient, to_factor, None, None


class _OfEmbeddings(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        sharpness: float | Tensor,
        marginals: Tensor,
        settings: Settings,
    ) -> Tensor:
        ctx.save_for_backward(anchors, references)
        source = Products(anchors, references)
        return _remember(ctx, source, sharpness, marginals, settings).potentials.clone()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        gradients, slope = _embedding_gradients(ctx, cotangents[0], *ctx.saved_tensors)
        to_factor = None if slope is None else slope.to(ctx.factor_dtype, copy=True)
        return *gradients, to_factor, None, None


def _remember(
    ctx: Any,
    similarities: Similarities,
    sharpness: float | Tensor,
    marginals: Tensor,
    settings: Settings,
) -> Solution:
    """Solve, and keep what the gradient needs."""
    factor = float(sharpness)
    solution = _solve(similarities, factor, marginals, settings)
    # Outputs must not be kept here: they refer to this context, and the cycle would hold the
    # kernels' N×N matrices until the garbage collector comes by.
    ctx.solution = replace(solution, potentials=torch.empty(0))
    ctx.settings, ctx.factor = settings, factor
    ctx.factor_dtype = sharpness.dtype if isinstance(sharpness, Tensor) else None
    return solution


# Sweeps are many small operations, and inference mode makes each of them cheaper.


@never_compiled
@torch.inference_mode()
def _solve(
    similarities: Similarities, sharpness: float, marginals: Tensor, settings: Settings
) -> Solution:
    """The answer of the first solver that can be trusted."""
    for solver in settings.solvers:
        kernel = solver(similarities, sharpness, within=settings.within)
        if kernel is None:
            continue
        masses = Masses(marginals, settings.sizes, kernel.dtype)
        solution = kernel.solve(masses, settings.n_iters, settings.tol)
        if solution is not None:
            return solution
    raise AssertionError("the last solver always answers")


def _score_gradient(ctx: Any, cotangent: Tensor) -> ScoreGradient:
    parts = cotangent.to(ctx.solution.kernel.dtype).split(ctx.settings.sizes)
    return GRADIENTS[ctx.settings.gradient](ctx.solution, parts)


def _release(solution: Solution) -> None:
    """A loss is often kept until the next one is there: its matrices need not be."""
    if isinstance(solution.kernel, Releasable):
        solution.kernel.release()


@never_compiled
@torch.inference_mode()
def _score_matrix(ctx: Any, cotangent: Tensor, similarity: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients with respect to the similarities and to the factor."""
    out = empty_matrix(similarity, *similarity.shape)
    slope = torch.zeros((), dtype=wide_dtype(out.device), device=out.device)
    for rows, tile, _ in _score_gradient(ctx, cotangent):
        if ctx.needs_input_grad[1]:
            allowed = torch.where(torch.isfinite(similarity[rows]), similarity[rows], 0.0)
            slope += torch.sum(tile * allowed)
        torch.mul(tile, ctx.factor, out=out[rows])
    _release(ctx.solution)
    return out, slope


@never_compiled
@torch.inference_mode()
def _embedding_gradients(
    ctx: Any, cotangent: Tensor, anchors: Tensor, references: Tensor
) -> tuple[tuple[Tensor, Tensor | None], Tensor | None]:
    """Gradients with respect to both embeddings and to the factor."""
    gradient = _score_gradient(ctx, cotangent)
    slope = ctx.needs_input_grad[2]
    result = pull(gradient, ctx.factor, anchors, references, slope=slope)
    _release(ctx.solution)
    return result
