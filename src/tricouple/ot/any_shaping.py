"""Triplets with any ψ, anchor by anchor (mathematics §3): O(N·M²) time, a few M² of memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.forms import Term, log_scaling
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores
from tricouple.shaping import Shaping

PairWeights = Callable[[slice], tuple[Tensor, Tensor]]
"""plus_ij and minus_ik of some rows, (R, M) each: the target is P̃_ijk = plus_ij minus_ik."""

# Matrices of M×M that an anchor needs at once: margins, what ψ and its derivative keep, weights.
_WORKSPACE = 8
# Entries of a block that several operations find in the cache, and that are still many enough for
# threads to share.
_CACHED = 1 << 19


@dataclass
class AnyShaping:
    """K_ijk = exp(−ψ(x_ij − x_ik)/ε), x = factor · s, for j ≠ k, neither of them own_i."""

    scores: Scores
    factor: float | Tensor  # 1/τ
    psi: Shaping  # applied to every margin by itself
    epsilon: float
    memory_budget: float  # bytes; if all kernels fit they are kept, else computed at each use
    _kept: dict[int, Tensor] = field(default_factory=dict)  # log K by first row
    _keeps: bool = field(init=False)  # whether log K of all anchors fits beside the work on one
    _step: int = field(init=False)  # anchors at a time: what the budget allows and the CPU's cache

    def __post_init__(self) -> None:
        n, m = self.scores.shape
        each = wide_dtype(self.scores.anchors.device).itemsize * max(1, m) ** 2  # of M×M, bytes
        self._keeps = (n + _WORKSPACE) * each <= self.memory_budget
        left = self.memory_budget - n * each * self._keeps
        self._step = int(left // (_WORKSPACE * each))
        if self._step == 0:
            raise ValueError(
                f"memory_budget={self.memory_budget:.0f} bytes is too small: the {m}×{m} costs of "
                f"one anchor, with what is computed from them, take {_WORKSPACE * each}"
            )
        if self.scores.anchors.is_cpu:
            self._step = min(self._step, max(1, _CACHED // max(1, m) ** 2))

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        n, m = self.scores.shape
        return (n, m, m)

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Anchors and positives in one pass over the anchors, negatives in another."""
        phi, f, g = potentials
        phi, columns = phi.clone(), torch.full_like(f, -torch.inf)
        error = phi.new_zeros(()) if watch else None
        for rows, x in self._blocks():  # marginals 1 and 2
            pairs = torch.logsumexp(self._log_kernel(rows, x) + g, 2)  # (R, M)
            sums = torch.logsumexp(pairs + f, 1)
            if error is not None:
                error += ((phi[rows] + sums).exp() - log_masses[0][rows].exp()).abs().sum()
            phi[rows] = log_scaling(log_masses[0][rows], sums)
            columns = torch.logaddexp(columns, torch.logsumexp(pairs + phi[rows, None], 0))
        f = log_scaling(log_masses[1], self._log_sum(columns))
        columns = torch.full_like(g, -torch.inf)
        for rows, x in self._blocks():  # marginal 3
            pairs = torch.logsumexp(self._log_kernel(rows, x) + f[:, None], 1)
            columns = torch.logaddexp(columns, torch.logsumexp(pairs + phi[rows, None], 0))
        if error is not None and self.scores.group is not None:
            self.scores.group.sum_(error)
        return [phi, f, log_scaling(log_masses[2], self._log_sum(columns))], error

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the other axes, carried through the plan, entry by entry."""
        outs = [torch.zeros_like(potential) for potential in potentials]
        for rows, x in self._blocks():
            plan = self._plan(rows, x, potentials)  # (R, M, M)
            w0, w1, w2 = weights
            near, far = plan.sum(2), plan.sum(1)  # P¹², P¹³
            to_near, to_far = (
                part * (0.0 if w0 is None else w0[rows, None]) for part in (near, far)
            )
            if w1 is not None:
                to_far += torch.matmul(w1, plan)
                outs[0][rows] += near @ w1
            if w2 is not None:
                to_near += torch.matmul(plan, w2)
                outs[0][rows] += far @ w2
            outs[1] += to_near.sum(0)
            outs[2] += to_far.sum(0)
            if into is not None:
                mass = plan.mul_(_total(weights, rows))
                into[rows] += _forces(mass, self._slopes(x)).to(into.dtype)
        if self.scores.group is not None:
            outs[1:] = self.scores.group.sum_(torch.stack(outs[1:]))
        return outs

    def gradient(self, terms: Sequence[Term]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, in tiles; ψ' is computed once for all of them."""
        for rows, x in self._blocks():
            slopes, total = self._slopes(x), torch.zeros_like(x)  # autograd needs the most memory
            for potentials, weights in terms:
                mass = self._plan(rows, x, potentials).mul_(_total(weights, rows))
                total += _forces(mass, slopes)
            yield rows, total.to(self.scores.dtype)

    def costs(self, weights: PairWeights) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Σ_jk plus_ij minus_ik C_ijk/ε of each row, and its derivative with respect to s."""
        for rows, x in self._blocks():
            plus, minus = weights(rows)
            mass = plus[:, :, None] * minus[:, None, :]
            costs = (mass * self.psi(_margins(x)) / self.epsilon).masked_fill_(mass == 0, 0.0)
            gradient = -_forces(mass, self._slopes(x))
            yield rows, costs.sum((1, 2)), gradient.to(self.scores.dtype)

    def _plan(self, rows: slice, x: Tensor, potentials: Vectors) -> Tensor:
        """P of some rows, shape (R, M, M)."""
        phi, f, g = potentials
        logs = self._log_kernel(rows, x) + phi[rows, None, None]
        return logs.add_(f[:, None]).add_(g).exp_()

    def _log_kernel(self, rows: slice, x: Tensor) -> Tensor:
        """−ψ/ε, shape (R, M, M), −∞ where there is no triplet. Not to be written to."""
        if rows.start in self._kept:
            return self._kept[rows.start]
        columns = torch.arange(self.scores.shape[1], device=x.device)
        none = columns == self.scores.own[rows, None]  # (R, M)
        none = none[:, :, None] | none[:, None, :] | (columns[:, None] == columns)
        logs = (self.psi(_margins(x)).to(x.dtype) / -self.epsilon).masked_fill_(none, -torch.inf)
        if self._keeps:
            self._kept[rows.start] = logs
        return logs

    def _slopes(self, x: Tensor) -> Tensor:
        """Derivatives of −ψ/ε with respect to factor⁻¹ (x_ij − x_ik), shape (R, M, M)."""
        # Nothing here is recorded by autograd but this function of one variable.
        with torch.inference_mode(False), torch.enable_grad():
            margins = _margins(x).requires_grad_()
            (slopes,) = torch.autograd.grad(self.psi(margins).sum(), margins)
        return slopes * (self.factor / -self.epsilon)

    def _blocks(self) -> Iterator[tuple[slice, Tensor]]:
        """Some anchors at a time, with their x."""
        for tile, s in self.scores.tiles():
            for start in range(tile.start, tile.stop, self._step):
                rows = slice(start, min(start + self._step, tile.stop))
                x = s[rows.start - tile.start : rows.stop - tile.start]
                yield rows, x.to(wide_dtype(s.device)) * self.factor

    def _log_sum(self, columns: Tensor) -> Tensor:
        return columns if self.scores.group is None else self.scores.group.log_sum_(columns)


def _total(weights: Weights, rows: slice) -> Tensor:
    """w0_i + w1_j + w2_k of some anchors, of a shape that (R, M, M) can be multiplied by."""
    w0, w1, w2 = weights
    parts = None if w0 is None else w0[rows, None, None], None if w1 is None else w1[:, None], w2
    total: Tensor = sum(part for part in parts if part is not None)  # type: ignore[assignment]
    return total


def _margins(x: Tensor) -> Tensor:
    """x_ij − x_ik, shape (R, M, M)."""
    return x[:, :, None] - x[:, None, :]


def _forces(mass: Tensor, slopes: Tensor) -> Tensor:
    """Mass times slopes, given to s_ij and taken from s_ik: (R, M, M) → (R, M)."""
    found = (mass * slopes).masked_fill_(mass == 0, 0.0)  # slopes may be infinite
    return found.sum(2) - found.sum(1)
