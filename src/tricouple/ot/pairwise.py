"""Entropic optimal transport between two marginals: ``sinkhorn`` and its plan."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import compute_dtype, never_compiled, row_blocks, wide_dtype
from tricouple.ot.engine import Pairs, Sweeps
from tricouple.ot.potentials import solve_potentials

# When no tolerance is asked for, a plan counts as converged below this marginal error.
DEFAULT_TOLERANCE = 1e-3


@dataclass(frozen=True, eq=False, repr=False)
class PairPlan:
    """An entropic transport plan ``P_ij = exp((f_i + g_j ∓ C_ij)/ε)``.

    Attributes:
        cost: C, shape (N, M); +∞ where transport is forbidden.
        epsilon: Entropic regularisation ε.
        potentials: Dual potentials (f, g) in units of the cost.
        imposed: The marginals that were asked for.
        n_iters: Sweeps done.
        tol: Tolerance asked for, if any.
        anti: Whether the transport cost was maximised instead of minimised.
    """

    cost: Tensor
    epsilon: float
    potentials: tuple[Tensor, Tensor]
    imposed: tuple[Tensor, Tensor]
    n_iters: int
    tol: float | None
    anti: bool

    def dense(self) -> Tensor:
        """The plan as a matrix, shape (N, M)."""
        f, g = (potential / self.epsilon for potential in self.potentials)
        rows = []
        # Potentials and costs nearly cancel: in float64, a block at a time. What is left is small.
        for block in row_blocks(*self.cost.shape):
            cost = self.cost[block]
            if self.anti:
                cost = torch.where(cost == torch.inf, cost, -cost)
            logs = torch.add(f[block, None], g).sub_(cost, alpha=1 / self.epsilon)
            rows.append(logs.to(cost.dtype).exp_())
        return torch.cat(rows)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """The plan's own row and column sums."""
        plan = self.dense()
        return plan.sum(1), plan.sum(0)

    @cached_property
    def marginal_error(self) -> float:
        """The larger L1 distance between the plan's marginals and the imposed ones."""
        return largest_error(self.marginals(), self.imposed)

    @property
    def converged(self) -> bool:
        """Whether the marginal error is below ``tol`` (1e-3 if none was given)."""
        return self.marginal_error <= (self.tol or DEFAULT_TOLERANCE)

    def __repr__(self) -> str:
        """Its shape, and how far it is from the marginals that were asked for."""
        shape = "×".join(map(str, (*self.cost.shape,)))
        return (
            f"PairPlan({shape}, epsilon={self.epsilon:g}, n_iters={self.n_iters}, "
            f"marginal_error={self.marginal_error:.2g}, converged={self.converged})"
        )


def largest_error(found: tuple[Tensor, ...], imposed: tuple[Tensor, ...]) -> float:
    """The largest L1 distance between two families of marginals."""
    pairs = zip(found, imposed, strict=True)
    return max(float((a.detach() - b).abs().sum()) for a, b in pairs)


@never_compiled
def sinkhorn(
    cost: Tensor,
    epsilon: float,
    *,
    row_marginal: Tensor | None = None,
    column_marginal: Tensor | None = None,
    n_iters: int = 100,
    tol: float | None = None,
    anti: bool = False,
    gradient: str = "unrolled",
    check: str = "full",
) -> PairPlan:
    """Solve ``min ⟨C, P⟩ − ε H(P)`` over plans with given marginals.

    The potentials of the answer are differentiable with respect to the cost.

    Args:
        cost: C, shape (N, M); +∞ forbids an entry.
        epsilon: Entropic regularisation, > 0.
        row_marginal: Masses of the rows, shape (N,); uniform if None.
        column_marginal: Masses of the columns, shape (M,); uniform if None.
        n_iters: Sweeps (rows, then columns), at most.
        tol: Stop when the marginal error (L1) is below this.
        anti: Maximise the transport cost instead (anti-transport); forbidden stays forbidden.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``.
        check: ``"full"``, or ``"shapes"``: no check reads a value, so that nothing waits for an
            accelerator; a cost that has no plan gives one that is not finite.

    Example:
        >>> plan = sinkhorn(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), epsilon=0.1)
        >>> plan.dense().round(decimals=3)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    checks.matrix("cost", cost)
    checks.positive_number("epsilon", epsilon)
    epsilon = float(epsilon)
    how = Sweeps(n_iters, tol, gradient)
    cost = cost.to(compute_dtype(cost.dtype))
    checks.one_of("check", check, ("full", "shapes"))
    reads, highest = check == "full", math.inf
    if reads:
        lowest, highest = (float(end) for end in torch.aminmax(cost.detach()))
        if not lowest > -math.inf:  # also if it is NaN
            raise ValueError("cost must hold finite numbers or +inf (forbidden), found NaN or -inf")
    rows = _masses("row_marginal", row_marginal, cost.shape[0], cost)
    columns = _masses("column_marginal", column_marginal, cost.shape[1], cost)
    imposed = torch.cat([rows, columns])
    # Scores are −C/ε; for anti-transport +C/ε, where forbidden entries must not become rewards.
    rewards = torch.where(cost == torch.inf, -torch.inf, cost) if highest == math.inf else cost
    scores, factor = (rewards, 1 / epsilon) if anti else (cost, -1 / epsilon)
    potentials, sweeps = solve_potentials(scores, factor, imposed, Pairs(within=False), how)
    if reads and not bool(torch.isfinite(potentials[imposed > 0]).all()):
        raise ValueError(
            "cost forbids too much: no plan has these marginals (a row or column with mass has no "
            "allowed partner); allow more entries or set its mass to zero"
        )
    f, g = (potentials * epsilon).split(cost.shape)
    return PairPlan(cost, float(epsilon), (f, g), (rows, columns), int(sweeps), tol, anti)


def _masses(name: str, masses: Tensor | None, length: int, like: Tensor) -> Tensor:
    if masses is None:
        return like.new_full((length,), 1 / length, dtype=wide_dtype(like.device))
    checks.probability(name, masses, length)
    return masses.detach().to(wide_dtype(like.device))
