"""Sorted rows of a hinge in PyTorch, in logarithms: the twin of c/hinge.h (mathematics §9)."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from tricouple.numeric import on_host, wide_dtype
from tricouple.ot.any_shaping import update_by_pairs
from tricouple.ot.forms import Updated
from tricouple.ot.rows import Vectors
from tricouple.shaping import Hinge


@dataclass(frozen=True)
class SortedRows:
    """Scores of some anchors in ascending order, as positives see them; float64."""

    x: Tensor  # shape (R, M)
    order: Tensor  # the columns that they came from
    margin: Tensor  # from where on t is satisfied, shape (R, 1)
    own: Tensor  # shape (R,)
    factor: float | Tensor  # c
    hinge: Hinge  # ψ/ε as a function of t/ε

    @classmethod
    def of(
        cls, s: Tensor, own: Tensor, factor: float | Tensor, hinge: Hinge, rounding: float
    ) -> SortedRows:
        """Sort x = factor · s, less the middle of each row.

        Within ``rounding``, relative to the largest s of the row, of the margin t is not satisfied.
        """
        s = s.to(wide_dtype(s.device))
        low, high = torch.aminmax(s, dim=1, keepdim=True)
        margin = hinge.margin + factor * rounding * torch.maximum(low.abs(), high.abs())
        x, order = torch.sort((s - (low + high) / 2) * factor, -1)
        return cls(x, order, margin, own, factor, hinge)

    def reversed(self) -> SortedRows:
        """As negatives see them: with the scores' signs and their order exchanged."""
        return replace(self, x=-self.x.flip(1), order=self.order.flip(1))

    def update(self, potentials: Vectors, log_mass: Tensor | None) -> Updated:
        """``Form.update``: marginals 1 and 2 with ``log_mass``, 3 without."""
        return update_by_pairs(self._pairs, potentials, log_mass)

    def _pairs(self, v: Tensor, sign: int) -> Tensor:
        return (self if sign > 0 else self.reversed())._log_sums(v)[0]

    def push(self, potentials: Vectors, axis: int, weights: Tensor, into: Tensor | None) -> Vectors:
        """P¹² and P¹³ with weights on an axis: their sums over rows and columns, and forces."""
        phi, f, g = potentials
        raised = self._masses(phi[:, None] + f, g, weights if axis == 2 else None)
        lowered = self.reversed()._masses(phi[:, None] + g, f, weights if axis == 1 else None)
        outer = weights[:, None] if axis == 0 else weights
        for part in (*(raised if axis != 2 else ()), *(lowered if axis != 1 else ())):
            part.mul_(outer)
        if into is not None:
            forces = raised[1] - lowered[1] + self.hinge.slope * (raised[0] - lowered[0])
            into.add_((forces * self.factor).to(into.dtype))
        return [(raised if axis == 1 else lowered)[0].sum(1), raised[0].sum(0), lowered[0].sum(0)]

    def costs(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_jk plus_j minus_k ψ(x_j − x_k)`` of each row, and its derivative by x."""
        x, margin, slope = self.x, self.hinge.margin, self.hinge.slope
        plus, minus = (self._without_own(part.gather(1, self.order), 0.0) for part in (plus, minus))
        # Σ_{k ≥ r} minus_k and minus_k x_k; Σ_{j < r} plus_j.
        far, moment = (pad(part.flip(1).cumsum(1).flip(1), (0, 1)) for part in (minus, minus * x))
        near, bound = pad(plus.cumsum(1), (1, 0)), self._bound()
        unmet, end = far.gather(1, bound), torch.searchsorted(x, x + self.margin, right=True)
        total = (margin - x) * unmet + moment.gather(1, bound)
        total -= slope * (x * far[:, :1] - moment[:, :1])
        gradient = minus * (near.gather(1, end) + slope * near[:, -1:])
        gradient -= plus * (unmet + slope * far[:, :1])
        return (plus * total).sum(1), torch.empty_like(x).scatter_(1, self.order, gradient)

    def _bound(self) -> Tensor:
        """For each score the number of negatives that it satisfies."""
        return torch.searchsorted(self.x, self.x - self.margin)

    def _log_sums(self, logs: Tensor) -> Tensor:
        """``log Σ_{k≠j} K(x_j − x_k) e^{logs_k}`` in the order of columns; what of it falls with t.

        ``logs`` has the shape (M,), the result (2, R, M).
        """
        slope, falls, bound = self.hinge.slope, 1 + self.hinge.slope, self._bound()
        values = self._without_own(logs[self.order], -torch.inf)
        satisfied = torch.logcumsumexp(torch.sub(values, self.x, alpha=slope), -1)
        satisfied = pad(satisfied, (1, 0), value=-torch.inf).gather(-1, bound)
        others = _all_but_own(torch.sub(values, self.x, alpha=falls), bound)
        falling = others.add_(self.x, alpha=falls).sub_(self.hinge.margin)
        total = torch.logaddexp(satisfied.add_(self.x, alpha=slope), falling)
        both = torch.stack([self._without_own(part, -torch.inf) for part in (total, falling)])
        return torch.empty_like(both).scatter_(-1, self.order.expand_as(both), both)

    def _masses(self, base: Tensor, logs: Tensor, weights: Tensor | None) -> list[Tensor]:
        """``e^base · Σ_{k≠j} K e^{logs_k} weights_k``, weights of any sign; what falls with t."""
        if weights is None:
            return list((self._log_sums(logs) + base).exp_())
        positive = self._masses(base, logs + weights.clamp_min(0.0).log(), None)
        negative = self._masses(base, logs + weights.neg().clamp_min_(0.0).log(), None)
        return [more.sub_(less) for more, less in zip(positive, negative, strict=True)]

    def _without_own(self, values: Tensor, number: float) -> Tensor:
        return values.masked_fill(self.order == self.own[:, None], number)


def _all_but_own(logs: Tensor, bound: Tensor) -> Tensor:
    """``log Σ_{k ≥ bound_r, k ≠ r} exp(logs_k)`` for every entry r of a row, without cancellation.

    Leaving out an entry that is at most half of its sum is harmless. Those that are more are summed
    afresh. Of two of them, q < r, entry q is not in the sum of r: as r is in that of q, each would
    have to be the larger. So their windows [bound_r, r) are disjoint, and one pass fills them all.
    """
    after = pad(torch.logcumsumexp(logs.flip(-1), -1).flip(-1), (0, 1), value=-torch.inf)
    total = after.gather(-1, bound)
    shares = torch.exp(logs - total.nan_to_num(torch.nan, neginf=0.0))
    rest = shares.clamp_max_(1.0).neg_().log1p_().add_(total)
    heavy = logs > total - math.log(2)
    if on_host(heavy) and not bool(heavy.any()):
        return rest
    m = logs.shape[-1]
    place = torch.arange(m, device=logs.device)
    following = torch.where(heavy, place, m).flip(-1).cummin(-1).values.flip(-1)
    following = pad(following[..., 1:], (0, 1), value=m)  # the next heavy entry
    starts = pad(bound, (0, 1), value=m).gather(-1, following)
    slot = torch.where(starts <= place, following, m)
    top = torch.full_like(after, -torch.inf).scatter_reduce_(-1, slot, logs, "amax")
    top = top.nan_to_num_(torch.nan, neginf=0.0)
    sums = torch.zeros_like(top).scatter_add_(-1, slot, torch.exp(logs - top.gather(-1, slot)))
    window = (sums.log_().add_(top))[..., :m]
    return torch.where(heavy, torch.logaddexp(window, after[..., 1:]), rest)
