"""Triplet plans in the scaling domain: four matrix-vector products a sweep.

With ψ(t) = −t the kernel is a product, ``K_ijk = E⁺_ij E⁻_ik``, ``E± = exp(±c·s)``, and the only
thing that couples j and k is "j ≠ k", where ``E⁺_ij E⁻_ij = 1``. So every sum over the N³ tensor
is a product of two row sums minus an *excluded* part that is itself a product of vectors. Other ψ
are sums of such products: their kernels have a row for each term and anchor.

Symbols are relative to the balanced kernels ``attract`` (of E⁺) and ``repel`` (of E⁻): ``a, b, h``
are the scalings of anchors, positives and negatives, ``r⁺ = attract · b``, ``r⁻ = repel · h``, and
``attract_ij · repel_ij = exclusion_row_i · exclusion_column_j``.
"""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels.balanced import BalancedKernel, KernelTerm, balance, kernel_gradient
from tricouple.ot.kernels.plan import Masses, Solution, Stage, Stages
from tricouple.ot.kernels.triplet_plan import (
    Anchors,
    Partners,
    ScaledTripletPlan,
    ScaledTripletSink,
)
from tricouple.ot.kernels.trust import trustworthy


class ScaledTriplet:
    """Entropic three-marginal transport by scaling.

    Args:
        attract: Factors of the positives.
        repel: Factors of the negatives.
        anchor_shift: ``log a = log(scaling) + anchor_shift``, wide dtype, shape (N,).
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        log_excluded: Logarithm of the kernel at j = k.
    """

    def __init__(
        self,
        attract: BalancedKernel,
        repel: BalancedKernel,
        anchor_shift: Tensor,
        *,
        within: bool,
        log_excluded: float = 0.0,
    ) -> None:
        self.attract, self.repel = attract, repel
        self.anchor_shift = anchor_shift
        self.within = within
        self.n_terms = len(attract.matrix) // len(anchor_shift)
        log_column = attract.column_shift + repel.column_shift
        top = log_column.max()  # splits the product so that neither factor can overflow
        self.exclusion_row = torch.exp(anchor_shift + (top + log_excluded)).to(self.dtype)
        self.exclusion_column = torch.exp(log_column - top).to(self.dtype)

    def spread(self, values: Tensor) -> Tensor:
        """Values of the anchors on the rows of the kernels, one row for each separable term."""
        if self.n_terms == 1:
            return values
        return values.unsqueeze(-2).expand(*values.shape[:-1], self.n_terms, -1).flatten(-2)

    def gather(self, rows: Tensor) -> Tensor:
        """Sums over the terms of each anchor."""
        if self.n_terms == 1:
            return rows
        return rows.view(*rows.shape[:-1], self.n_terms, -1).sum(-2)

    def score_gradient(self, attract: KernelTerm, repel: KernelTerm) -> Tensor:
        """Attraction raises a score, repulsion lowers it."""
        matrix, left, right = repel
        return kernel_gradient([attract, (matrix, -left, right)])

    def outside(self, values: Tensor) -> Tensor:
        """The sum of all values, but within one set without the sample's own."""
        return values.sum() - values if self.within else values.sum()

    def anchors(self, a: Tensor) -> Anchors:
        """Anchors with scaling a."""
        excluded = self.exclusion_row * a
        return Anchors(a, excluded, self.exclusion_column * self.outside(excluded))

    def positives(self, b: Tensor) -> Partners:
        """Positives with scaling b."""
        return Partners(b, self.attract.rows(b), self.exclusion_column * b)

    def negatives(self, h: Tensor) -> Partners:
        """Negatives with scaling h."""
        return Partners(h, self.repel.rows(h), self.exclusion_column * h)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype that the coupling is computed in."""
        return self.attract.matrix.dtype

    def sink(self) -> ScaledTripletSink:
        """A collector for this kernel."""
        return ScaledTripletSink(self)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted and logarithms are needed."""
        dtype = self.dtype
        # Log-scalings start at zero.
        start = (
            torch.exp(-self.attract.column_shift).to(dtype),
            torch.exp(-self.repel.column_shift).to(dtype),
        )
        history, vectors = self._sweep(start, masses, n_iters, tol)
        if not trustworthy(self, vectors, masses):
            return None
        a, b, h, r_plus, r_minus = (part[-1] for part in vectors)
        column = self.exclusion_column
        plan = ScaledTripletPlan(
            self, self.anchors(a), Partners(b, r_plus, column * b), Partners(h, r_minus, column * h)
        )
        logs = torch.cat([a, b, h]).to(wide_dtype(a.device)).log_()
        shifts = (self.anchor_shift, self.attract.column_shift, self.repel.column_shift)
        potentials = logs + torch.cat(shifts)
        return Solution(self, potentials, lambda: plan, history, len(vectors[0]) - 1)

    def _sweep(
        self,
        start: tuple[Tensor, Tensor],
        masses: Masses,
        n_iters: int,
        tol: float | None,
    ) -> tuple[Stages, tuple[Tensor, ...]]:
        """The stages, and the stacked a, b, h, r⁺, r⁻ of the start and of all sweeps."""
        mass_a, mass_b, mass_h = masses.values
        positives, negatives = self.positives(start[0]), self.negatives(start[1])
        plan = ScaledTripletPlan(self, self.anchors(mass_a), positives, negatives)
        stages: list[Stage] = []
        ends = [plan]
        for sweep in range(n_iters):
            sums = plan.anchor_sums()
            if tol is not None and sweep > 0 and _settled(plan, sums, mass_a, mass_b, tol):
                break
            anchors = self.anchors(mass_a / sums)
            plan = ScaledTripletPlan(self, anchors, positives, negatives)
            stages.append(Stage(0, plan))
            positives = self.positives(mass_b / plan.positive_sums())
            plan = ScaledTripletPlan(self, anchors, positives, negatives)
            stages.append(Stage(1, plan))
            negatives = self.negatives(mass_h / plan.negative_sums())
            plan = ScaledTripletPlan(self, anchors, positives, negatives)
            stages.append(Stage(2, plan))
            ends.append(plan)
        rows = [(end.anchors.scaling, end.positives.sums, end.negatives.sums) for end in ends]
        columns = [(end.positives.scaling, end.negatives.scaling) for end in ends]
        a, r_plus, r_minus, b, h = (
            torch.stack(kind) for kind in (*zip(*rows, strict=True), *zip(*columns, strict=True))
        )
        return Stages(self, masses, stages), (a, b, h, r_plus, r_minus)


def _settled(
    plan: ScaledTripletPlan, sums: Tensor, mass_a: Tensor, mass_b: Tensor, tol: float
) -> bool:
    """Whether the first two marginals are within tol (the third is exact after a sweep)."""
    if float((plan.anchors.scaling * sums - mass_a).abs().sum()) > tol:
        return False
    return float((plan.marginal(1) - mass_b).abs().sum()) <= tol


def scaled_linear(similarity: Tensor, sharpness: float, *, within: bool) -> ScaledTriplet:
    """The coupling for ``C_ijk = −(s_ij − s_ik)/τ``, sharpness c = 1/(τε)."""
    attract = balance(similarity, sharpness, within=within)
    repel = balance(similarity, -sharpness, within=within)
    return ScaledTriplet(attract, repel, attract.row_shift + repel.row_shift, within=within)
