"""Triplet plans in the scaling domain: four matrix-vector products a sweep, in two passes.

With ψ(t) = −t the kernel is a product, ``K_ijk = E⁺_ij E⁻_ik``, ``E± = exp(±c·s)``, and the only
thing that couples j and k is "j ≠ k", where ``E⁺_ij E⁻_ij = 1``. So every sum over the N³ tensor
is a product of two row sums minus an *excluded* part that is itself a product of vectors. Other ψ
are sums of such products: their kernels have Q rows for each anchor, one a term.

Symbols are relative to the balanced kernels ATTRACT (of E⁺) and REPEL (of E⁻): ``a, b, h`` are the
scalings of anchors, positives and negatives, ``r⁺ = attract · b``, ``r⁻ = repel · h``, and
``attract_ij · repel_ij = exclusion_row_i · exclusion_column_j``.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from tricouple.memory import IN_MATRICES, MemoryPlan
from tricouple.numeric import wide_dtype
from tricouple.ot.sweeps.balanced import BalancedKernels, balanced_kernels
from tricouple.ot.sweeps.plan import Masses, Solution
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.tiles import Kernels
from tricouple.ot.sweeps.triplet_history import ScaledTripletHistory, Scalings
from tricouple.ot.sweeps.triplet_plan import (
    ATTRACT,
    REPEL,
    Anchors,
    ScaledTripletPlan,
    ScaledTripletSink,
)
from tricouple.ot.sweeps.trust import CANCELLATION, trustworthy


class ScaledTriplet:
    """Entropic three-marginal transport by scaling.

    Args:
        kernels: Factors of the positives and of the negatives.
        anchor_shift: ``log a = log(scaling) + anchor_shift``, wide dtype, shape (N,).
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        log_excluded: Logarithm of the kernel at j = k.
        cancellation: How many times what is left may have been subtracted from a sum.
    """

    def __init__(
        self,
        kernels: Kernels,
        anchor_shift: Tensor,
        *,
        within: bool,
        log_excluded: float = 0.0,
        cancellation: float = CANCELLATION,
    ) -> None:
        self.kernels = kernels
        self.anchor_shift = anchor_shift
        self.within = within
        self.cancellation = cancellation
        log_column = kernels.column_shifts[ATTRACT] + kernels.column_shifts[REPEL]
        top = log_column.max()  # splits the product so that neither factor can overflow
        self.exclusion_row = torch.exp(anchor_shift + (top + log_excluded)).to(self.dtype)
        self.exclusion_column = torch.exp(log_column - top).to(self.dtype)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.kernels.like.dtype

    def around(self, values: Tensor) -> Tensor:
        """For every anchor the sum of the references' values, but within one set not its own."""
        total = values.sum()
        return total - values if self.within else total.expand(self.kernels.shape[0])

    def anchors(self, a: Tensor) -> Anchors:
        """Anchors with scaling a."""
        excluded = self.exclusion_row * a
        outside = excluded.sum() - excluded if self.within else excluded.sum()
        return Anchors(a, excluded, self.exclusion_column * outside)

    def release(self) -> None:
        """Give up the kernels' matrices until they are needed again."""
        self.kernels.release()

    def sink(self) -> ScaledTripletSink:
        """A collector for this kernel."""
        return ScaledTripletSink(self.kernels)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        shifts = self.kernels.column_shifts
        # Log-scalings start at zero.
        start = [torch.exp(-shift).to(self.dtype) for shift in shifts]
        scalings = self._sweep(start[ATTRACT], start[REPEL], masses, n_iters, tol)
        if not trustworthy(self, scalings, masses):
            return None
        a, b, h = scalings.a[-1], scalings.b[-1], scalings.h[-1]
        logs = torch.cat([a, b, h]).to(wide_dtype(a.device)).log_()
        potentials = logs + torch.cat([self.anchor_shift, *shifts])
        history = ScaledTripletHistory(self, masses, scalings)
        return Solution(self, potentials, history.plan, history, len(scalings.a))

    def _sweep(
        self, b: Tensor, h: Tensor, masses: Masses, n_iters: int, tol: float | None
    ) -> Scalings:
        """Two passes over the kernels a sweep: h → r⁻ → a → b, and b → r⁺ → h."""
        mass_a, mass_b, mass_h = masses.values
        all_a: list[Tensor] = []
        all_minus: list[Tensor] = []
        all_b, all_h = [b], [h]
        all_plus = [self.kernels.row_sums(ATTRACT, b)]
        for sweep in range(n_iters):
            r_plus, r_minus = all_plus[-1], torch.empty_like(all_plus[-1])
            a, sums = torch.empty_like(mass_a), torch.empty_like(mass_a)
            excluded = self.exclusion_row * self.around(self.exclusion_column * b * h)
            scale = partial(_scale, mass_a, r_plus, excluded, r_minus, sums, a)
            received = self.kernels.through(REPEL, ATTRACT, h, scale)
            # The sweep went on in the same pass; if there was no need, it is forgotten.
            if tol is not None and sweep > 0:
                plan = ScaledTripletPlan(self, self.anchors(all_a[-1]), b, h, r_plus, r_minus)
                if _settled(plan, sums, mass_a, mass_b, tol):
                    break
            anchors = self.anchors(a)
            b = mass_b / received.addcmul_(h, anchors.outside, value=-1)
            r_plus = torch.empty_like(r_plus)
            received = self.kernels.through(ATTRACT, REPEL, b, partial(_carry, a, r_plus))
            h = mass_h / received.addcmul_(b, anchors.outside, value=-1)
            for values, value in (
                (all_a, a), (all_b, b), (all_h, h), (all_plus, r_plus), (all_minus, r_minus)
            ):  # fmt: skip
                values.append(value)
        return Scalings(*map(torch.stack, (all_a, all_b, all_h, all_plus, all_minus)))


