"""OTT-JAX's ``MMSinkhorn`` set up to solve exactly our triplet problem.

Its cost is a sum of costs of pairs of points, c₁₂ + c₁₃ + c₂₃. Ours has this form: −s_ij/τ, +s_ik/τ
and, to forbid equal indices, a penalty where two points are the same sample. A cost sees points,
not indices, so every point carries its index as one more coordinate.

Functions are compiled ahead of time: measuring a call never measures the compiler.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from ott.experimental.mmsinkhorn import MMSinkhorn
from ott.geometry import costs
from torch import Tensor

from benchmarks.cases import N_ITERS, Case

# exp(−FORBIDDEN / ε) is 0 in float32; an infinite cost would leave NaN in the backward pass.
FORBIDDEN = 1e4


@jax.tree_util.register_static  # the slope is a constant
@dataclass(frozen=True)
class DistinctPairCost(costs.CostFn):  # type: ignore[misc]
    """``slope`` times the inner product of two points; forbidden if they are the same sample."""

    slope: float

    def __call__(self, x: Any, y: Any) -> Any:
        """Return the cost of two points, each a vector followed by its index."""
        return jnp.where(x[-1] == y[-1], FORBIDDEN, self.slope * jnp.vdot(x[:-1], y[:-1]))


def prepare(case: Case, x: Tensor, labels: Tensor, how: str) -> Callable[[], Any]:
    """Value and gradient of Neg-MMIOT, τ = ε.

    "unrolled": exact, differentiated through MMSinkhorn's iterations. "danskin": the envelope
    gradient (P̃ − P)/ε. Its value is ⟨P̃, C⟩/ε minus the regularised cost of the plan, our loss for
    batches whose target has uniform marginals. "plan": the three potentials, without a gradient.
    """
    slope, danskin = case.c**0.5, how != "unrolled"
    iterations = dict.fromkeys(("inner_iterations", "min_iterations", "max_iterations"), N_ITERS)
    solver = MMSinkhorn(threshold=0.0, use_danskin=danskin, **iterations)
    pair_costs = (DistinctPairCost(-slope), DistinctPairCost(slope), DistinctPairCost(0.0))
    index = jnp.arange(len(labels), dtype=jnp.float32)
    same = (labels[:, None] == labels).numpy()
    positive, negative = same & ~np.eye(len(labels), dtype=bool), ~same
    n_pos, n_neg = positive.sum(1, keepdims=True), negative.sum(1, keepdims=True)
    n_triplets = float((n_pos * n_neg).sum())  # |A|
    # Pair marginals of the target: P̃¹², P̃¹³.
    p12 = jnp.asarray(positive * n_neg / n_triplets, dtype=jnp.float32)
    p13 = jnp.asarray(negative * n_pos / n_triplets, dtype=jnp.float32)

    def solve(embeddings: Any) -> tuple[Any, Any]:
        unit = embeddings / jnp.linalg.norm(embeddings, axis=1, keepdims=True)
        points = jnp.concatenate([unit, index[:, None]], axis=1)
        return unit, solver((points, points, points), cost_fns=pair_costs, epsilon=1 / slope)

    def loss(embeddings: Any) -> Any:
        unit, plan = solve(embeddings)
        f, g, h = plan.potentials
        target_cost = jnp.sum((p13 - p12) * (unit @ unit.T)) * slope
        dual = p12.sum(1) @ f + p12.sum(0) @ g + p13.sum(0) @ h
        of_plan = plan.ent_reg_cost if danskin else dual
        return (target_cost - of_plan) * slope - jnp.log(n_triplets)

    embeddings = jnp.asarray(x.numpy())
    potentials = how == "plan"
    function = (lambda rows: solve(rows)[1].potentials) if potentials else jax.value_and_grad(loss)
    executable = jax.jit(function).lower(embeddings).compile()
    return lambda: jax.block_until_ready(executable(embeddings))
