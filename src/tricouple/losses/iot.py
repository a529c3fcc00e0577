"""IOT-CL ("Standard OT"): positives alone, in one entropic transport plan."""

from __future__ import annotations

import math
from functools import partial

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, Gradient, Marginals, Memory
from tricouple.losses.coupled import Part, Sweeps, loss
from tricouple.numeric import inverse_product, on_host
from tricouple.ot.forms import Linear
from tricouple.ot.plans import potentials
from tricouple.ot.solver import DEFAULT_BUDGET


class IOT(ContrastiveLoss):
    """Inverse optimal transport on positive pairs, optionally with a uniformity penalty.

    ``KL(P̃ ‖ P)`` with P the entropic plan for the cost ``1 − s`` and P̃ uniform on the positive
    pairs. Its sharpness is c = 1/ε: there is no temperature.

    ``uniformity=λ`` adds ``λ · KL(Q ‖ P)``, Q being P with all its non-positive entries replaced
    by their mean. The value λ = 0.2 is known from a third party's re-implementation only; the
    authors of the penalty have published no code.

    Args:
        epsilon: ε, the entropic regularisation; a number, or a tensor that receives its gradient.
        n_iters: Sinkhorn sweeps, at most.
        tol: Stop sweeping when the marginal error (L1) is below this.
        uniformity: λ ≥ 0.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``, as in ``NegMMIOT``; the
            envelope assumes a fixed target, so it does not go with a uniformity penalty.
        marginals: ``"uniform"`` as published, ``"target"`` or ``"classes"``, as in ``NegMMIOT``.
        sharpness: c = 1/ε instead; 10, the paper's, if neither is given.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a positive pair.
        memory, memory_budget: As in ``NegMMIOT``; the uniformity penalty always needs matrices.

    Example:
        >>> criterion = IOT(sharpness=10, uniformity=0.2)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    shown = ("epsilon", "uniformity", "sweeps")
    scale = "epsilon"
    paper_sharpness = 10.0
    epsilon: float | Tensor
    sweeps: Sweeps

    def __init__(
        self,
        epsilon: float | Tensor | None = None,
        n_iters: int = 10,
        tol: float | None = None,
        uniformity: float = 0.0,
        gradient: Gradient = "unrolled",
        marginals: Marginals = "uniform",
        *,
        sharpness: float | str | None = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
        memory: Memory = "auto",
        memory_budget: float = DEFAULT_BUDGET,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(epsilon, sharpness)
        checks.non_negative_number("uniformity", uniformity)
        if uniformity and gradient == "envelope":
            raise ValueError(
                f"uniformity={uniformity} needs the plan's own gradient: "
                'use gradient="unrolled" or "implicit"'
            )
        if uniformity and memory == "streamed":
            raise ValueError(
                f"uniformity={uniformity} needs every entry of the plan: use memory='matrices'"
            )
        self.uniformity = uniformity
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    @property
    def needs_negatives(self) -> bool:  # type: ignore[override]
        """Only the uniformity penalty looks at negatives."""
        return self.uniformity > 0

    def compute(self, batch: Batch) -> Tensor:
        """The divergence, and the penalty if asked for."""
        if not self.uniformity:
            return loss(batch, self.sweeps, self._parts)
        batch = batch.with_marginals(self.sweeps.marginals)
        target = batch.relation.positives()
        factor = inverse_product(batch.temperature, 1.0)
        imposed, scores = self.sweeps.imposed(target.pairs.marginals), batch.similarity()
        found = potentials(scores, batch.own, factor, imposed, self.sweeps)
        log_plan = scores * factor + found[0][:, None] + found[1]
        positives = target.pairs.dense()
        inside = torch.where(positives == 0, 0.0, positives * log_plan).sum()
        # A sample without mass has no entries to spread.
        spread = (positives == 0) & (log_plan > -torch.inf)
        spread = batch.without_own(spread, False)
        penalty = self.uniformity * _flatness(log_plan, spread)
        return (penalty - inside - target.entropy).to(batch.dtype)

    def compute_both(self, batch: Batch) -> Tensor:
        """The mean of both directions, from one set of similarities."""
        if self.uniformity:
            return super().compute_both(batch)
        return loss(batch, self.sweeps, self._parts, both=True)

    def _parts(self, batch: Batch) -> list[Part]:
        target = batch.with_marginals(self.sweeps.marginals).relation.positives()
        c, masses = batch.sharpness(), target.pairs.marginals
        form = partial(Linear, sharpness=c.value, axes=2)
        imposed = self.sweeps.imposed(masses)
        return [Part(masses, target.entropy, form, imposed, c, target.pairs)]


def _flatness(log_plan: Tensor, spread: Tensor) -> Tensor:
    """``KL(Q ‖ P)``: only the entries that Q replaces by their mean contribute."""
    if not on_host(log_plan):
        log_sum = torch.logsumexp(log_plan.masked_fill(~spread, -torch.inf), (0, 1))
        log_mean = log_sum - spread.sum().to(log_plan.dtype).log()
        logs = log_plan.masked_fill(~spread, 0.0)  # no infinities in the gradient of what is unused
        return torch.where(spread, torch.exp(log_mean) * (log_mean - logs), 0.0).sum()
    logs = log_plan[spread]
    if not len(logs):
        return logs.sum()  # 0, with a gradient path
    log_mean = torch.logsumexp(logs, 0) - math.log(len(logs))
    return (torch.exp(log_mean) * (log_mean - logs)).sum()
