"""OTT-JAX's ``MMSinkhorn`` set up to solve exactly our triplet problem.

Its cost is a sum of costs of pairs of points, c₁₂ + c₁₃ + c₂₃. Ours has this form: −s_ij/τ, +s_ik/τ
and, to forbid equal indices, a penalty where two points are the same sample. A cost sees points,
not indices, so every point carries its index as one more coordinate.

Functions are compiled ahead of time: measuring a call never measures the compiler.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ott.experimental.mmsinkhorn import MMSinkhorn
from ott.geometry import costs

from benchmarks.problem import Batch, Problem

# exp(−FORBIDDEN / ε) is 0 in float32; an infinite cost would leave NaN in the backward pass.
FORBIDDEN = 1e4


class DistinctPairCost(costs.CostFn):  # type: ignore[misc]
    """``slope`` times the inner product of two points; forbidden if they are the same sample."""

    def __init__(self, slope: float) -> None:
        self.slope = slope

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the cost of two points, each a vector followed by its index."""
        return jnp.where(x[-1] == y[-1], FORBIDDEN, self.slope * jnp.vdot(x[:-1], y[:-1]))


# To JAX the slope is a constant.
jax.tree_util.register_pytree_node(
    DistinctPairCost, lambda cost: ((), cost.slope), lambda slope, _: DistinctPairCost(slope)
)


def solve(embeddings: Any, problem: Problem, use_danskin: bool) -> tuple[Any, Any]:
    """Return the unit vectors (N, d) and MMSinkhorn's output for them."""
    unit = embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)
    index = jnp.arange(len(unit), dtype=unit.dtype)
    points = jnp.concatenate([unit, index[:, None]], axis=1)
    slope, n = 1.0 / problem.temperature, problem.n_iters
    solver = MMSinkhorn(
        threshold=0.0, inner_iterations=n, min_iterations=n, max_iterations=n,
        use_danskin=use_danskin,
    )  # fmt: skip
    pair_costs = (DistinctPairCost(-slope), DistinctPairCost(slope), DistinctPairCost(0.0))
    return unit, solver((points, points, points), cost_fns=pair_costs, epsilon=problem.epsilon)


def prepare_loss(batch: Batch, problem: Problem, use_danskin: bool = False) -> Callable[[], Any]:
    """Value and exact gradient of Neg-MMIOT, differentiated through MMSinkhorn's iterations.

    With Danskin: the envelope gradient (P̃ − P)/ε, without unrolling. Its value is ⟨P̃, C⟩/ε minus
    the regularised cost of the plan, our loss for batches whose target has uniform marginals.
    """
    labels = batch.labels.numpy()
    same = labels[:, None] == labels[None, :]
    positive, negative = same & ~np.eye(len(labels), dtype=bool), ~same
    n_pos, n_neg = positive.sum(1, keepdims=True), negative.sum(1, keepdims=True)
    n_triplets = float((n_pos * n_neg).sum())  # |A|
    # Pair marginals of the target: P̃¹², P̃¹³.
    p12 = jnp.asarray(positive * n_neg / n_triplets, dtype=jnp.float32)
    p13 = jnp.asarray(negative * n_pos / n_triplets, dtype=jnp.float32)

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
    """The three potentials, without a gradient."""
    return compiled(lambda x: solve(x, problem, use_danskin=True)[1].potentials, batch)


def compiled(function: Callable[[Any], Any], batch: Batch) -> Callable[[], Any]:
    """Compile for this batch and return a call that waits for its result."""
    embeddings = jnp.asarray(batch.embeddings.numpy())
    executable = jax.jit(function).lower(embeddings).compile()
    return lambda: jax.block_until_ready(executable(embeddings))
