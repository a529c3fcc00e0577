"""A triplet plan as linear operators, and the adjoint of the sweeps that led to it.

Symbols are those of ``triplet``: scalings a, b, h; ``r⁺ = attract · b``, ``r⁻ = repel · h``; and
``attract_ij · repel_ij = row_i · column_j``, what "j ≠ k" excludes.

Over several processes, where a kernel is a sum of Q terms, its row sums are Q numbers for each
anchor: more than they are worth sending. So all that belongs to anchors stays with their process,
scalings too (``Own…``), and what goes around are the sums over anchors: those of the columns, and
those that "j ≠ k" excludes (mathematics §7).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import GradientSink, Masses, Received
from tricouple.ot.sweeps.kernels import Factors, Kernels

# The two kernels of a triplet coupling, of E⁺ and of E⁻.
ATTRACT, REPEL = 0, 1


class Anchors(NamedTuple):
    """Scalings of the anchors, with what they exclude."""

    scaling: Tensor  # a, shape (N,)
    excluded: Tensor  # ``row · a``
    outside: Tensor  # ``column_j Σ_i excluded_i``, i ≠ j within one set, shape (M,)


@dataclass(frozen=True)
class Between:
    """What anchors make of their row sums on the way to the columns: weights α sums + β extra.

    α is ``scale`` and β is 1, unless there is a ``partner`` (Q, N): then ``total`` receives
    ``Σ_q partner sums``, added to what it has. Without extra, α = given/total is noted in ``scale``
    (marginal 1); with it, β = given · total is noted in ``total`` (its adjoint).
    """

    scale: Tensor  # shape (N,)
    sums: Tensor  # where the sums are noted, shape (Q, N)
    weights: Tensor  # where the weights are noted, shape (Q, N); may be ``extra``
    extra: Tensor | None = None  # shape (Q, N)
    partner: Tensor | None = None  # shape (Q, N)
    total: Tensor | None = None  # shape (N,)
    given: Tensor | None = None  # shape (N,)

    def __call__(self, rows: slice, sums: Tensor) -> Tensor:
        """The weights of some anchors."""
        self.sums[:, rows] = sums
        scale, weights = self.scale[rows], self.weights[:, rows]
        share = None
        if self.partner is not None:
            assert self.total is not None
            assert self.given is not None
            total = self.total[rows].add_((self.partner[:, rows] * sums).sum(0))
            if self.extra is None:
                torch.div(self.given[rows], total, out=scale)
            else:
                share = total.mul_(self.given[rows])
        if self.extra is None:
            return torch.mul(scale, sums, out=weights)
        extra = self.extra[:, rows]
        return torch.addcmul(extra if share is None else share * extra, scale, sums, out=weights)


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

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
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
            sums, through_anchors = torch.empty_like(self.r_plus), torch.empty_like(self.r_plus)
            carry = Between(a, sums, through_anchors)
            received_far = kernels.through(near, far, weighted, carry)
            received_far.addcmul_(weighted, self.anchors.outside, value=-1)
            direct = a * (self.r_minus if axis == 1 else self.r_plus)
            excluded = exclusion.around(exclusion.column * other * weighted)
            pushed = {
                0: (direct * sums).sum(0).addcmul_(self.anchors.excluded, excluded, value=-1),
                3 - axis: received_far.mul_(other),
            }
            left = (direct, through_anchors) if axis == 1 else (through_anchors, direct)
            right = (weighted, self.h) if axis == 1 else (self.b, weighted)
        if sink is not None:
            sink.add((left, right))
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
            from_h, from_b = torch.empty_like(to_b[t]), torch.empty_like(to_b[t])

            # Marginal 3 set h: −∂L/∂log h ∘ h / p³, through P²³ to b and through P¹³ to a.
            w_h = torch.mul(h, grad_h * -per_h, out=weights_h[t])

            # E⁻ w_h, then a ∘ E⁻ w_h.
            to_positives = Between(a, from_h, to_b[t + 1], extra=to_b[t + 1])
            received = kernels.through(REPEL, ATTRACT, w_h, to_positives).sub_(pending)
            grad_b = grad_b + b * received.addcmul_(w_h, anchors.outside, value=-1)

            # Marginal 2 set b: through P²³ to h₀ and through P¹² to a, which has all it gets then.
            w_b = torch.mul(b, grad_b * -per_b, out=weights_b[t])
            excluded = anchors.excluded * exclusion.around(column * (b * w_h + h0 * w_b))

            # Marginal 1 set a: through P¹² to b₀ and through P¹³ to h₀, a ∘ E⁺ w_b + w_a ∘ r⁺.
            w_a = grad_a + (own_h[t] * from_h).sum(0) - excluded
            plus, given = all_plus[t], a * -per_a
            to_negatives = Between(a, from_b, to_h[t], plus, own_b[t], w_a, given)
            if t == 0:  # nothing depends on the start
                to_negatives(slice(None), kernels.row_sums(ATTRACT, w_b))
                torch.mul(w_a, all_minus[t], out=to_b[t])
                return grad_h, grad_b
            received = kernels.through(ATTRACT, REPEL, w_b, to_negatives)
            torch.mul(w_a, all_minus[t], out=to_b[t])
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


# --- kernels of which every process has the rows of its own anchors -------------------------------


class OwnExclusion(Exclusion):
    """What "j ≠ k" takes from the sums of a process's own anchors."""

    def __init__(self, kernels: Kernels, shard: Shard, *, within: bool) -> None:
        super().__init__(kernels, within=within)
        self.shard = shard

    def around(self, values: Tensor) -> Tensor:
        """For every anchor the sum of the references' values, but within one set not its own."""
        total = values.sum()
        return total - values[self.shard.rows] if self.within else total.expand(self.n_anchors)

    def anchors(self, a: Tensor) -> Anchors:
        """Anchors with scaling a; one message."""
        excluded = self.row * a
        if not self.within:
            return Anchors(a, excluded, self.column * self.total(excluded))
        whole = self.shard.gather(excluded, self.shard.anchors)
        return Anchors(a, excluded, self.column * (whole.sum() - whole))

    def total(self, values: Tensor) -> Tensor:
        """The sum over the anchors of all processes; one message."""
        return self.shard.sum_(values.sum(-1))


@dataclass(frozen=True)
class OwnPlan:
    """A plan of own anchors, which takes and gives the vectors of all."""

    plan: ScaledTripletPlan
    shard: Shard

    def marginal(self, axis: int) -> Tensor:
        """The plan's own marginal on an axis."""
        found = self.plan.marginal(axis)
        return found if axis else self.shard.gather(found, self.shard.anchors)

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """Products with P¹², P¹³, P²³."""
        pushed = self.plan.push(axis, weights if axis else weights[self.shard.rows], sink)
        if 0 in pushed:
            pushed[0] = self.shard.gather(pushed[0], self.shard.anchors)
        return pushed


@dataclass(frozen=True)
class OwnHistory:
    """The sweeps of own anchors, which takes the vectors of all."""

    history: ScaledTripletHistory
    shard: Shard

    def plan(self) -> OwnPlan:
        """The plan after the last sweep."""
        return OwnPlan(self.history.plan(), self.shard)

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """The gradient of the sweeps with respect to the scores of own anchors."""
        of_anchors, *others = cotangents
        return self.history.adjoint([of_anchors[self.shard.rows], *others])
