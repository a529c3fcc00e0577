"""A triplet plan as linear operators, and the adjoint of the sweeps that led to it.

Symbols are those of ``triplet``: scalings a, b, h; ``r⁺ = attract · b``, ``r⁻ = repel · h``; and
``attract_ij · repel_ij = row_i · column_j``, what "j ≠ k" excludes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import GradientSink, Masses
from tricouple.ot.sweeps.kernels import Factors, Kernels, LowRankSink

# The two kernels of a triplet coupling, of E⁺ and of E⁻.
ATTRACT, REPEL = 0, 1


class Anchors(NamedTuple):
    """Scalings of the anchors, with what they exclude."""

    scaling: Tensor  # a, shape (N,)
    excluded: Tensor  # ``row · a``
    outside: Tensor  # ``column_j Σ_i excluded_i``, i ≠ j within one set, shape (M,)


class Exclusion:
    """What "j ≠ k" takes from the sums (mathematics §2): there the kernel is ``row_i · column_j``.

    Args:
        kernels: Of the positives and of the negatives.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, kernels: Kernels, *, within: bool) -> None:
        self.n_anchors, self.within = kernels.shape[0], within
        log_column = kernels.column_shifts[ATTRACT] + kernels.column_shifts[REPEL]
        top = log_column.max()  # splits the product so that neither factor can overflow
        dtype = kernels.like.dtype
        self.row = torch.exp(kernels.row_shift + (top + kernels.log_excluded)).to(dtype)
        self.column = torch.exp(log_column - top).to(dtype)

    def around(self, values: Tensor) -> Tensor:
        """For every anchor the sum of the references' values, but within one set not its own."""
        total = values.sum()
        return total - values if self.within else total.expand(self.n_anchors)

    def total(self, values: Tensor) -> Tensor:
        """The sum over anchors, the last axis."""
        return values.sum(-1)

    def anchors(self, a: Tensor) -> Anchors:
        """Anchors with scaling a."""
        excluded = self.row * a
        outside = excluded.sum() - excluded if self.within else excluded.sum()
        return Anchors(a, excluded, self.column * outside)


