"""A triplet plan at fixed scalings, as linear operators."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.plan import GradientSink
from tricouple.ot.sweeps.tiles import Factors, Kernels

if TYPE_CHECKING:
    from tricouple.ot.sweeps.triplet_scaled import ScaledTriplet

# The two kernels of a triplet coupling.
ATTRACT, REPEL = 0, 1


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


class ScaledTripletPlan(NamedTuple):
    """``P_ijk = a_i b_j h_k attract_ij repel_ik`` for j ≠ k, summed over terms.

    Attributes:
        kernel: The coupling.
        anchors: a, with what it excludes.
        b: Scalings of the positives, shape (M,).
        h: Scalings of the negatives, shape (M,).
        r_plus: ``attract · b``, shape (Q, N).
        r_minus: ``repel · h``, shape (Q, N).
    """

    kernel: ScaledTriplet
    anchors: Anchors
    b: Tensor
    h: Tensor
    r_plus: Tensor
    r_minus: Tensor

    def marginal(self, axis: int) -> Tensor:
        """Scaling times sums, of anchors, positives or negatives."""
        kernel, (a, excluded, outside) = self.kernel, self.anchors
        if axis == 0:
            pairs = kernel.around(kernel.exclusion_column * self.b * self.h)
            return a * (self.r_plus * self.r_minus).sum(0) - excluded * pairs
        if axis == 1:
            own, other, sums, which = self.b, self.h, self.r_minus, ATTRACT
        else:
            own, other, sums, which = self.h, self.b, self.r_plus, REPEL
        received = kernel.kernels.column_sums(which, a * sums)
        return own * received.addcmul_(other, outside, value=-1)

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals P¹², P¹³, P²³: two matrix-vector products."""
        kernel, kernels, a = self.kernel, self.kernel.kernels, self.anchors.scaling
        if axis == 0:
            weighted = a * weights
            left = weighted * self.r_minus, weighted * self.r_plus
            right = self.b, self.h
            excluded = kernel.anchors(weighted).outside
            received = [kernels.column_sums(which, left[which]) for which in (ATTRACT, REPEL)]
            pushed = {
                1: received[ATTRACT].addcmul_(self.h, excluded, value=-1).mul_(self.b),
                2: received[REPEL].addcmul_(self.b, excluded, value=-1).mul_(self.h),
            }
        else:
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
            excluded = kernel.around(kernel.exclusion_column * other * weighted)
            pushed = {
                0: (direct * sums).sum(0).addcmul_(self.anchors.excluded, excluded, value=-1),
                3 - axis: received_far.mul_(other),
            }
            through_anchors = a * sums
            left = (direct, through_anchors) if axis == 1 else (through_anchors, direct)
            right = (weighted, self.h) if axis == 1 else (self.b, weighted)
        if isinstance(sink, ScaledTripletSink):
            sink.add(left, right)
        return pushed


class ScaledTripletSink:
    """Score gradients as low-rank matrices times the two kernels.

    The excluded parts cancel: at j = k the kernel is constant, whatever the similarities are.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._left: tuple[list[Tensor], list[Tensor]] = ([], [])
        self._right: tuple[list[Tensor], list[Tensor]] = ([], [])

    def add(self, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> None:
        """Add one rank-one term for each kernel."""
        for which in (ATTRACT, REPEL):
            self._left[which].append(left[which])
            self._right[which].append(right[which])

    def total(self) -> ScoreGradient:
        """The gradient with respect to the scores."""
        return self._kernels.score_gradient(
            [
                Factors(torch.stack(left), torch.stack(right))
                for left, right in zip(self._left, self._right, strict=True)
            ]
        )
