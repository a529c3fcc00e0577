"""Triplet plans of kernels of which every process has the rows of its own anchors.

Where a kernel is a sum of Q terms, its row sums are Q numbers for each anchor: more than they are
worth sending. So all that belongs to anchors stays with their process, scalings too, and what goes
around are the sums over anchors: those of the columns, and those that "j ≠ k" excludes
(mathematics §7). Seen from outside, plans and histories have the vectors of all anchors.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from tricouple.distributed import Shard
from tricouple.numeric import ScoreGradient
from tricouple.ot.sweeps.contract import GradientSink
from tricouple.ot.sweeps.kernels import Kernels
from tricouple.ot.sweeps.triplet_adjoint import (
    Anchors,
    Exclusion,
    ScaledTripletHistory,
    ScaledTripletPlan,
)


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

    def push(
        self, axis: int, weights: Tensor, sink: GradientSink | None = None
    ) -> dict[int, Tensor]:
        """Products with P¹², P¹³, P²³."""
        pushed = self.plan.push(axis, weights if axis else weights[self.shard.rows], sink)
        if 0 in pushed:
            pushed[0] = self.shard.gather(pushed[0], self.shard.anchors)
        return pushed


@dataclass(frozen=True)
class OwnHistory:
    """The sweeps of own anchors."""

    history: ScaledTripletHistory
    shard: Shard

    def plan(self) -> OwnPlan:
        """The plan after the last sweep."""
        return OwnPlan(self.history.plan(), self.shard)

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """The gradient of the sweeps with respect to the scores of own anchors."""
        of_anchors, *others = cotangents
        return self.history.adjoint([of_anchors[self.shard.rows], *others])
