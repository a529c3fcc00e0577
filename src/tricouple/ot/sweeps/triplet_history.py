"""What the scaling sweeps of a triplet coupling remember, and their adjoint."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.plan import Masses
from tricouple.ot.sweeps.tiles import Factors
from tricouple.ot.sweeps.triplet_plan import ATTRACT, REPEL, ScaledTripletPlan

if TYPE_CHECKING:
    from tricouple.ot.sweeps.triplet_scaled import ScaledTriplet


class Scalings(NamedTuple):
    """Stacked vectors of T sweeps.

    Attributes:
        a: Scalings of the anchors, shape (T, N).
        b: Scalings of the positives, with those of the start, shape (T + 1, M).
        h: Scalings of the negatives, with those of the start, shape (T + 1, M).
        r_plus: ``attract · b``, shape (T + 1, Q, N).
        r_minus: ``repel · h`` of all h but the last, shape (T, Q, N).
    """

    a: Tensor
    b: Tensor
    h: Tensor
    r_plus: Tensor
    r_minus: Tensor


@dataclass(frozen=True)
class ScaledTripletHistory:
    """Every update of the sweeps, in vectors."""

    kernel: ScaledTriplet
    masses: Masses
    scalings: Scalings

    def plan(self) -> ScaledTripletPlan:
        """The plan after the last sweep."""
        a, b, h, r_plus, _ = (part[-1] for part in self.scalings)
        r_minus = self.kernel.kernels.row_sums(REPEL, h)
        return ScaledTripletPlan(self.kernel, self.kernel.anchors(a), b, h, r_plus, r_minus)

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards: two passes over the kernels each, as many as forwards.

        A sweep sets a from (b₀, h₀), b from (a, h₀) and h from (a, b), where b₀ and h₀ are those of
        the sweep before. Weights on an updated scaling are pushed through the plan right after the
        update (see ``Stages.adjoint``). What different updates send through the same kernel to the
        same scaling is summed before it is multiplied: that saves two products of six, and a third
        of the rank of the gradient.
        """
        kernel, (all_a, all_b, all_h, all_plus, all_minus) = self.kernel, self.scalings
        kernels, column = kernel.kernels, kernel.exclusion_column
        per_a, per_b, per_h = self.masses.inverses
        grad_a, grad_b, grad_h = cotangents
        # Left factors that belong to b_t and h_t, and those with right factors of their own.
        to_b, to_h = torch.zeros_like(all_plus), torch.zeros_like(all_plus)
        own_b, own_h = all_a[:, None] * all_minus, all_a[:, None] * all_plus[1:]
        weights_b, weights_h = torch.empty_like(all_b[1:]), torch.empty_like(all_h[1:])
        excluded_b = torch.zeros_like(column)
        for t in range(len(all_a) - 1, -1, -1):
            a, anchors = all_a[t], kernel.anchors(all_a[t])
            b, h, b0, h0 = all_b[t + 1], all_h[t + 1], all_b[t], all_h[t]
            w_h = torch.mul(h, grad_h * -per_h, out=weights_h[t])
            from_h, left_b = torch.empty_like(to_b[t]), to_b[t + 1]

            def to_positives(
                rows: slice,
                sums: Tensor,
                a: Tensor = a,
                from_h: Tensor = from_h,
                left_b: Tensor = left_b,
            ) -> Tensor:
                from_h[:, rows] = sums
                return left_b[:, rows].addcmul_(a[rows], sums)

            received = kernels.through(REPEL, ATTRACT, w_h, to_positives).sub_(excluded_b)
            grad_b = grad_b + b * received.addcmul_(w_h, anchors.outside, value=-1)

            w_b = torch.mul(b, grad_b * -per_b, out=weights_b[t])
            excluded = anchors.excluded * kernel.around(column * (b * w_h + h0 * w_b))
            known = grad_a + (own_h[t] * from_h).sum(0) - excluded
            w_a = torch.empty_like(a)

            def to_negatives(
                rows: slice,
                sums: Tensor,
                t: int = t,
                a: Tensor = a,
                known: Tensor = known,
                w_a: Tensor = w_a,
            ) -> Tensor:
                gradient = known[rows] + (own_b[t][:, rows] * sums).sum(0)
                weights = torch.mul(a[rows], gradient * -per_a[rows], out=w_a[rows])
                torch.mul(weights, all_minus[t][:, rows], out=to_b[t][:, rows])
                left = to_h[t][:, rows]
                return torch.addcmul(a[rows] * sums, weights, all_plus[t][:, rows], out=left)

            if t == 0:
                to_negatives(slice(None), kernels.row_sums(ATTRACT, w_b))
                break
            received = kernels.through(ATTRACT, REPEL, w_b, to_negatives)
            outside = kernel.anchors(w_a).outside
            received.addcmul_(w_b, anchors.outside, value=-1)
            grad_h = h0 * received.addcmul_(b0, outside, value=-1)
            # The rest of grad_b waits for what the sweep before sends through the same kernel.
            excluded_b = h0 * outside
            grad_a, grad_b = torch.zeros_like(grad_a), torch.zeros_like(grad_b)
        return kernels.score_gradient(
            [
                Factors(torch.cat([to_b, own_b]), torch.cat([all_b, weights_b])),
                Factors(torch.cat([to_h[:-1], own_h]), torch.cat([all_h[:-1], weights_h])),
            ]
        )
