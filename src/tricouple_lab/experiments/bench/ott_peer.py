"""OTT-JAX's ``MMSinkhorn`` set up to solve exactly our triplet problem.

Its cost is a sum of costs of pairs of points, c₁₂ + c₁₃ + c₂₃. Ours has this form: −s_ij/τ, +s_ik/τ
and, to forbid equal indices, a penalty where two points are the same sample. A cost sees points,
not indices, so every point carries its index as one more coordinate.

Every function here is jitted and compiled ahead of time: measuring a call never measures the
compiler. ``min_iterations == max_iterations`` makes MMSinkhorn run a plain loop of exactly that
many sweeps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ott.experimental.mmsinkhorn import MMSinkhorn
from ott.geometry import costs

from tricouple_lab.experiments.bench.problem import Batch, Problem

# exp(−FORBIDDEN / ε) is exactly 0 in float32, and unlike an infinite cost it leaves no NaN in the
# backward pass.
FORBIDDEN = 1e4


@jax.tree_util.register_pytree_node_class
class DistinctPairCost(costs.CostFn):  # type: ignore[misc]
    """``slope`` times the inner product of two points; forbidden if they are the same sample."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the cost of two points, each a vector followed by its index."""
        inner = jnp.vdot(x[:-1], y[:-1])
        return jnp.where(x[-1] == y[-1], FORBIDDEN, self.slope * inner)

    def tree_flatten(self) -> tuple[tuple[()], float]:
        """Tell JAX that the slope is a constant."""
        return (), self.slope

    @classmethod
    def tree_unflatten(cls, aux_data: float, children: tuple[()]) -> DistinctPairCost:
        """Rebuild from the constant."""
        return cls(aux_data)


def solve(embeddings: Any, problem: Problem, use_danskin: bool) -> tuple[Any, Any]:
    """Return the unit vectors and MMSinkhorn's output for them."""
    unit = embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)
    index = jnp.arange(len(unit), dtype=unit.dtype)
    points = jnp.concatenate([unit, index[:, None]], axis=1)
    slope = 1.0 / problem.temperature
    solver = MMSinkhorn(
        threshold=0.0,
        inner_iterations=problem.n_iters,
        min_iterations=problem.n_iters,
        max_iterations=problem.n_iters,
        use_danskin=use_danskin,
    )
    pair_costs = (DistinctPairCost(-slope), DistinctPairCost(slope), DistinctPairCost(0.0))
    return unit, solver((points, points, points), cost_fns=pair_costs, epsilon=problem.epsilon)


def pair_targets(batch: Batch) -> tuple[Any, Any, float]:
    """Return the target's pair marginals P̃¹², P̃¹³ and the number of triplets |A|."""
    labels = batch.labels.numpy()
    same = labels[:, None] == labels[None, :]
    positives = same & ~np.eye(len(labels), dtype=bool)
    negatives = ~same
    n_pos, n_neg = positives.sum(1, keepdims=True), negatives.sum(1, keepdims=True)
    n_triplets = float((n_pos * n_neg).sum())
    return (
        jnp.asarray(positives * n_neg / n_triplets, dtype=jnp.float32),
        jnp.asarray(negatives * n_pos / n_triplets, dtype=jnp.float32),
        n_triplets,
    )


def prepare_loss(batch: Batch, problem: Problem, use_danskin: bool = False) -> Callable[[], Any]:
    """Value and exact gradient of Neg-MMIOT, differentiated through MMSinkhorn's sweeps.

    With Danskin: the envelope gradient (P̃ − P)/ε, which MMSinkhorn offers without unrolling. Its
    value is ⟨P̃, C⟩/ε minus the regularised cost of the plan, our loss for batches whose target has
    uniform marginals; for others it is what this gradient would belong to.
    """
    p12, p13, n_triplets = pair_targets(batch)

    def loss(embeddings: Any) -> Any:
        unit, plan = solve(embeddings, problem, use_danskin)
        f, g, h = plan.potentials
        target_cost = jnp.sum((p13 - p12) * (unit @ unit.T)) / problem.temperature
        if use_danskin:
            of_plan = plan.ent_reg_cost
        else:
            of_plan = p12.sum(1) @ f + p12.sum(0) @ g + p13.sum(0) @ h
        return (target_cost - of_plan) / problem.epsilon - jnp.log(n_triplets)

    return compiled(jax.value_and_grad(loss), batch)


def prepare_plan(batch: Batch, problem: Problem) -> Callable[[], Any]:
    """The three potentials only, without a gradient."""
    return compiled(lambda x: solve(x, problem, use_danskin=True)[1].potentials, batch)


def compiled(function: Callable[[Any], Any], batch: Batch) -> Callable[[], Any]:
    """Compile for this batch and return a call that waits for its result."""
    embeddings = jnp.asarray(batch.embeddings.numpy())
    executable = jax.jit(function).lower(embeddings).compile()
    return lambda: jax.block_until_ready(executable(embeddings))
