"""Entropic optimal transport of (anchor, positive, negative) triplets in O(N²)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import compute_dtype, inverse_product, uniform, wide_dtype
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.kernels.triplet_log import LogTripletPlan, careful_linear
from tricouple.ot.pairwise import DEFAULT_TOLERANCE, largest_error
from tricouple.ot.potentials import LINEAR_TRIPLET, Settings, solve_potentials


@dataclass(frozen=True, eq=False)
class TripletPlan:
    """The entropic plan ``P_ijk = exp((φ_i + f_j + g_k − C_ijk)/ε)``, C_ijk = ψ((s_ij − s_ik)/τ).

    Never stored as a tensor: it is its three potentials and the similarities.

    Attributes:
        similarity: s, shape (N, M).
        temperature: τ.
        epsilon: ε.
        potentials: (φ, f, g) of anchors, positives and negatives, in units of the cost.
        imposed: The marginals that were asked for.
        within: Whether anchors and references are the same samples (i, j, k distinct).
        n_iters: Sweeps done.
        tol: Tolerance asked for, if any.
    """

    similarity: Tensor
    temperature: float
    epsilon: float
    potentials: tuple[Tensor, Tensor, Tensor]
    imposed: tuple[Tensor, Tensor, Tensor]
    within: bool
    n_iters: int
    tol: float | None

    @property
    def _plan(self) -> LogTripletPlan:
        sharpness = 1 / (self.temperature * self.epsilon)
        kernel = careful_linear(self.similarity.detach(), sharpness, within=self.within)
        phi, f, g = (p.detach() / self.epsilon for p in self.potentials)
        return LogTripletPlan(kernel, phi, f, g)

    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masses of the samples as anchor, positive and negative, O(N²)."""
        positives, negatives = self.pair_marginal(0, 1), self.pair_marginal(0, 2)
        return positives.sum(1), positives.sum(0), negatives.sum(0)

    def pair_marginal(self, first: int, second: int) -> Tensor:
        """The plan summed over its third axis: P¹² is ``pair_marginal(0, 1)``.

        O(N²), but O(N³) time for the pair (positive, negative).
        """
        if {first, second} not in ({0, 1}, {0, 2}, {1, 2}):
            raise ValueError(
                f"pair_marginal takes two different axes of 0, 1, 2, got {first, second}"
            )
        if first > second:
            return self.pair_marginal(second, first).T
        if (first, second) == (0, 1):
            return self._plan.positives().to(self.similarity.dtype)
        if (first, second) == (0, 2):
            return self._plan.negatives().to(self.similarity.dtype)
        plan = self._plan
        # Σ_i exp(φ_i + x_ij + y_ik), each row shifted by the largest entries of x and y.
        x, y = plan.kernel.attract(0.0) + plan.f, plan.kernel.repel(0.0) + plan.g
        top_x, top_y = x.amax(1, keepdim=True), y.amax(1, keepdim=True)
        weights = torch.exp(plan.phi[:, None] + top_x + top_y)
        pairs = (torch.exp(x - top_x) * weights).T @ torch.exp(y - top_y)
        return pairs.fill_diagonal_(0.0).to(self.similarity.dtype)

    def dense(self) -> Tensor:
        """The whole N×M×M tensor: for small batches and for looking at."""
        dtype = self.similarity.dtype
        phi, f, g = (p / self.epsilon for p in self.potentials)
        scores = self.similarity.to(phi.dtype) / (self.temperature * self.epsilon)
        logs = phi[:, None, None] + (f + scores)[:, :, None] + (g - scores)[:, None, :]  # (N, M, M)
        columns = torch.arange(scores.shape[1], device=scores.device)
        excluded = columns[:, None] == columns
        if self.within:
            excluded = excluded | (columns[:, None, None] == columns[:, None])
            excluded = excluded | (columns[:, None, None] == columns)
        return torch.where(excluded, 0.0, logs.masked_fill(excluded, -torch.inf).exp()).to(dtype)

    @cached_property
    def marginal_error(self) -> float:
        """The largest L1 distance between the plan's marginals and the imposed ones."""
        return largest_error(self.marginals(), self.imposed)

    @property
    def converged(self) -> bool:
        """Whether the marginal error is below ``tol`` (1e-3 if none was given)."""
        return self.marginal_error <= (self.tol or DEFAULT_TOLERANCE)


