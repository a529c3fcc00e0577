"""The exact curvature of g(C) = KL(P̃ ‖ P^C), for imposed marginals that P̃ may or may not have.

Along a change D of the cost, log P changes at the rate ℓ = −D/ε + u_i + v_j + w_k, where u, v, w
keep the marginals. Differentiating the marginal constraints twice gives

    d²g = Σ_ijk P_ijk W_ijk ℓ_ijk²,   W_ijk = ω¹_i + ω²_j + ω³_k,   J ω = marginals of P̃,

with J the 3N×3N matrix of the pair marginals of P. If P̃ has the imposed marginals, ω = (1, 0, 0) is
a solution, W = 1, and g is convex: Lemma 3.1. If not, W may be negative somewhere, and g need not
be convex.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tricouple.experiments.verify.coupling import distinct, marginals, solve


def hessian(cost: Tensor, epsilon: float, target: Tensor, imposed: Sequence[Tensor]) -> Tensor:
    """∂²g/∂C², over the entries with distinct indices in the order of ``cost[distinct(N, 3)]``.

    Args:
        cost: C, shape (N, N, N).
        epsilon: ε.
        target: P̃.
        imposed: Marginals of P^C.

    Returns:
        A symmetric matrix with N(N−1)(N−2) rows.
    """
    n = len(cost)
    allowed = distinct(n, 3)
    plan = solve(cost, epsilon, imposed).exp()[allowed]  # (E,)
    offsets = torch.tensor([0, n, 2 * n])
    places = allowed.nonzero() + offsets  # (E, 3)
    touches = torch.zeros(len(plan), 3 * n, dtype=torch.float64).scatter_(1, places, 1.0)  # (E, 3N)
    # J is singular: constants can move between u, v and w without a change of P.
    inverse = torch.linalg.pinv(touches.T @ (plan[:, None] * touches), hermitian=True)
    weights = touches @ (inverse @ torch.cat(marginals(target)))  # W
    kept = touches @ inverse @ (touches.T * plan)
    rates = kept - torch.eye(len(plan), dtype=torch.float64)  # ε ℓ for each D
    return torch.mm(rates.T, (plan * weights)[:, None] * rates) / epsilon**2


def lowest_direction(matrix: Tensor, cost: Tensor) -> tuple[float, Tensor]:
    """The smallest eigenvalue relative to the largest, and its direction as a cost tensor."""
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    direction = torch.zeros_like(cost)
    direction[distinct(len(cost), 3)] = basis[:, 0]
    return float(values[0] / values[-1]), direction
