"""What losses are put together from: costs of triplets, KL to a plan of pairs, a plan read out."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.losses.batch import Batch
from tricouple.numeric import Patch, expectation, first_derivative_only, pull, told, wide_dtype
from tricouple.ot.engine import LogSigmoidTriplets, Pairs, Sweeps
from tricouple.ot.potentials import embedded_potentials, solve_potentials
from tricouple.relations import ListedTriplets, TargetPairs, TripletTarget
from tricouple.shaping import Margins, Shaping, log_sigmoid

VARIANTS = ("formula", "published")


def mean_cost(
    batch: Batch, target: TripletTarget, scores: Tensor, psi: Shaping, memory_budget: float
) -> Tensor:
    """``⟨P̃, ψ(x_ij − x_ik)⟩``.

    Args:
        batch: The batch, with at least one admissible triplet.
        target: P̃.
        scores: x = s/τ, shape (N, M).
        psi: ψ.
        memory_budget: Bytes for the costs of some anchors at a time.
    """
    relation = batch.relation
    if isinstance(relation, ListedTriplets):
        return relation.mean(psi(listed_margins(relation, scores)))
    margins = Margins(scores.detach(), psi, memory_budget)
    mean: Tensor = _TripletSum.apply(scores, margins, *target.weights())  # type: ignore[no-untyped-call]
    return mean


def listed_margins(relation: ListedTriplets, scores: Tensor) -> Tensor:
    """``x_ij − x_ik`` of each listed triplet."""
    positives = scores[relation.anchors, relation.positive_indices]
    return positives - scores[relation.anchors, relation.negative_indices]


def extreme_margins(batch: Batch) -> Tensor:
    """The smallest and the largest s_ij − s_ik of all admissible triplets."""
    scores, relation = batch.similarity(), batch.relation
    if isinstance(relation, ListedTriplets):
        return torch.stack(torch.aminmax(listed_margins(relation, scores)))
    positives = relation.attracting().pairs.mask()
    negatives = relation.repelling().pairs.mask()
    lowest = _least(scores, positives) + _least(-scores, negatives)
    highest = _least(-scores, positives) + _least(scores, negatives)
    return torch.stack([lowest.min(), -highest.min()])


def _least(values: Tensor, mask: Tensor) -> Tensor:
    return values.masked_fill(~mask, math.inf).amin(1)


class _TripletSum(torch.autograd.Function):
    """``Σ_ijk plus_ij minus_ik ψ(x_ij − x_ik)``, with the gradient from the same pass."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, margins: Margins, plus: Tensor, minus: Tensor) -> Tensor:
        total = scores.new_zeros(())
        gradient = torch.zeros_like(scores) if ctx.needs_input_grad[0] else None
        for block in margins.blocks:
            near, far = plus[block, :, None], minus[block, None, :]
            other = (near == 0) | (far == 0)  # where ψ and its slope may be infinite
            total += margins.costs(block).mul_(near).mul_(far).masked_fill_(other, 0.0).sum()
            if gradient is not None:
                slopes = margins.slopes(block).mul_(near).mul_(far).masked_fill_(other, 0.0)
                torch.sub(slopes.sum(2), slopes.sum(1), out=gradient[block])
        ctx.save_for_backward(gradient)
        return total

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        (outer,) = gradients
        (gradient,) = ctx.saved_tensors
        return outer * gradient, None, None, None


def mean_log_sigmoid_cost(
    batch: Batch,
    target: TripletTarget,
    factor: float | Tensor,
    problem: LogSigmoidTriplets,
    shard: Shard | None = None,
) -> Tensor:
    """``⟨P̃, log(1 + e^{−(x_ij − x_ik)})⟩``, x = factor · s, in O(Q·N²) and O(N·d) memory.

    Args:
        batch: The batch, with at least one admissible triplet.
        target: P̃.
        factor: 1/τ.
        problem: The triplets, which know how their costs are summed.
        shard: Processes that sum those of their own anchors, if there are several.
    """
    relation = batch.relation
    if isinstance(relation, ListedTriplets):
        return relation.mean(log_sigmoid(listed_margins(relation, factor * batch.similarity())))
    embedded = batch.anchors, batch.references
    mean: Tensor = _PairwiseSum.apply(*embedded, factor, target, problem, shard)  # type: ignore[no-untyped-call]
    return mean


