"""Entropic optimal transport of (anchor, positive, negative) triplets, without their N³ tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial

import torch
from torch import Tensor

from tricouple import checks
from tricouple.memory import DEFAULT_BUDGET
from tricouple.numeric import compute_dtype, inverse_product, never_compiled, uniform, wide_dtype
from tricouple.ot.engine import (
    HingeTriplets,
    LinearTriplets,
    LogSigmoidTriplets,
    ShapedTriplets,
    Sweeps,
)
from tricouple.ot.pairwise import DEFAULT_TOLERANCE, largest_error
from tricouple.ot.potentials import solve_potentials
from tricouple.ot.sweeps.kernels import Matrix
from tricouple.ot.sweeps.triplet_log import LogDomainTriplet, LogTripletPlan
from tricouple.shaping import Hinge, Shaping, check_margins, resolve


@dataclass(frozen=True, eq=False, repr=False)
class TripletPlan:
    """The entropic plan ``P_ijk = exp((φ_i + f_j + g_k − C_ijk)/ε)``, C_ijk = ψ((s_ij − s_ik)/τ).

    Never stored as a tensor: it is its three potentials and the similarities.

    Attributes:
        similarity: s, shape (N, M).
        temperature: τ.
        epsilon: ε.
        shaping: ψ, by its name or as a function.
        potentials: (φ, f, g) of anchors, positives and negatives, in units of the cost.
        imposed: The marginals that were asked for.
        within: Whether anchors and references are the same samples (i, j, k distinct).
        n_iters: Sweeps done.
        tol: Tolerance asked for, if any.
        coupling: Makes the coupling again, in logarithms, which are right for any sharpness.
    """

    similarity: Tensor
    temperature: float
    epsilon: float
    shaping: str | Shaping
    potentials: tuple[Tensor, Tensor, Tensor]
    imposed: tuple[Tensor, Tensor, Tensor]
    within: bool
    n_iters: int
    tol: float | None
    coupling: Callable[[], LogDomainTriplet] = field(repr=False)

    def _plan(self) -> LogTripletPlan:
        phi, f, g = (p.detach() / self.epsilon for p in self.potentials)
        return LogTripletPlan(self.coupling(), phi, f, g)

    def marginals(self) -> tuple[Tensor, Tensor, Tensor]:
        """Masses of the samples as anchor, positive and negative."""
        plan = self._plan()
        positives, negatives = plan.positives(), plan.negatives()
        masses = positives.sum(1), positives.sum(0), negatives.sum(0)
        first, second, third = (mass.to(self.similarity.dtype) for mass in masses)
        return first, second, third

    def pair_marginal(self, first: int, second: int) -> Tensor:
        """The plan summed over its third axis: P¹² is ``pair_marginal(0, 1)``.

        O(N³) time for the pair (positive, negative), and for ψ without a fast kernel; never N³
        memory beyond the budget.
        """
        if {first, second} not in ({0, 1}, {0, 2}, {1, 2}):
            raise ValueError(
                f"pair_marginal takes two different axes of 0, 1, 2, got {first, second}"
            )
        if first > second:
            return self.pair_marginal(second, first).T
        plan = self._plan()
        pairs = {(0, 1): plan.positives, (0, 2): plan.negatives, (1, 2): plan.partners}
        return pairs[first, second]().to(self.similarity.dtype)

    def dense(self) -> Tensor:
        """The whole N×M×M tensor: for small batches and for looking at."""
        phi, f, g = (p / self.epsilon for p in self.potentials)
        scores = self.similarity.to(phi.dtype) / self.temperature
        costs = resolve(self.shaping)(scores[:, :, None] - scores[:, None, :])  # (N, M, M)
        logs = phi[:, None, None] + f[:, None] + g - costs / self.epsilon
        columns = torch.arange(scores.shape[1], device=scores.device)
        excluded = columns[:, None] == columns
        if self.within:
            excluded = excluded | (columns[:, None, None] == columns[:, None])
            excluded = excluded | (columns[:, None, None] == columns)
        masses = torch.where(excluded, 0.0, logs.masked_fill(excluded, -torch.inf).exp())
        return masses.to(self.similarity.dtype)

    @cached_property
    def marginal_error(self) -> float:
        """The largest L1 distance between the plan's marginals and the imposed ones."""
        return largest_error(self.marginals(), self.imposed)

    @property
    def converged(self) -> bool:
        """Whether the marginal error is below ``tol`` (1e-3 if none was given)."""
        return self.marginal_error <= (self.tol or DEFAULT_TOLERANCE)

    def __repr__(self) -> str:
        """Its shape, and how far it is from the marginals that were asked for."""
        shape = "×".join(map(str, (*self.similarity.shape, self.similarity.shape[1])))
        return (
            f"TripletPlan({shape}, epsilon={self.epsilon:g}, n_iters={self.n_iters}, "
            f"marginal_error={self.marginal_error:.2g}, converged={self.converged})"
        )


