"""The triplet plan for linear ψ in the scaling domain: four matrix-vector products a sweep.

With ψ(t) = −t the kernel is a product, ``K_ijk = E⁺_ij E⁻_ik``, ``E± = exp(±c·s)``, and the only
thing that couples j and k is "j ≠ k", where ``E⁺_ij E⁻_ij = 1``. So every sum over the N³ tensor
is a product of two row sums minus an *excluded* part that is itself a product of vectors.

Symbols are relative to the balanced kernels ``attract`` (of E⁺) and ``repel`` (of E⁻): ``a, b, h``
are the scalings of anchors, positives and negatives, ``r⁺ = attract · b``, ``r⁻ = repel · h``, and
``attract_ij · repel_ij = exclusion_row_i · exclusion_column_j``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import wide_dtype
from tricouple.ot.kernels import native
from tricouple.ot.kernels.balanced import balance, kernel_gradient, underflow_margin
from tricouple.ot.kernels.native_history import NativeTripletHistory
from tricouple.ot.kernels.pair_scaled import ScaledPairSink
from tricouple.ot.kernels.plan import GradientSink, History, Masses, Solution, Stage, Stages

# How much larger than the exact result a subtracted term may be before digits are missed.
_CANCELLATION = 10.0


class Anchors(NamedTuple):
    """Scalings of the anchors, with what they exclude.

    Attributes:
        scaling: a, shape (N,).
        excluded: ``exclusion_row · a``.
        outside: ``exclusion_column_j · Σ_i excluded_i``, i ≠ j within one set, shape (M,).
    """

    scaling: Tensor
    excluded: Tensor
    outside: Tensor


class Partners(NamedTuple):
    """Scalings of the positives or of the negatives.

    Attributes:
        scaling: b or h, shape (M,).
        sums: r⁺ or r⁻, shape (N,).
        excluded: ``exclusion_column · scaling``.
    """

    scaling: Tensor
    sums: Tensor
    excluded: Tensor


class ScaledTriplet:
    """Entropic three-marginal transport for ``C_ijk = −(s_ij − s_ik)/τ`` by scaling.

    Args:
        similarity: Shape (N, M).
        sharpness: c = 1/(τε).
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
    """

    def __init__(self, similarity: Tensor, sharpness: float, *, within: bool) -> None:
        self.attract = balance(similarity, sharpness, within=within)
        self.repel = balance(similarity, -sharpness, within=within)
        self.within = within
        self.log_row = self.attract.row_shift + self.repel.row_shift
        log_column = self.attract.column_shift + self.repel.column_shift
        top = log_column.max()  # splits the product so that neither factor can overflow
        self.exclusion_row = torch.exp(self.log_row + top).to(similarity.dtype)
        self.exclusion_column = torch.exp(log_column - top).to(similarity.dtype)

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
        history: History
        vectors: tuple[Tensor, ...]
        if native.suits(self.attract.matrix):
            exclusion = (self.exclusion_row, self.exclusion_column)
            history = run = NativeTripletHistory.sweep(
                self.attract, self.repel, exclusion, self.within, start, masses, n_iters, tol
            )
            vectors = (run.a, run.b, run.h, run.r_plus, run.r_minus)
            trustworthy = run.trustworthy(_CANCELLATION)
        else:
            history, vectors = self._sweep(start, masses, n_iters, tol)
            trustworthy = _trustworthy(self, vectors, masses)
        if not trustworthy:
            return None
        a, b, h, r_plus, r_minus = (part[-1] for part in vectors)
        column = self.exclusion_column
        plan = ScaledTripletPlan(
            self, self.anchors(a), Partners(b, r_plus, column * b), Partners(h, r_minus, column * h)
        )
        logs = torch.cat([a, b, h]).to(wide_dtype(a.device)).log_()
        shifts = (self.log_row, self.attract.column_shift, self.repel.column_shift)
        potentials = logs + torch.cat(shifts)
        return Solution(self, potentials, plan, history, len(vectors[0]) - 1)

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
        a, r_plus, r_minus = _stacked(rows)
        b, h = _stacked(columns)
        return Stages(self, masses, stages), (a, b, h, r_plus, r_minus)


class ScaledTripletPlan(NamedTuple):
    """``P_ijk = a_i b_j h_k attract_ij repel_ik`` for j ≠ k."""

    kernel: ScaledTriplet
    anchors: Anchors
    positives: Partners
    negatives: Partners

    def anchor_sums(self) -> Tensor:
        """``Σ_jk b_j h_k K_ijk = r⁺_i r⁻_i − excluded``."""
        excluded = self.kernel.outside(self.positives.excluded * self.negatives.scaling)
        sums = self.positives.sums * self.negatives.sums
        return sums.addcmul_(self.kernel.exclusion_row, excluded, value=-1)

    def positive_sums(self) -> Tensor:
        """``Σ_ik a_i h_k K_ijk = Σ_i attract_ij a_i r⁻_i − excluded``."""
        sums = self.kernel.attract.columns(self.anchors.scaling * self.negatives.sums)
        return sums.addcmul_(self.negatives.scaling, self.anchors.outside, value=-1)

    def negative_sums(self) -> Tensor:
        """``Σ_ij a_i b_j K_ijk = Σ_i repel_ik a_i r⁺_i − excluded``."""
        sums = self.kernel.repel.columns(self.anchors.scaling * self.positives.sums)
        return sums.addcmul_(self.positives.scaling, self.anchors.outside, value=-1)

    def marginal(self, axis: int) -> Tensor:
        """Scaling times sums, of anchors, positives or negatives."""
        if axis == 0:
            return self.anchors.scaling * self.anchor_sums()
        if axis == 1:
            return self.positives.scaling * self.positive_sums()
        return self.negatives.scaling * self.negative_sums()

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals P¹², P¹³, P²³: two matrix-vector products."""
        kernel = self.kernel
        a, b, h = self.anchors.scaling, self.positives.scaling, self.negatives.scaling
        if axis == 0:
            weighted = a * weights
            left = weighted * self.negatives.sums, weighted * self.positives.sums
            right = b, h
            excluded = kernel.outside(kernel.exclusion_row * weighted) * kernel.exclusion_column
            pushed = {
                1: kernel.attract.columns(left[0]).addcmul_(h, excluded, value=-1).mul_(b),
                2: kernel.repel.columns(left[1]).addcmul_(b, excluded, value=-1).mul_(h),
            }
        else:
            own, other = (b, self.negatives) if axis == 1 else (h, self.positives)
            near, far = kernel.attract, kernel.repel
            if axis == 2:
                near, far = far, near
            weighted = own * weights
            sums = near.rows(weighted)
            through = a * sums
            direct = a * other.sums
            excluded = kernel.outside(other.excluded * weighted)
            received = far.columns(through).addcmul_(weighted, self.anchors.outside, value=-1)
            pushed = {
                0: (direct * sums).addcmul_(self.anchors.excluded, excluded, value=-1),
                3 - axis: received.mul_(other.scaling),
            }
            left = (direct, through) if axis == 1 else (through, direct)
            right = (weighted, h) if axis == 1 else (b, weighted)
        if isinstance(sink, ScaledTripletSink):
            sink.add(left, right)
        return pushed