class ScaledTripletPlan(NamedTuple):
    """``P_ijk = a_i b_j h_k attract_ij repel_ik`` for j ≠ k, summed over terms."""

    kernels: Kernels  # of the positives and of the negatives
    exclusion: Exclusion  # what j ≠ k takes away
    anchors: Anchors  # a, with what it excludes
    b: Tensor  # scalings of the positives, shape (M,)
    h: Tensor  # scalings of the negatives, shape (M,)
    r_plus: Tensor  # ``attract · b``, shape (Q, N)
    r_minus: Tensor  # ``repel · h``, shape (Q, N)

    def marginal(self, axis: int) -> Tensor:
        """Marginals 1, 2 and 3 of mathematics §2."""
        a, excluded, outside = self.anchors
        if axis == 0:  # a_i [r⁺_i r⁻_i − Σ_{j≠i} b_j h_j]
            pairs = self.exclusion.around(self.exclusion.column * self.b * self.h)
            return a * (self.r_plus * self.r_minus).sum(0) - excluded * pairs
        if axis == 1:  # b_j [(E⁺ᵀ (a ∘ r⁻))_j − h_j Σ_{i≠j} a_i]
            own, other, sums, which = self.b, self.h, self.r_minus, ATTRACT
        else:  # h_k [(E⁻ᵀ (a ∘ r⁺))_k − b_k Σ_{i≠k} a_i]
            own, other, sums, which = self.h, self.b, self.r_plus, REPEL
        received = self.kernels.column_sums(which, a * sums)
        return own * received.addcmul_(other, outside, value=-1)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with P¹², P¹³, P²³ (mathematics §2): two matrix-vector products."""
        kernels, exclusion, a = self.kernels, self.exclusion, self.anchors.scaling
        if axis == 0:  # P¹²ᵀ w and P¹³ᵀ w: marginals 2 and 3 with a ∘ w for a
            weighted = a * weights
            left = weighted * self.r_minus, weighted * self.r_plus
            right = self.b, self.h
            outside = exclusion.anchors(weighted).outside
            received = [kernels.column_sums(which, left[which]) for which in (ATTRACT, REPEL)]
            pushed = {
                1: received[ATTRACT].addcmul_(self.h, outside, value=-1).mul_(self.b),
                2: received[REPEL].addcmul_(self.b, outside, value=-1).mul_(self.h),
            }
        else:  # P¹² w and P²³ᵀ w (for negatives P¹³ w and P²³ w), P²³ through the anchors
            own, other = (self.b, self.h) if axis == 1 else (self.h, self.b)
            near, far = (ATTRACT, REPEL) if axis == 1 else (REPEL, ATTRACT)
            weighted = own * weights
            sums = torch.empty_like(self.r_plus)

            def carry(rows: slice, found: Tensor) -> Tensor:
                sums[:, rows] = found
                return a[rows] * found

            received_far = kernels.through(near, far, weighted, carry)
            received_far.addcmul_(weighted, self.anchors.outside, value=-1)
            direct = a * (self.r_minus if axis == 1 else self.r_plus)
            excluded = exclusion.around(exclusion.column * other * weighted)
            pushed = {
                0: (direct * sums).sum(0).addcmul_(self.anchors.excluded, excluded, value=-1),
                3 - axis: received_far.mul_(other),
            }
            through_anchors = a * sums
            left = (direct, through_anchors) if axis == 1 else (through_anchors, direct)
            right = (weighted, self.h) if axis == 1 else (self.b, weighted)
        if isinstance(sink, LowRankSink):
            sink.add(left, right)
        return pushed


class Scalings(NamedTuple):
    """Stacked vectors of T sweeps."""

    a: Tensor  # scalings of the anchors, shape (T, N)
    b: Tensor  # scalings of the positives, with those of the start, shape (T + 1, M)
    h: Tensor  # scalings of the negatives, with those of the start, shape (T + 1, M)
    r_plus: Tensor  # ``attract · b``, shape (T + 1, Q, N)
    r_minus: Tensor  # ``repel · h`` of all h but the last, shape (T, Q, N)


@dataclass(frozen=True)
class ScaledTripletHistory:
    """Every update of the sweeps, in vectors."""

    kernels: Kernels
    exclusion: Exclusion
    masses: Masses
    scalings: Scalings

    def plan(self) -> ScaledTripletPlan:
        """The plan after the last sweep."""
        a, b, h, r_plus, _ = (part[-1] for part in self.scalings)
        anchors, r_minus = self.exclusion.anchors(a), self.kernels.row_sums(REPEL, h)
        return ScaledTripletPlan(self.kernels, self.exclusion, anchors, b, h, r_plus, r_minus)

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards: two passes over the kernels each, as many as forwards.

        A sweep sets a from (b₀, h₀), b from (a, h₀) and h from (a, b), where b₀ and h₀ are those of
        the sweep before. Weights on an updated scaling are pushed through the plan right after the
        update (see ``Stages.adjoint``; products as in ``ScaledTripletPlan.push``). What different
        updates send through the same kernel to the same scaling is summed before it is multiplied:
        that saves two products of six, and a third of the rank of the gradient.
        """
        kernels, exclusion, column = self.kernels, self.exclusion, self.exclusion.column
        all_a, all_b, all_h, all_plus, all_minus = self.scalings
        per_a, per_b, per_h = self.masses.inverses
        # ∂L/∂E⁺ = Σ_t to_b_t b_tᵀ + own_b_t w_bᵀ, and ∂L/∂E⁻ likewise with h (mathematics §4).
        n_sweeps, *shape = all_minus.shape
        left_b, left_h = all_plus.new_zeros(2, 2 * n_sweeps + 1, *shape).unbind()
        to_b, own_b = left_b[: n_sweeps + 1], left_b[n_sweeps + 1 :]
        to_h, own_h = left_h[: n_sweeps + 1], left_h[n_sweeps + 1 :]
        torch.mul(all_a[:, None], all_minus, out=own_b)  # a r⁻
        torch.mul(all_a[:, None], all_plus[1:], out=own_h)  # a r⁺
        weights_b, weights_h = torch.empty_like(all_b[1:]), torch.empty_like(all_h[1:])

        def sweep(
            t: int, grad_a: Tensor, grad_b: Tensor, grad_h: Tensor, pending: Tensor | float
        ) -> tuple[Tensor, Tensor]:
            """One sweep: the gradient of h₀, and what is to be taken from that of b₀."""
            a, anchors = all_a[t], exclusion.anchors(all_a[t])
            b, h, b0, h0 = all_b[t + 1], all_h[t + 1], all_b[t], all_h[t]
            from_h, w_a = torch.empty_like(to_b[t]), torch.empty_like(a)

            # Marginal 3 set h: −∂L/∂log h ∘ h / p³, through P²³ to b and through P¹³ to a.
            w_h = torch.mul(h, grad_h * -per_h, out=weights_h[t])

            def to_positives(rows: slice, sums: Tensor) -> Tensor:  # E⁻ w_h, then a ∘ E⁻ w_h
                from_h[:, rows] = sums
                return to_b[t + 1][:, rows].addcmul_(a[rows], sums)

            received = kernels.through(REPEL, ATTRACT, w_h, to_positives).sub_(pending)
            grad_b = grad_b + b * received.addcmul_(w_h, anchors.outside, value=-1)

            # Marginal 2 set b: through P²³ to h₀ and through P¹² to a, which has all it gets then.
            w_b = torch.mul(b, grad_b * -per_b, out=weights_b[t])
            excluded = anchors.excluded * exclusion.around(column * (b * w_h + h0 * w_b))
            known = grad_a + (own_h[t] * from_h).sum(0) - excluded

            # Marginal 1 set a: through P¹² to b₀ and through P¹³ to h₀.
            def to_negatives(rows: slice, sums: Tensor) -> Tensor:  # a ∘ E⁺ w_b + w_a ∘ r⁺
                gradient = known[rows] + (own_b[t][:, rows] * sums).sum(0)
                weights = torch.mul(a[rows], gradient * -per_a[rows], out=w_a[rows])
                torch.mul(weights, all_minus[t][:, rows], out=to_b[t][:, rows])
                left = to_h[t][:, rows]
                return torch.addcmul(a[rows] * sums, weights, all_plus[t][:, rows], out=left)

            if t == 0:  # nothing depends on the start
                to_negatives(slice(None), kernels.row_sums(ATTRACT, w_b))
                return grad_h, grad_b
            received = kernels.through(ATTRACT, REPEL, w_b, to_negatives)
            outside = exclusion.anchors(w_a).outside
            received.addcmul_(w_b, anchors.outside, value=-1)
            # The rest of b₀'s gradient waits for what the sweep before sends through E⁺.
            return h0 * received.addcmul_(b0, outside, value=-1), h0 * outside

        grad_a, grad_b, grad_h = cotangents
        pending: Tensor | float = 0.0
        for t in reversed(range(len(all_a))):
            grad_h, pending = sweep(t, grad_a, grad_b, grad_h, pending)
            grad_a, grad_b = torch.zeros_like(grad_a), torch.zeros_like(grad_b)
        return kernels.score_gradient(
            [
                Factors(left_b, torch.cat([all_b, weights_b])),
                Factors(left_h, torch.cat([all_h, weights_h])),
            ]
        )
