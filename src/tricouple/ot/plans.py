"""Entropic transport plans of two and three marginals: ``sinkhorn``, ``triplet_sinkhorn``."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from tricouple import checks
from tricouple.numeric import (
    blocks,
    compute_dtype,
    divide_or_zero,
    final,
    full_precision,
    inverse_product,
    never_compiled,
    number_of,
    on_host,
    wide_dtype,
)
from tricouple.ot.forms import Forces, Form, Linear, log_scaling
from tricouple.ot.kernels import epsilon_of_factor, kernel_of
from tricouple.ot.rows import Vectors
from tricouple.ot.scaling import Kernel, Scaling
from tricouple.ot.scores import Scores
from tricouple.ot.solver import DEFAULT_BUDGET, Run, Sweeps, differentiate, solve
from tricouple.shaping import Shaping, ShapingName, resolve

Gradient = Literal["unrolled", "implicit", "envelope"]

# When no tolerance is asked for, a plan counts as converged below this marginal error.
DEFAULT_TOLERANCE = 1e-3
_ENTRIES = 1 << 22  # of a plan, in float64 at a time


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """What plans of two and of three marginals have in common."""

    epsilon: float
    potentials: tuple[Tensor, ...]
    imposed: tuple[Tensor, ...]
    n_iters: int
    tol: float | None

    def marginals(self) -> tuple[Tensor, ...]:
        """The plan's own."""
        raise NotImplementedError

    @cached_property
    def marginal_error(self) -> float:
        """The largest L1 distance between the plan's marginals and the imposed ones."""
        pairs = zip(self.marginals(), self.imposed, strict=True)
        return max(float((found.detach() - mass).abs().sum(-1).max()) for found, mass in pairs)

    @property
    def converged(self) -> bool:
        """Whether the marginal error is below ``tol`` (1e-3 if none was given)."""
        return self.marginal_error <= (self.tol or DEFAULT_TOLERANCE)

    def __repr__(self) -> str:
        """Its shape, and how far it is from the marginals that were asked for."""
        sizes = *self.imposed[0].shape[:-1], *(mass.shape[-1] for mass in self.imposed)
        shape = "×".join(map(str, sizes))
        return (
            f"{type(self).__name__}({shape}, epsilon={self.epsilon:g}, n_iters={self.n_iters}, "
            f"marginal_error={self.marginal_error:.2g}, converged={self.converged})"
        )


