"""The triplet plan for any ψ (mathematics §3): O(N³) time, memory of a few anchors at a time."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from tricouple.numeric import Patch, ScoreGradient
from tricouple.ot.sweeps.contract import GradientSink, Received
from tricouple.ot.sweeps.triplet_log import LogDomainTriplet, LogTripletPlan, Term
from tricouple.shaping import Margins, Shaping, anchor_bytes


class AnchorTriplet(LogDomainTriplet):
    """Entropic three-marginal transport for ``C_ijk = ψ(x_ij − x_ik)``, streamed over anchors.

    Args:
        scores: x = s/τ, shape (N, M), wide dtype.
        psi: ψ.
        epsilon: ε.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        memory_budget: Bytes for the costs. If all of them fit they are kept, else those of a few
            anchors at a time are computed whenever they are needed.
    """

    def __init__(
        self, scores: Tensor, psi: Shaping, epsilon: float, *, within: bool, memory_budget: float
    ) -> None:
        super().__init__(scores, within=within)
        self.epsilon = epsilon
        n, m = scores.shape
        all_costs = n * m**2 * scores.element_size()
        self._keep = all_costs + anchor_bytes(scores) <= memory_budget
        self._kept: dict[int, Tensor] = {}
        self.margins = Margins(scores, psi, memory_budget - all_costs * self._keep)
        self.blocks = self.margins.blocks

    def log_kernel(self, block: slice) -> Tensor:
        """Logarithms of the kernel of some anchors, shape (rows, M, M). Not to be written to."""
        logs = self._kept.get(block.start)
        if logs is None:
            logs = self._exclude(self.margins.costs(block) / -self.epsilon, block, -torch.inf)
            if self._keep:
                self._kept[block.start] = logs
        return logs

    def slopes(self, block: slice) -> Tensor:
        """Their derivatives with respect to the margins."""
        return self._exclude(self.margins.slopes(block) / -self.epsilon, block, 0.0)

    def _exclude(self, values: Tensor, block: slice, value: float) -> Tensor:
        """Overwrite what belongs to no triplet: j = k, and within one set i = j and i = k."""
        values.diagonal(dim1=1, dim2=2).fill_(value)
        if self.within:
            values[:, block].diagonal(dim1=0, dim2=1).fill_(value)
            values[:, :, block].diagonal(dim1=0, dim2=2).fill_(value)
        return values

    def positive_pairs(self, g: Tensor) -> Tensor:
        """``log Σ_{k≠j} K_ijk exp(g_k)``, shape (N, M)."""
        sums = [torch.logsumexp(self.log_kernel(block) + g, 2) for block in self.blocks]
        return torch.cat(sums)

    def negative_pairs(self, f: Tensor) -> Tensor:
        """``log Σ_{j≠k} K_ijk exp(f_j)``, shape (N, M)."""
        sums = [torch.logsumexp(self.log_kernel(block) + f[:, None], 1) for block in self.blocks]
        return torch.cat(sums)

    def partners(self, plan: LogTripletPlan) -> Tensor:
        """P²³, shape (M, M)."""
        return self._over_anchors(plan, torch.ones_like(plan.phi))

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> Received:
        """Sums over the plan; the sink does its part later, in one pass for all plans."""
        if sink is not None:
            sink.add((plan, axis, weights))
        if axis == 0:
            pairs = self._over_anchors(plan, weights)  # (M, M)
            return {1: pairs.sum(1), 2: pairs.sum(0)}
        if axis == 1:
            sums = [torch.matmul(weights, self._masses(plan, block)) for block in self.blocks]
        else:
            sums = [torch.matmul(self._masses(plan, block), weights) for block in self.blocks]
        pairs = torch.cat(sums)  # (N, M)
        return {0: pairs.sum(1), 3 - axis: pairs.sum(0)}

    def forces(self, terms: Sequence[Term]) -> ScoreGradient:
        """``∂/∂x Σ weights · marginal_axis`` of all terms: ψ' is computed once."""
        for block in self.blocks:
            yield Patch(block, self._forces(block, terms))

    def _forces(self, block: slice, terms: Sequence[Term]) -> Tensor:
        """What the margins of some anchors receive: x_ij all of it, x_ik its negative."""
        slopes = self.slopes(block)  # first, since autograd needs the most room
        logs = self.log_kernel(block)
        received = torch.zeros_like(logs)
        for plan, axis, weights in terms:
            shape = [1, 1, 1]
            shape[axis] = -1
            own = weights[block] if axis == 0 else weights
            received.addcmul_(masses_of(plan, block, logs), own.view(shape))
        received.mul_(slopes)
        return received.sum(2) - received.sum(1)

    def _masses(self, plan: LogTripletPlan, block: slice) -> Tensor:
        return masses_of(plan, block, self.log_kernel(block))

    def _over_anchors(self, plan: LogTripletPlan, weights: Tensor) -> Tensor:
        """``Σ_i weights_i P_ijk``, shape (M, M)."""
        m = self.scores.shape[1]
        total = self.scores.new_zeros(m * m)
        for block in self.blocks:
            total.addmv_(self._masses(plan, block).view(-1, m * m).T, weights[block])
        return total.view(m, m)


def masses_of(plan: LogTripletPlan, block: slice, logs: Tensor) -> Tensor:
    """P of some anchors, from the logarithms of their kernel; shape (rows, M, M)."""
    return (logs + plan.phi[block, None, None]).add_(plan.f[:, None]).add_(plan.g).exp_()
