"""Potentials of a coupling as a differentiable function of its similarities or embeddings.

The bridge between the sweeps, which know no autograd, and PyTorch: solve as the engine says,
differentiate by one of the three rules.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple.memory import empty_matrix
from tricouple.numeric import (
    ScoreGradient,
    first_derivative_only,
    never_compiled,
    on_host,
    pull,
    told,
    wide_dtype,
)
from tricouple.ot.engine import HingeTriplets, Problem, Sweeps, solve
from tricouple.ot.gradients import GRADIENTS, implicit, marginal_error, warn_unless_converged
from tricouple.ot.sweeps.contract import Solution
from tricouple.ot.sweeps.hinge import HingeTriplet, Weights
from tricouple.ot.sweeps.kernels import Matrix, Products, Similarities


def solve_potentials(
    similarity: Tensor, factor: float | Tensor, marginals: Tensor, problem: Problem, how: Sweeps
) -> tuple[Tensor, int | Tensor]:
    """Log-scalings (wide dtype), all axes in one vector, and the number of sweeps done.

    Args:
        similarity: Shape (N, M), float32 or float64.
        factor: What turns similarities into scores; a tensor gets its gradient.
        marginals: Imposed masses, all axes in one vector.
        problem: What is coupled.
        how: How it is solved and differentiated.
    """
    return _OfSimilarities.apply(similarity, factor, marginals, problem, how)  # type: ignore[no-any-return, no-untyped-call]


def embedded_potentials(
    anchors: Tensor,
    references: Tensor,
    factor: float | Tensor,
    marginals: Tensor,
    problem: Problem,
    how: Sweeps,
) -> Tensor:
    """The same for similarities ``anchors @ references.T``, of which only tiles need exist.

    Anchors are of shape (N, d), references (M, d), and the same tensor within one set.
    """
    embedded = anchors, references, factor, marginals, problem, how, None
    return _OfEmbeddings.apply(*embedded)[0]  # type: ignore[no-any-return, no-untyped-call]


def hinge_potentials(
    anchors: Tensor,
    references: Tensor,
    factor: float | Tensor,
    marginals: Tensor,
    problem: HingeTriplets,
    how: Sweeps,
    weights: Weights,
) -> tuple[Tensor, Tensor]:
    """``Σ plus_ij minus_ik C_ijk/ε`` of a hinge, and the same, from the same sorted scores.

    The weights are plus and minus of some anchors, shape (rows, M) each; the factor c = 1/(τε).
    """
    embedded = anchors, references, factor, marginals, problem, how, weights
    potentials, costs = _OfEmbeddings.apply(*embedded)  # type: ignore[no-untyped-call]
    return costs, potentials


class _OfSimilarities(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        similarity: Tensor,
        factor: float | Tensor,
        marginals: Tensor,
        problem: Problem,
        how: Sweeps,
    ) -> tuple[Tensor, int | Tensor]:
        ctx.save_for_backward(similarity, _learnt(factor))
        solution = _remember(ctx, Matrix(similarity), factor, marginals, problem, how)
        return solution.potentials.clone(), solution.n_sweeps

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        similarity, _ = ctx.saved_tensors
        # The second cotangent belongs to the number of sweeps.
        gradient, slope = _score_matrix(ctx, cotangents[0], similarity)
        to_factor = slope.to(ctx.factor_dtype, copy=True) if ctx.needs_input_grad[1] else None
        return gradient, to_factor, None, None, None


class _OfEmbeddings(torch.autograd.Function):
    """Potentials, and the costs of a hinge where weights of pairs are given."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        factor: float | Tensor,
        marginals: Tensor,
        problem: Problem,
        how: Sweeps,
        weights: Weights | None,
    ) -> tuple[Tensor, Tensor | None]:
        ctx.save_for_backward(anchors, references, _learnt(factor))
        ctx.weights = weights
        source = Products(anchors, references)
        solution = _remember(ctx, source, factor, marginals, problem, how)
        costs = None
        if weights is not None:
            assert isinstance(solution.coupling, HingeTriplet)
            costs = solution.coupling.costs(weights)
        return solution.potentials.clone(), costs

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        anchors, references, _ = ctx.saved_tensors
        gradients, slope = _embedding_gradients(ctx, cotangents, anchors, references)
        to_factor = None if slope is None else slope.to(ctx.factor_dtype, copy=True)
        return *gradients, to_factor, None, None, None, None


def _learnt(factor: float | Tensor) -> Tensor | None:
    return factor if isinstance(factor, Tensor) else None


def _remember(
    ctx: Any,
    source: Similarities,
    factor: float | Tensor,
    marginals: Tensor,
    problem: Problem,
    how: Sweeps,
) -> Solution:
    """Solve, and keep what the gradient needs."""
    ctx.factor, ctx.factor_dtype = factor, None
    if isinstance(factor, Tensor):
        ctx.factor, ctx.factor_dtype = told(factor.detach()), factor.dtype
    ctx.imposed = marginals
    ctx.sizes, ctx.rule = problem.sizes(source.shape), GRADIENTS[how.gradient]
    solution = _solve(problem, source, ctx.factor, marginals, how)
    if _watchers:
        _watchers[-1].append(_watched(solution, marginals, ctx.sizes))
    # Outputs must not be kept here: they refer to this context, and the cycle would hold the
    # kernels' N×N matrices until the garbage collector comes by.
    ctx.solution = replace(solution, potentials=marginals.new_empty(0))
    return solution


class Watched(NamedTuple):
    """How a plan was solved."""

    n_sweeps: int
    marginal_error: float  # L1, of the worst axis


_watchers: list[list[Watched]] = []


@contextmanager
def watched_plans() -> Iterator[list[Watched]]:
    """A list to which every plan solved in this block is added."""
    _watchers.append([])
    try:
        yield _watchers[-1]
    finally:
        _watchers.pop()


@torch.inference_mode()
def _watched(solution: Solution, imposed: Tensor, sizes: tuple[int, ...]) -> Watched:
    return Watched(int(solution.n_sweeps), marginal_error(solution.plan(), imposed.split(sizes)))


# Sweeps are many small operations, and inference mode makes each of them cheaper.
_solve = never_compiled(torch.inference_mode()(solve))


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
    ctx.solution.coupling.release()
    return out, slope


@never_compiled
@torch.inference_mode()
def _embedding_gradients(
    ctx: Any, cotangents: Sequence[Tensor], anchors: Tensor, references: Tensor
) -> tuple[tuple[Tensor, Tensor | None], Tensor | None]:
    """Gradients with respect to both embeddings and to the factor."""
    cotangent, to_costs = cotangents
    gradient = _score_gradient(ctx, cotangent)
    if ctx.weights is not None:
        gradient = ctx.solution.coupling.with_costs(gradient, ctx.weights, to_costs)
    slope, shard = ctx.needs_input_grad[2], ctx.solution.coupling.shard
    result = pull(gradient, ctx.factor, anchors, references, slope=slope, shard=shard)
    # A loss is often kept until the next one is there: its matrices need not be.
    ctx.solution.coupling.release()
    return result


def _score_gradient(ctx: Any, cotangent: Tensor) -> ScoreGradient:
    parts = cotangent.to(ctx.solution.coupling.dtype).split(ctx.sizes)
    if ctx.rule is implicit and on_host(cotangent):
        warn_unless_converged(ctx.solution.plan(), ctx.imposed.split(ctx.sizes))
    gradient: ScoreGradient = ctx.rule(ctx.solution, parts)
    return gradient