def _scale(
    masses: Tensor,
    r_plus: Tensor,
    excluded: Tensor,
    r_minus: Tensor,
    sums: Tensor,
    a: Tensor,
    rows: slice,
    row_sums: Tensor,
) -> Tensor:
    """``a = mass / (Σ_q r⁺ r⁻ − excluded)`` of some anchors; weights ``a r⁻`` for the positives."""
    r_minus[:, rows] = row_sums
    torch.sub((r_plus[:, rows] * row_sums).sum(0), excluded[rows], out=sums[rows])
    torch.div(masses[rows], sums[rows], out=a[rows])
    return a[rows] * row_sums


def _carry(a: Tensor, r_plus: Tensor, rows: slice, row_sums: Tensor) -> Tensor:
    """Weights ``a r⁺`` of some anchors for the negatives; the sums are noted."""
    r_plus[:, rows] = row_sums
    return a[rows] * row_sums


def _settled(
    plan: ScaledTripletPlan, sums: Tensor, mass_a: Tensor, mass_b: Tensor, tol: float
) -> bool:
    """Whether the first two marginals are within tol (the third is exact after a sweep)."""
    if float((plan.anchors.scaling * sums - mass_a).abs().sum()) > tol:
        return False
    return float((plan.marginal(1) - mass_b).abs().sum()) <= tol


def scaled_linear(
    similarities: Similarities,
    sharpness: float,
    *,
    within: bool,
    memory: MemoryPlan = IN_MATRICES,
    halved: bool = True,
    cancellation: float = CANCELLATION,
) -> ScaledTriplet:
    """The coupling for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""
    kernels = balanced_kernels(
        similarities, [sharpness, -sharpness], within=within, memory=memory, halved=halved
    )
    return of_linear(kernels, within=within, cancellation=cancellation)


def of_linear(
    kernels: BalancedKernels, *, within: bool, cancellation: float = CANCELLATION
) -> ScaledTriplet:
    """The coupling of kernels with factors c and −c."""
    shift = kernels.row_shifts[ATTRACT] + kernels.row_shifts[REPEL]
    return ScaledTriplet(kernels, shift, within=within, cancellation=cancellation)