class ScaledTripletSink:
    """Score gradients as low-rank matrices times the two kernels.

    The excluded parts cancel: at j = k the kernel is 1 whatever the similarities are.
    """

    def __init__(self, kernel: ScaledTriplet) -> None:
        self._attract = ScaledPairSink(kernel.attract)
        self._repel = ScaledPairSink(kernel.repel)

    def add(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
        """Add one rank-one term for each kernel."""
        self._attract.add(left[0], right[0])
        self._repel.add(left[1], right[1])

    def total(self) -> Tensor:
        """Attraction raises a score, repulsion lowers it."""
        kernel, left, right = self._repel.term()
        return kernel_gradient([self._attract.term(), (kernel, -left, right)])


def _settled(
    plan: ScaledTripletPlan, sums: Tensor, mass_a: Tensor, mass_b: Tensor, tol: float
) -> bool:
    """Whether the first two marginals are within tol (the third is exact after a sweep)."""
    if float((plan.anchors.scaling * sums - mass_a).abs().sum()) > tol:
        return False
    return float((plan.marginal(1) - mass_b).abs().sum()) <= tol


def _trustworthy(kernel: ScaledTriplet, vectors: tuple[Tensor, ...], masses: Masses) -> bool:
    """Whether no sum came near underflow and no difference lost digits, in all sweeps at once.

    The measure of cancellation is what was subtracted, own part included, against the mass that
    remained. A NaN fails every comparison.

    Args:
        kernel: The kernel.
        vectors: a, b, h, r⁺, r⁻ of the start (where there is no a yet) and of each sweep.
        masses: Imposed marginals of anchors, positives and negatives.
    """
    a, b, h, r_plus, r_minus = vectors
    a = a[1:]
    per_a, per_b, per_h = masses.inverses
    excluded_a, excluded_h = kernel.exclusion_row * a, kernel.exclusion_column * h
    excluded_pairs = excluded_h[:-1] * b[:-1]
    lost = excluded_a.sum(1, keepdim=True)
    taken = excluded_pairs.sum(1, keepdim=True)
    cancelled = (
        excluded_a * (taken * per_a),
        b[1:] * excluded_h[:-1] * (lost * per_b),
        b[1:] * excluded_h[1:] * (lost * per_h),
    )
    # What is lost to underflow, against what was summed: rows, then columns, then exclusions.
    top_b, top_h = b.amax(), h.amax()
    lost_to_underflow = (
        top_b / r_plus.amin(),
        top_h / r_minus.amin(),
        (b[1:] * per_b).amax() * (a * r_minus[:-1]).amax(),
        (h[1:] * per_h).amax() * (a * r_plus[1:]).amax(),
        a.amax() * top_b * top_h * torch.finfo(a.dtype).eps,
    )
    negative = torch.stack([a.amin(), b.amin(), h.amin()]) < 0
    limit = 1 / (underflow_margin(a.dtype) * max(a.shape[1], b.shape[1]))
    return bool(
        (torch.stack([part.amax() for part in cancelled]) <= _CANCELLATION).all()
        & (torch.stack(lost_to_underflow) <= limit).all()
        & ~negative.any()
    )


def _stacked(vectors: Sequence[tuple[Tensor, ...]]) -> Iterable[Tensor]:
    """One tensor for each kind of vector, its first axis being the sweeps."""
    flat = torch.stack([vector for group in vectors for vector in group])
    return flat.view(len(vectors), len(vectors[0]), -1).unbind(1)
