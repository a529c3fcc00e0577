"""A triplet plan at fixed scalings, as linear operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from torch import Tensor

from tricouple.ot.kernels.balanced import KernelTerm
from tricouple.ot.kernels.pair_scaled import ScaledPairSink
from tricouple.ot.kernels.plan import GradientSink

if TYPE_CHECKING:
    from tricouple.ot.kernels.triplet_scaled import ScaledTriplet


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


class ScaledTripletPlan(NamedTuple):
    """``P_ijk = a_i b_j h_k attract_ij repel_ik`` for j ≠ k."""

    kernel: ScaledTriplet
    anchors: Anchors
    positives: Partners
    negatives: Partners

    def anchor_sums(self) -> Tensor:
        """``Σ_jk b_j h_k K_ijk = r⁺_i r⁻_i − excluded``."""
        excluded = self.kernel.outside(self.positives.excluded * self.negatives.scaling)
        sums = self.kernel.gather(self.positives.sums * self.negatives.sums)
        return sums.addcmul_(self.kernel.exclusion_row, excluded, value=-1)

    def positive_sums(self) -> Tensor:
        """``Σ_ik a_i h_k K_ijk = Σ_i attract_ij a_i r⁻_i − excluded``."""
        sums = self.kernel.attract.columns(
            self.kernel.spread(self.anchors.scaling) * self.negatives.sums
        )
        return sums.addcmul_(self.negatives.scaling, self.anchors.outside, value=-1)

    def negative_sums(self) -> Tensor:
        """``Σ_ij a_i b_j K_ijk = Σ_i repel_ik a_i r⁺_i − excluded``."""
        sums = self.kernel.repel.columns(
            self.kernel.spread(self.anchors.scaling) * self.positives.sums
        )
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
            rows = kernel.spread(weighted)
            left = rows * self.negatives.sums, rows * self.positives.sums
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
            rows = kernel.spread(a)
            through = rows * sums
            direct = rows * other.sums
            excluded = kernel.outside(other.excluded * weighted)
            received = far.columns(through).addcmul_(weighted, self.anchors.outside, value=-1)
            pushed = {
                0: kernel.gather(direct * sums).addcmul_(self.anchors.excluded, excluded, value=-1),
                3 - axis: received.mul_(other.scaling),
            }
            left = (direct, through) if axis == 1 else (through, direct)
            right = (weighted, h) if axis == 1 else (b, weighted)
        if isinstance(sink, ScaledTripletSink):
            sink.add(left, right)
        return pushed


class ScaledTripletSink:
    """Score gradients as low-rank matrices times the two kernels.

    The excluded parts cancel: at j = k the kernel is constant, whatever the similarities are.
    """

    def __init__(self, kernel: ScaledTriplet) -> None:
        self._kernel = kernel
        self._attract = ScaledPairSink(kernel.attract)
        self._repel = ScaledPairSink(kernel.repel)

    def add(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
        """Add one rank-one term for each kernel."""
        self._attract.add(left[0], right[0])
        self._repel.add(left[1], right[1])

    def terms(self) -> tuple[KernelTerm, KernelTerm]:
        """Both kernels with all factors."""
        return self._attract.term(), self._repel.term()

    def total(self) -> Tensor:
        """The gradient with respect to the scores."""
        return self._kernel.score_gradient(*self.terms())