@never_compiled
def triplet_sinkhorn(
    similarity: Tensor,
    temperature: float | Tensor,
    epsilon: float,
    *,
    shaping: str | Shaping = "linear",
    n_iters: int = 10,
    tol: float | None = None,
    within: bool = True,
    marginals: tuple[Tensor, Tensor, Tensor] | None = None,
    gradient: str = "unrolled",
    kernel_tol: float = 1e-6,
    memory_budget: float = DEFAULT_BUDGET,
) -> TripletPlan:
    """Solve the paper's three-marginal problem without its N³ tensor.

    ``min ⟨C, P⟩ − ε H(P)`` over plans with the given marginals, where
    ``C_ijk = ψ((s_ij − s_ik)/τ)`` and triplets with repeated samples are excluded. The potentials
    of the answer are differentiable with respect to the similarities and the temperature.

    Args:
        similarity: s, shape (N, N) within one set or (N, M) across two.
        temperature: τ > 0; a tensor receives its gradient.
        epsilon: ε > 0.
        shaping: ψ; ``"linear"``, ψ(t) = −t, takes O(N²) time, ``"log_sigmoid"``,
            ψ(t) = log(1 + e^{−t}), a multiple of that, a ``Hinge`` O(N² log N); other names and
            every callable, as in ``NegMMIOT``, take O(N³) time.
        n_iters: Sweeps (anchors, positives, negatives), at most.
        tol: Stop when the marginal error (L1) is below this.
        within: Anchors are the references, so i, j, k are distinct; otherwise only j ≠ k.
        marginals: Masses of anchors, positives and negatives; uniform if None.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``.
        kernel_tol: Relative error of the log-sigmoid kernel, from which the number of terms of its
            quadrature follows: the plan is that of a ψ which differs from log-sigmoid by at most
            ``kernel_tol · ε``. The losses take 1e-3, which is enough to train with.
        memory_budget: Bytes for the costs of other ψ: kept if all fit, else computed for a few
            anchors at a time.

    Example:
        >>> z = torch.nn.functional.normalize(torch.randn(6, 3), dim=1)
        >>> plan = triplet_sinkhorn(z @ z.T, temperature=1.0, epsilon=0.5, n_iters=100)
        >>> plan.pair_marginal(0, 1).shape, plan.converged
        (torch.Size([6, 6]), True)
    """
    checks.matrix("similarity", similarity)
    checks.positive_number("temperature", temperature)
    checks.positive_number("epsilon", epsilon)
    epsilon = float(epsilon)
    how = Sweeps(n_iters, tol, gradient)
    _check(similarity, within)
    similarity = similarity.to(compute_dtype(similarity.dtype))
    psi = resolve(shaping)
    separable = shaping == "linear" or isinstance(psi, Hinge)  # whose scores take ε in
    factor = inverse_product(temperature, epsilon if separable else 1.0)
    source = Matrix(similarity.detach())
    number = float(factor.detach() if isinstance(factor, Tensor) else factor)
    problem: LinearTriplets | LogSigmoidTriplets | HingeTriplets | ShapedTriplets
    if shaping == "linear":
        problem = LinearTriplets(within)
    elif shaping == "log_sigmoid":
        checks.positive_number("kernel_tol", kernel_tol)
        checks.quadrature_tolerance(kernel_tol, similarity.dtype)
        problem = LogSigmoidTriplets(within, epsilon, kernel_tol)
    elif isinstance(psi, Hinge):
        problem = HingeTriplets(within, psi.over(epsilon))
    else:
        checks.positive_number("memory_budget", memory_budget)
        check_margins(psi, source.widened().values * number)
        problem = ShapedTriplets(within, epsilon, psi, memory_budget)
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
    logs, sweeps = solve_potentials(similarity, factor, imposed, problem, how)
    phi, f, g = (logs * epsilon).split(sizes)
    mass_a, mass_b, mass_h = imposed.split(sizes)
    return TripletPlan(
        similarity,
        float(temperature.detach() if isinstance(temperature, Tensor) else temperature),
        float(epsilon),
        shaping,
        (phi, f, g),
        (mass_a, mass_b, mass_h),
        within,
        int(sweeps),
        tol,
        partial(problem.careful, source, number),
    )


def _check(similarity: Tensor, within: bool) -> None:
    if not bool(torch.isfinite(similarity).all()):
        raise ValueError("similarity must be finite, found NaN or infinity")
    n, m = similarity.shape
    if within and n != m:
        raise ValueError(f"similarity must be square within one set, got {n}×{m}; within=False?")
    if m < (3 if within else 2):
        raise ValueError(f"similarity has {m} columns: too few samples to form a triplet")