@dataclass(frozen=True, eq=False, repr=False)
class PairPlan(Plan):
    """An entropic transport plan ``P_ij = exp((f_i + g_j ∓ C_ij)/ε)``, or a stack of them.

    Attributes:
        cost: C, shape (N, M) or (B, N, M); +∞ where transport is forbidden.
        epsilon: Entropic regularisation ε.
        potentials: Dual potentials (f, g) in units of the cost.
        imposed: The marginals that were asked for.
        n_iters: Sweeps done.
        tol: Tolerance asked for, if any.
        anti: Whether the transport cost was maximised instead of minimised.
    """

    cost: Tensor
    anti: bool

    def dense(self) -> Tensor:
        """The plan as a matrix, shape (N, M), or a stack (B, N, M)."""
        f, g = (potential / self.epsilon for potential in self.potentials)
        rows, factor = [], (1 if self.anti else -1) / self.epsilon
        f, g = torch.broadcast_tensors(f[..., None], g[..., None, :])
        # Potentials and costs nearly cancel: in float64, a block at a time. What is left is small.
        for block in blocks(len(self.cost), _ENTRIES // max(1, self.cost[0].numel())):
            cost = self.cost[block]
            logs = torch.add(f[block], g[block]).add_(cost, alpha=factor)
            logs = logs.masked_fill_(cost == torch.inf, -torch.inf)
            rows.append(logs.to(cost.dtype).exp_())
        return torch.cat(rows)

    def marginals(self) -> tuple[Tensor, Tensor]:
        """The plan's own row and column sums."""
        plan = self.dense()
        return plan.sum(-1), plan.sum(-2)


@never_compiled
def sinkhorn(
    cost: Tensor,
    epsilon: float,
    *,
    row_marginal: Tensor | None = None,
    column_marginal: Tensor | None = None,
    mask: Tensor | None = None,
    n_iters: int = 100,
    tol: float | None = None,
    anti: bool = False,
    gradient: Gradient = "unrolled",
    check: Literal["full", "shapes"] = "full",
) -> PairPlan:
    """Solve ``min ⟨C, P⟩ − ε H(P)`` over plans with given marginals.

    The potentials of the answer are differentiable with respect to the cost.

    Args:
        cost: C, shape (N, M), or a stack of small ones, (B, N, M), solved together in float64; +∞
            forbids an entry.
        epsilon: Entropic regularisation, > 0.
        row_marginal: Masses of the rows, shape (N,) or (B, N); uniform if None.
        column_marginal: Masses of the columns, shape (M,) or (B, M); uniform if None.
        mask: The entries that there are, bool, of the shape of the cost; all others are padding,
            and rows and columns of padding alone have no mass if it is uniform.
        n_iters: Sweeps (rows, then columns), at most.
        tol: Stop when the marginal error (L1) is below this.
        anti: Maximise the transport cost instead (anti-transport); forbidden stays forbidden.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``; the first of a stack.
        check: ``"full"``, or ``"shapes"``: no check reads a value, so that nothing waits for an
            accelerator; a cost that has no plan gives one that is not finite.

    Example:
        >>> plan = sinkhorn(torch.tensor([[0.0, 1.0], [1.0, 0.0]]), epsilon=0.1)
        >>> plan.dense().round(decimals=3)
        tensor([[0.5000, 0.0000],
                [0.0000, 0.5000]])
    """
    stack = isinstance(cost, Tensor) and cost.ndim == 3
    checks.matrix("cost", cost.flatten(0, 1) if stack else cost)
    checks.positive_number("epsilon", epsilon)
    checks.one_of("check", check, ("full", "shapes"))
    epsilon, how = float(epsilon), Sweeps(n_iters, tol, gradient)
    if stack and gradient != "unrolled":
        raise ValueError(f'a stack of costs has gradient="unrolled" alone, got {gradient!r}')
    cost = cost.to(compute_dtype(cost.dtype))
    reads = check == "full"
    if reads and not float(cost.detach().amin()) > -math.inf:  # also if it is NaN
        raise ValueError("cost must hold finite numbers or +inf (forbidden), found NaN or -inf")
    there = cost.new_ones((), dtype=torch.bool).expand(cost.shape) if mask is None else mask
    if there.shape != cost.shape or there.dtype != torch.bool:
        given = f"{there.dtype} of shape {tuple(there.shape)}"
        raise ValueError(f"mask must be bool of shape {tuple(cost.shape)}, got {given}")
    cost = cost if mask is None else cost.masked_fill(~mask, torch.inf)
    rows = _masses("row_marginal", row_marginal, there.any(-1))
    columns = _masses("column_marginal", column_marginal, there.any(-2))
    # Scores are −C, for anti-transport C; what is forbidden is −∞ in both.
    scores = torch.where(cost == torch.inf, -torch.inf, cost) if anti else -cost
    if cost.ndim == 3:
        *logs, sweeps = _stacked(scores.to(rows.dtype) / epsilon, rows, columns, how)
    else:
        *logs, sweeps = potentials(scores, _own(cost, False), 1 / epsilon, [rows, columns], how)
    if reads:
        with_mass = torch.cat(logs, -1).detach()[torch.cat([rows, columns], -1) > 0]
        if not bool(torch.isfinite(with_mass).all()):
            raise ValueError(
                "cost forbids too much: no plan has these marginals (a row or column with mass has "
                "no allowed partner); allow more entries or set its mass to zero"
            )
    found = tuple(log * epsilon for log in logs)
    return PairPlan(epsilon, found, (rows, columns), sweeps, tol, cost, anti)


def _masses(name: str, masses: Tensor | None, there: Tensor) -> Tensor:
    wide = wide_dtype(there.device)
    if masses is None:
        return divide_or_zero(there.to(wide), there.sum(-1, keepdim=True))
    checks.probability(name, masses, there.shape)
    return masses.detach().to(wide)


def _stacked(scores: Tensor, rows: Tensor, columns: Tensor, how: Sweeps) -> tuple[Any, ...]:
    """Log-scalings of a stack, (B, N) and (B, M), by autograd, and the number of sweeps done."""
    without = (rows == 0)[:, :, None] | (columns == 0)[:, None, :]
    scores = scores.masked_fill(without, 0.0)  # a sum of nothing has no gradient
    f, g = torch.zeros_like(rows), torch.where(columns > 0, 0.0, -torch.inf).to(rows.dtype)
    for done in range(how.n_iters):
        sums = torch.logsumexp(scores + g[:, None, :], 2)
        error = ((f + sums).detach().exp() - rows).abs().sum(1).max()
        if done and how.tol is not None and bool(error <= how.tol):
            return f, g, done
        f = log_scaling(rows.log(), sums)
        g = log_scaling(columns.log(), torch.logsumexp(scores + f[:, :, None], 1))
    return f, g, how.n_iters


@dataclass(frozen=True, eq=False, repr=False)
class TripletPlan(Plan):
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
    """

    similarity: Tensor
    temperature: float
    shaping: str | Shaping
    within: bool
    form: Callable[[Scores], Any]  # the kernel of some scores

    def marginals(self) -> tuple[Tensor, ...]:
        """Masses of the samples as anchor, positive and negative."""
        potentials = [p.detach() / self.epsilon for p in self.potentials]
        s, own = self.similarity.detach(), _own(self.similarity, self.within)
        form = self.form(Scores(s, None, own, s.dtype))
        found = Run(form, list(self.imposed), potentials).marginals()
        return tuple(mass.to(s.dtype) for mass in found)

    def pair_marginal(self, first: int, second: int) -> Tensor:
        """The plan summed over its third axis: P¹² is ``pair_marginal(0, 1)``.

        O(N³) time, a few anchors at a time.
        """
        if first == second or not {first, second} <= {0, 1, 2}:
            raise ValueError(
                f"pair_marginal takes two different axes of 0, 1, 2, got {first, second}"
            )
        if first > second:
            return self.pair_marginal(second, first).T
        (n, m), axis = self.similarity.shape, 3 - first - second  # the one to sum over
        with torch.no_grad():
            parts = [self.dense(rows).sum(axis) for rows in blocks(n, _ENTRIES // m**2)]
        return torch.cat(parts) if first == 0 else torch.stack(parts).sum(0)

    def dense(self, anchors: slice = slice(None)) -> Tensor:
        """The N×M×M tensor, or that of some anchors: for small batches and for looking at."""
        phi, f, g = (p / self.epsilon for p in self.potentials)
        scores = self.similarity[anchors].to(phi.dtype) / self.temperature
        costs = resolve(self.shaping)(scores[:, :, None] - scores[:, None, :])  # (R, M, M)
        logs = phi[anchors, None, None] + f[:, None] + g - costs / self.epsilon
        columns = torch.arange(scores.shape[1], device=scores.device)
        excluded = columns[:, None] == columns
        if self.within:
            own = columns[anchors, None, None]
            excluded = excluded | (own == columns[:, None]) | (own == columns)
        return logs.masked_fill(excluded, -torch.inf).exp().to(self.similarity.dtype)


@never_compiled
def triplet_sinkhorn(
    similarity: Tensor,
    temperature: float | Tensor,
    epsilon: float,
    *,
    shaping: ShapingName | Shaping = "linear",
    n_iters: int = 10,
    tol: float | None = None,
    within: bool = True,
    marginals: tuple[Tensor, Tensor, Tensor] | None = None,
    gradient: Gradient = "unrolled",
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
            ψ(t) = log(1 + e^{−t}), a multiple of that, a ``Hinge`` in C O(N² log N); other names
            and every callable, as in ``NegMMIOT``, take O(N³) time.
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
    epsilon, how = float(epsilon), Sweeps(n_iters, tol, gradient)
    if not bool(torch.isfinite(similarity).all()):
        raise ValueError("similarity must be finite, found NaN or infinity")
    n, m = similarity.shape
    if within and n != m:
        raise ValueError(
            f"similarity must be square within one set, got {n}×{m}: "
            "pass within=False for two different sets"
        )
    if m < (3 if within else 2):
        raise ValueError(f"similarity has {m} columns: too few samples to form a triplet")
    similarity = similarity.to(compute_dtype(similarity.dtype))
    factor = inverse_product(temperature, epsilon_of_factor(shaping, epsilon))
    held, number = similarity.detach(), number_of(factor)
    form = kernel_of(
        shaping,
        number,
        epsilon,
        similarity.dtype,
        kernel_tol=kernel_tol,
        reach=None if on_host(similarity) else number * float(held.abs().amax()),
        used=lambda: held.to(wide_dtype(held.device)) * number,
        memory_budget=memory_budget,
    )
    given = (None, None, None) if marginals is None else tuple(marginals)
    if len(given) != 3:
        raise ValueError(
            f"marginals must be three vectors, anchors, positives and negatives, got {len(given)}"
        )
    names = zip(("anchor", "positive", "negative"), given, (n, m, m), strict=True)
    every = similarity.new_ones(max(n, m), dtype=torch.bool)
    imposed = [_masses(f"marginals ({name})", mass, every[:size]) for name, mass, size in names]
    *logs, sweeps = potentials(similarity, _own(similarity, within), factor, imposed, how, form)
    found, tau = tuple(log * epsilon for log in logs), number_of(temperature)
    done = epsilon, found, tuple(imposed), sweeps, tol
    return TripletPlan(*done, similarity, tau, shaping, within, form)


def _own(matrix: Tensor, within: bool) -> Tensor:
    own = torch.arange(len(matrix), device=matrix.device)
    return own if within else own.fill_(-1)


# --- potentials as a differentiable function of a matrix ------------------------------------------


def potentials(
    similarity: Tensor,
    own: Tensor,
    factor: float | Tensor,
    masses: Vectors,
    how: Sweeps,
    form: Callable[[Scores], Form] | None = None,
) -> tuple[Any, ...]:
    """Log-scalings of a plan, one float64 vector per axis, and the number of sweeps done.

    Similarities, (N, M), are −∞ where a pair is forbidden, and ``own`` is the column to leave out
    of each row, −1 for none. ``factor`` makes exponents of them; a tensor gets its gradient. The
    kernel of pairs is exp(factor · s), any other one has a ``form``.
    """
    learnt = factor if isinstance(factor, Tensor) else None
    number = number_of(factor) if learnt is None or on_host(learnt) else learnt.detach()
    scores = Scores(similarity.detach(), None, own, similarity.dtype)
    plan = Linear(scores, number, 2) if form is None else form(scores)
    flat, sweeps = _Potentials.apply(similarity, learnt, plan, masses, how)  # type: ignore[no-untyped-call]
    return *flat.split([len(mass) for mass in masses]), sweeps


class _Potentials(torch.autograd.Function):
    @staticmethod
    @never_compiled
    def forward(
        ctx: Any, similarity: Tensor, learnt: Tensor | None, form: Any, masses: Vectors, how: Sweeps
    ) -> tuple[Tensor, int]:
        kernel = fast = None
        if isinstance(form, Linear):
            c = form.sharpness
            most = math.inf if isinstance(c, Tensor) else c
            kernel = Kernel.of(form.scores, c, most)
            fast = None if kernel is None else Scaling(kernel, form)
        elif hasattr(form, "fast"):
            fast = form.fast()
        ctx.run, ctx.rule, ctx.kernel = solve(form, masses, how, fast), how.gradient, kernel
        ctx.save_for_backward(similarity, learnt)
        flat = torch.cat(ctx.run.potentials)
        if kernel is not None and kernel.kept is not None:
            flat = torch.where(kernel.kept, flat, torch.nan)
        return flat, ctx.run.n_iters

    @staticmethod
    @full_precision
    @never_compiled
    def backward(ctx: Any, *cotangents: Any) -> tuple[Tensor | None, ...]:
        (similarity, learnt), flat = ctx.saved_tensors, cotangents[0]  # the other: of the sweeps
        with torch.no_grad():
            parts = [part.clone() for part in flat.split([len(mass) for mass in ctx.run.masses])]
            gradient, slope = torch.zeros_like(similarity), None
            differentiate(ctx.run, ctx.rule, parts, Forces(ctx.run.form.scores, gradient))
            if ctx.kernel is not None:
                for rows, tile in ctx.kernel.gradient():
                    gradient[rows] += tile
                ctx.kernel.factors.clear()
            if learnt is not None:
                inside = gradient * similarity.nan_to_num(0.0, 0.0, 0.0)
                slope = inside.sum(dtype=wide_dtype(gradient.device)) / learnt
                slope = slope.to(learnt.dtype).reshape(learnt.shape)
        return *final([gradient, slope], [flat, similarity]), None, None, None
