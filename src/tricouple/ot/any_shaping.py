"""Triplets with any ψ, anchor by anchor (mathematics §3): O(N·M²) time, a few M² of memory."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.numeric import blocks, wide_dtype
from tricouple.ot.forms import Form, Updated, log_scaling
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Tiles
from tricouple.shaping import Shaping

# Matrices of M×M that an anchor needs at once: margins, what ψ and its derivative keep, weights.
_WORKSPACE = 8
# Entries of a block that the cache holds, and that are still enough for threads to share.
_CACHED = 1 << 19


@dataclass
class AnyShaping(Form):
    """K_ijk = exp(−ψ(x_ij − x_ik)/ε), x = factor · s, for j ≠ k, neither of them own_i."""

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
        self._step = int((self.memory_budget - n * each * self._keeps) // (_WORKSPACE * each))
        if self._step == 0:
            raise ValueError(
                f"memory_budget={self.memory_budget:.0f} bytes is too small: the {m}×{m} costs of "
                f"one anchor, with what is computed from them, take {_WORKSPACE * each}"
            )
        if self.scores.anchors.is_cpu:
            self._step = min(self._step, max(1, _CACHED // max(1, m) ** 2))

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Scores x of some anchors at a time, (R, M)."""
        for rows, s in parts_of(self.scores.tiles(), self._step):
            yield rows, s.to(wide_dtype(s.device)) * self.factor

    def update(
        self, block: slice, part: Tensor, potentials: Vectors, log_mass: Tensor | None
    ) -> Updated:
        """By log-sums over triplets."""
        logs = self._log_kernel(block, part)

        def pairs(v: Tensor, sign: int) -> Tensor:
            return torch.logsumexp(logs + (v if sign > 0 else v[:, None]), 1 + (sign > 0))

        return update_by_pairs(pairs, potentials, log_mass)

    def push_rows(
        self, block: slice, part: Tensor, potentials: Vectors, weights: Weights, into: Tensor | None
    ) -> Vectors:
        """Entry by entry."""
        phi, f, g = potentials
        logs = self._log_kernel(block, part) + phi[:, None, None]
        plan = logs.add_(f[:, None]).add_(g).exp_()  # (R, M, M)
        w0, w1, w2 = weights
        near, far = plan.sum(2), plan.sum(1)  # P¹², P¹³
        to_near, to_far = (pairs * (0.0 if w0 is None else w0[:, None]) for pairs in (near, far))
        out = torch.zeros_like(phi)
        if w1 is not None:
            to_far += torch.matmul(w1, plan)
            out += near @ w1
        if w2 is not None:
            to_near += torch.matmul(plan, w2)
            out += far @ w2
        if into is not None:
            shapes = (-1, 1, 1), (-1, 1), (-1,)
            shaped = (w.view(s) for w, s in zip(weights, shapes, strict=True) if w is not None)
            into += self._forces(plan.mul_(sum(shaped)), part).to(into.dtype)
        return [out, to_near.sum(0), to_far.sum(0)]

    def cost_rows(self, part: Tensor, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """Σ_jk plus_ij minus_ik C_ijk/ε of some rows, and its derivative with respect to s."""
        mass = plus[:, :, None] * minus[:, None, :]
        costs = (mass * self.psi(_margins(part)) / self.epsilon).masked_fill_(mass == 0, 0.0)
        return costs.sum((1, 2)), -self._forces(mass, part)

    def _log_kernel(self, rows: slice, x: Tensor) -> Tensor:
        """−ψ/ε, shape (R, M, M), −∞ where there is no triplet. Not to be written to."""
        if rows.start in self._kept:
            return self._kept[rows.start]
        columns = torch.arange(x.shape[1], device=x.device)
        none = columns == self.scores.own[rows, None]  # (R, M)
        none = none[:, :, None] | none[:, None, :] | (columns[:, None] == columns)
        costs = self.psi(_margins(x)).to(x.dtype)
        logs = (costs / -self.epsilon).masked_fill_(none, -torch.inf)
        if self._keeps:
            self._kept[rows.start] = logs
        return logs

    def _forces(self, mass: Tensor, x: Tensor) -> Tensor:
        """Mass times slopes of −ψ/ε, given to s_ij and taken from s_ik: (R, M, M) → (R, M)."""
        # Nothing here is recorded by autograd but this function of one variable.
        with torch.inference_mode(False), torch.enable_grad():
            margins = _margins(x).requires_grad_()
            (slopes,) = torch.autograd.grad(self.psi(margins).sum(), margins)
        found = mass * slopes * (self.factor / -self.epsilon)
        found.masked_fill_(mass == 0, 0.0)  # slopes may be infinite
        return found.sum(2) - found.sum(1)


def _margins(x: Tensor) -> Tensor:
    """x_ij − x_ik, shape (R, M, M)."""
    return x[:, :, None] - x[:, None, :]


def update_by_pairs(
    pairs: Callable[[Tensor, int], Tensor], potentials: Vectors, log_mass: Tensor | None
) -> Updated:
    """``Form.update`` from log Σ_k K_ijk e^{g_k}, (R, M): ``pairs(g, 1)``; over j: ``(f, −1)``."""
    phi, f, g = potentials
    if log_mass is None:
        return phi, torch.logsumexp(pairs(f, -1) + phi[:, None], 0), None
    found = pairs(g, 1)
    sums = torch.logsumexp(found + f, 1)
    after = log_scaling(log_mass, sums)
    return after, torch.logsumexp(found + after[:, None], 0), phi + sums


def parts_of(tiles: Tiles, step: int) -> Iterator[tuple[slice, Tensor]]:
    """Tiles in parts of at most so many rows."""
    for tile, s in tiles:
        for part in blocks(len(s), step):
            yield slice(tile.start + part.start, tile.start + part.stop), s[part]
