"""Triplet plans in the scaling domain: four matrix-vector products a sweep, in two passes.

With ψ(t) = −t the kernel is a product, ``K_ijk = E⁺_ij E⁻_ik``, ``E± = exp(±c·s)``, and the only
thing that couples j and k is "j ≠ k", where ``E⁺_ij E⁻_ij = 1``. So every sum over the N³ tensor
is a product of two row sums minus an *excluded* part that is itself a product of vectors
(mathematics §2). Other ψ are sums of such products: their kernels have Q rows for each anchor, one
a term (mathematics §3).

Symbols are relative to the balanced kernels ATTRACT (of E⁺) and REPEL (of E⁻): ``a, b, h`` are the
scalings of anchors, positives and negatives, ``r⁺ = attract · b``, ``r⁻ = repel · h``, and
``attract_ij · repel_ij = row_i · column_j`` (see ``Exclusion``).
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.sweeps.contract import Masses, Solution
from tricouple.ot.sweeps.kernels import Kernels, ScaledCoupling, underflow_limit
from tricouple.ot.sweeps.triplet_adjoint import (
    ATTRACT,
    REPEL,
    Between,
    Exclusion,
    ScaledTripletHistory,
    ScaledTripletPlan,
    Scalings,
)

# How many times what is left may have been subtracted before digits are missed.
CANCELLATION = 10.0


class ScaledTriplet(ScaledCoupling):
    """Entropic three-marginal transport by scaling.

    Args:
        kernels: Of the positives and of the negatives.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        cancellation: How many times what is left may have been subtracted from a sum.
    """

    def __init__(
        self, kernels: Kernels, *, within: bool, cancellation: float = CANCELLATION
    ) -> None:
        super().__init__(kernels)
        self.within, self.cancellation = within, cancellation

    @cached_property
    def exclusion(self) -> Exclusion:
        """What j ≠ k takes away."""
        return Exclusion(self.kernels, within=self.within)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        shifts = self.kernels.column_shifts
        # Log-scalings start at zero.
        start = [torch.exp(-shift).to(self.dtype) for shift in shifts]
        scalings = self._sweep(start[ATTRACT], start[REPEL], masses, n_iters, tol)
        if scalings is None or not self.agreed(self._trusted(scalings, masses)):
            return None
        last = torch.cat([scalings.a[-1], scalings.b[-1], scalings.h[-1]])
        logs = last.to(wide_dtype(last.device)).log_()
        potentials = logs + torch.cat([self.kernels.row_shift, *shifts])
        history = ScaledTripletHistory(self.kernels, self.exclusion, masses, scalings)
        return Solution(self, potentials, history.plan, history, len(scalings.a))

    def _trusted(self, scalings: Scalings, masses: Masses) -> bool:
        return trustworthy(self.exclusion, scalings, masses, self.cancellation)

    def _sweep(
        self, b: Tensor, h: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> Scalings | None:
        """Two passes over the kernels a sweep: h → r⁻ → a → b, and b → r⁺ → h.

        What cannot be trusted mostly shows in the first sweep, after which there is None.
        """
        kernels, exclusion = self.kernels, self.exclusion
        mass_a, mass_b, mass_h = masses.values
        all_a: list[Tensor] = []
        all_minus: list[Tensor] = []
        all_b, all_h = [b], [h]
        all_plus = [kernels.row_sums(ATTRACT, b)]
        for sweep in range(n_iters):
            r_plus, r_minus = all_plus[-1], torch.empty_like(all_plus[-1])
            a, weights = torch.empty_like(mass_a), torch.empty_like(r_plus)
            # Marginal 1: a_i = p¹_i / [r⁺_i r⁻_i − Σ_{j≠i} b_j h_j], r⁻ = E⁻ h.
            sums = exclusion.row * -exclusion.around(exclusion.column * b * h)
            scale = Between(a, r_minus, weights, partner=r_plus, total=sums, given=mass_a)
            received = kernels.through(REPEL, ATTRACT, h, scale)
            # The sweep went on in the same pass; if there was no need, it is forgotten.
            if tol is not None and sweep > 0:
                before = exclusion.anchors(all_a[-1])
                plan = ScaledTripletPlan(kernels, exclusion, before, b, h, r_plus, r_minus)
                if self._settled(plan, sums, mass_a, mass_b, tol):
                    break
            # Marginal 2: b_j = p²_j / [(E⁺ᵀ (a ∘ r⁻))_j − h_j Σ_{i≠j} a_i].
            anchors = exclusion.anchors(a)
            b = mass_b / received.addcmul_(h, anchors.outside, value=-1)
            # Marginal 3: h_k = p³_k / [(E⁻ᵀ (a ∘ r⁺))_k − b_k Σ_{i≠k} a_i], r⁺ = E⁺ b.
            r_plus = torch.empty_like(r_plus)
            received = kernels.through(ATTRACT, REPEL, b, Between(a, r_plus, weights))
            h = mass_h / received.addcmul_(b, anchors.outside, value=-1)
            for values, value in (
                (all_a, a), (all_b, b), (all_h, h), (all_plus, r_plus), (all_minus, r_minus)
            ):  # fmt: skip
                values.append(value)
            if sweep == 0 and n_iters > 1 and self.shard is None:  # several would have to agree
                first = Scalings(*map(torch.stack, (all_a, all_b, all_h, all_plus, all_minus)))
                if not self._trusted(first, masses):
                    return None
        return Scalings(*map(torch.stack, (all_a, all_b, all_h, all_plus, all_minus)))

    def _settled(
        self, plan: ScaledTripletPlan, sums: Tensor, mass_a: Tensor, mass_b: Tensor, tol: float
    ) -> bool:
        """Whether marginals 1 and 2 are within tol (the third is exact after a sweep)."""
        error = self.exclusion.total((plan.anchors.scaling * sums - mass_a).abs())
        if not self.agreed(float(error) <= tol):
            return False
        return self.agreed(float((plan.marginal(1) - mass_b).abs().sum()) <= tol)


def trustworthy(
    exclusion: Exclusion, vectors: Scalings, masses: Masses, cancellation: float
) -> bool:
    """Whether no sum came near underflow and no difference lost digits, in all sweeps at once.

    The measure of cancellation is what was subtracted, own part included, against the mass that
    remained (mathematics §2, trust). A NaN fails every comparison.
    """
    a, b, h, r_plus, r_minus = vectors
    rows = a[:, None]
    per_a, per_b, per_h = masses.inverses
    excluded_a, excluded_h = exclusion.row * a, exclusion.column * h
    lost = exclusion.total(excluded_a)[:, None]  # Σ_i a_i
    if not a.numel():  # a process without anchors trusts the others
        return True
    taken = (excluded_h[:-1] * b[:-1]).sum(1, keepdim=True)  # Σ_j b_j h_j
    cancelled = (
        excluded_a * (taken * per_a),  # a_i Σ_j b_j h_j / p¹_i, marginal 1
        b[1:] * excluded_h[:-1] * (lost * per_b),  # b_j h_j Σ_i a_i / p²_j, marginal 2
        b[1:] * excluded_h[1:] * (lost * per_h),  # h_k b_k Σ_i a_i / p³_k, marginal 3
    )
    # What is lost to underflow, against what was summed: rows, then columns, then exclusions.
    top_b, top_h = b.amax(), h.amax()
    lost_to_underflow = (
        top_b * top_h / (r_plus[:-1] * r_minus).sum(1).amin(),  # of r⁺ r⁻
        (b[1:] * per_b).amax() * (rows * r_minus).amax(),  # of E⁺ᵀ (a ∘ r⁻)
        (h[1:] * per_h).amax() * (rows * r_plus[1:]).amax(),  # of E⁻ᵀ (a ∘ r⁺)
        a.amax() * top_b * top_h * torch.finfo(a.dtype).eps,
    )
    negative = torch.stack([a.amin(), b.amin(), h.amin()]) < 0
    limit = underflow_limit(a.dtype, (a.shape[1], b.shape[1]))
    return bool(
        (torch.stack([part.amax() for part in cancelled]) <= cancellation).all()
        & (torch.stack(lost_to_underflow) <= limit).all()
        & ~negative.any()
    )