def triplet_sinkhorn(
    similarity: Tensor,
    temperature: float | Tensor,
    epsilon: float,
    *,
    shaping: str = "linear",
    n_iters: int = 10,
    tol: float | None = None,
    within: bool = True,
    marginals: tuple[Tensor, Tensor, Tensor] | None = None,
    gradient: str = "unrolled",
) -> TripletPlan:
    """Solve the paper's three-marginal problem without its N³ tensor.

    ``min ⟨C, P⟩ − ε H(P)`` over plans with the given marginals, where
    ``C_ijk = ψ((s_ij − s_ik)/τ)`` and triplets with repeated samples are excluded. The potentials
    of the answer are differentiable with respect to the similarities and the temperature.

    Args:
        similarity: s, shape (N, N) within one set or (N, M) across two.
        temperature: τ > 0; a tensor receives its gradient.
        epsilon: ε > 0.
        shaping: ψ; ``"linear"`` is ψ(t) = −t.
        n_iters: Sweeps (anchors, positives, negatives), at most.
        tol: Stop when the marginal error (L1) is below this.
        within: Anchors are the references, so i, j, k are distinct; otherwise only j ≠ k.
        marginals: Masses of anchors, positives and negatives; uniform if None.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``.

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(6, 3), dim=1)
        >>> plan = triplet_sinkhorn(z @ z.T, temperature=1.0, epsilon=0.5, n_iters=100)
        >>> plan.pair_marginal(0, 1).shape, plan.converged
        (torch.Size([6, 6]), True)
    """
    _check(similarity, temperature, epsilon, shaping, n_iters, tol, within, gradient)
    similarity = similarity.to(compute_dtype(similarity.dtype))
    n, m = similarity.shape
    wide = wide_dtype(similarity.device)
    sizes = (n, m, m)
    if marginals is None:
        imposed = uniform(sizes, similarity.new_empty(0, dtype=wide))
    else:
        if len(marginals) != 3:
            raise ValueError(
                "marginals must be the masses of anchors, positives and negatives, "
                f"got {len(marginals)} vectors"
            )
        for name, masses, size in zip(
            ("anchor", "positive", "negative"), marginals, sizes, strict=True
        ):
            checks.probability(f"marginals ({name})", masses, size)
        imposed = torch.cat([masses.detach().to(wide) for masses in marginals])
    settings = Settings(LINEAR_TRIPLET, sizes, within, n_iters, tol, gradient)
    logs, sweeps = solve_potentials(
        similarity, inverse_product(temperature, epsilon), imposed, settings
    )
    phi, f, g = (logs * epsilon).split(sizes)
    mass_a, mass_b, mass_h = imposed.split(sizes)
    return TripletPlan(
        similarity,
        float(temperature.detach() if isinstance(temperature, Tensor) else temperature),
        float(epsilon),
        (phi, f, g),
        (mass_a, mass_b, mass_h),
        within,
        sweeps,
        tol,
    )


def _check(
    similarity: Tensor,
    temperature: float | Tensor,
    epsilon: float,
    shaping: str,
    n_iters: int,
    tol: float | None,
    within: bool,
    gradient: str,
) -> None:
    checks.matrix("similarity", similarity)
    checks.positive_number("temperature", temperature)
    checks.positive_number("epsilon", epsilon)
    checks.one_of("shaping", shaping, ("linear",))
    checks.sweeps(n_iters, tol)
    checks.one_of("gradient", gradient, GRADIENTS)
    if not bool(torch.isfinite(similarity).all()):
        raise ValueError("similarity must be finite, found NaN or infinity")
    n, m = similarity.shape
    if within and n != m:
        raise ValueError(f"similarity must be square within one set, got {n}×{m}; within=False?")
    if m < (3 if within else 2):
        raise ValueError(f"similarity has {m} columns: too few samples to form a triplet")