class _PairwiseSum(torch.autograd.Function):
    """``⟨P̃, log(1 + e^{−(x_ij − x_ik)})⟩``, its gradient at once."""

    @staticmethod
    def forward(
        ctx: Any,
        anchors: Tensor,
        references: Tensor,
        factor: float | Tensor,
        target: TripletTarget,
        problem: LogSigmoidTriplets,
        shard: Shard | None,
    ) -> Tensor:
        total = torch.zeros((), dtype=wide_dtype(anchors.device), device=anchors.device)
        own = slice(0, len(anchors)) if shard is None else shard.rows

        def patches() -> Iterator[Patch]:
            for sums, patch in problem.costs(anchors, references, number, target.weights, own):
                total.add_(sums.sum())
                yield patch

        number = told(factor.detach()) if isinstance(factor, Tensor) else factor
        learnt = ctx.needs_input_grad[2]
        gradients, slope = pull(patches(), number, anchors, references, slope=learnt, shard=shard)
        ctx.save_for_backward(*gradients, slope)
        return total if shard is None else shard.sum_(total)

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        gradients = (part if part is None else part * outer[0] for part in ctx.saved_tensors)
        return *gradients, None, None, None


def pair_divergence(
    batch: Batch,
    target: TargetPairs,
    sharpness: float | Tensor,
    sweeps: Sweeps,
    *,
    costs: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """KL(P̃‖P) for the plan with kernel ``exp(sharpness · s)``, and the plan's log-scalings.

    ``KL(P̃‖P) = −H(P̃) − sharpness·⟨P̃, s⟩ − Σ ⟨target marginal, log-scaling⟩``.

    Args:
        batch: The batch, with cosines s.
        target: P̃.
        sharpness: Positive for transport, negative for anti-transport.
        sweeps: How to solve.
        costs: Take these, shape (N, M), for s.

    Returns:
        The divergence, a scalar, and log-scalings of rows and columns, all in the wide dtype.
    """
    rows, columns = target.pairs.marginals
    masses = torch.cat([rows, columns])
    sizes = (len(rows), len(columns))
    sweeps = batch.shared(sweeps)
    imposed, problem = batch.imposed(sweeps, masses, sizes), Pairs(batch.within)
    if costs is None:
        embedded = batch.anchors, batch.references
        potentials = embedded_potentials(*embedded, sharpness, imposed, problem, sweeps)
        mean = batch.inner(target.pairs)  # O(N·d) work
    else:
        potentials, _ = solve_potentials(costs, sharpness, imposed, problem, sweeps)
        mean = (target.pairs.dense() * costs).sum()
    value = -target.entropy - sharpness * mean - expectation(masses, potentials)
    return value, potentials.split(sizes)


def read_out(log_plan: Tensor, positives: Tensor, variant: str) -> Tensor:
    """The loss of a plan whose rows sum to about one.

    ``"formula"`` is ``−mean log P`` at the positive pairs: inverse optimal transport, that is
    ``KL(P̃ ‖ P)`` up to a constant.

    ``"published"`` is the public CLIP code's ``cross_entropy(P, diagonal)``. It takes the plan
    itself for logits, so that a second softmax flattens numbers between 0 and 1: for N = 256 the
    loss can only move between 4.55 and 5.55.

    Args:
        log_plan: log P, shape (N, M).
        positives: The positive pairs as a mask, shape (N, M). The public code knows one a row; the
            mean over all of them is ours.
        variant: ``"formula"`` or ``"published"``.
    """
    if variant == "published":
        log_plan = torch.log_softmax(log_plan.exp(), 1)
    return -torch.where(positives, log_plan, 0.0).sum() / positives.sum()
