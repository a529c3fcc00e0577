"""IOT-CL ("Standard OT"): positives alone, in one entropic transport plan."""

from functools import partial

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import (
    Check,
    ContrastiveLoss,
    Empty,
    GivenSharpness,
    Gradient,
    Marginals,
    Memory,
)
from tricouple.losses.coupled import Part
from tricouple.numeric import inverse_product
from tricouple.ot.forms import Linear
from tricouple.ot.plans import potentials
from tricouple.ot.solver import DEFAULT_BUDGET, Sweeps


class IOT(ContrastiveLoss):
    """Inverse optimal transport on positive pairs, optionally with a uniformity penalty.

    ``KL(P̃ ‖ P)`` with P the entropic plan for the cost ``1 − s`` and P̃ uniform on the positive
    pairs, or proportional to W of ``pairs=``. Its sharpness is c = 1/ε: there is no temperature.

    ``uniformity=λ`` adds ``λ · KL(Q ‖ P)``, Q being P with all entries but the positive pairs
    replaced by their mean. λ = 0.2 is from a re-implementation; the authors published no code.

    Args:
        sharpness: c = 1/ε; 10, the paper's, if neither is given.
        epsilon: ε instead; a number, or a tensor that receives its gradient.
        uniformity: λ ≥ 0; it always needs matrices.
        n_iters, tol, marginals, memory, memory_budget: As in ``NegMMIOT``.
        gradient: As in ``NegMMIOT``; ``"envelope"`` assumes a fixed target: not with uniformity.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a positive pair.

    Example:
        >>> criterion = IOT(sharpness=10, uniformity=0.2)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    scale = "epsilon"
    paper_sharpness = 10.0
    epsilon: float | Tensor

    def __init__(
        self,
        epsilon: float | Tensor | None = None,
        n_iters: int = 10,
        tol: float | None = None,
        uniformity: float = 0.0,
        gradient: Gradient = "unrolled",
        marginals: Marginals = "uniform",
        *,
        sharpness: GivenSharpness = None,
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
        self.needs_negatives = uniformity > 0
        self.sweeps = Sweeps(n_iters, tol, gradient, marginals, memory, memory_budget)

    def compute(self, batch: Batch) -> Tensor:
        """The divergence, and the penalty if asked for."""
        if not self.uniformity:
            return super().compute(batch)
        target = batch.relation.with_marginals(self.sweeps.marginals).positives()
        factor = inverse_product(batch.temperature, 1.0)
        imposed, scores = self.sweeps.imposed(target.marginals), batch.similarity()
        found = potentials(scores, batch.relation.own, factor, imposed, self.sweeps)
        log_plan = scores * factor + found[0][:, None] + found[1]
        positives = target.pairs.dense()
        inside = torch.where(positives == 0, 0.0, positives * log_plan).sum()
        # A sample without mass has no entries to spread.
        spread = (positives == 0) & (log_plan > -torch.inf)
        spread = batch.without_own(spread, False)
        penalty = self.uniformity * _flatness(log_plan, spread)
        return (penalty - inside - target.entropy).to(batch.dtype)

    @property
    def one_product(self) -> bool:
        """Not with the penalty."""
        return not self.uniformity

    def _parts(self, batch: Batch) -> list[Part]:
        target = batch.relation.with_marginals(self.sweeps.marginals).positives()
        c = batch.sharpness()
        form = partial(Linear, sharpness=c.value, axes=2)
        return [Part(target.marginals, c, target.entropy, form, target.pairs)]


def _flatness(log_plan: Tensor, spread: Tensor) -> Tensor:
    """``KL(Q ‖ P)``: only the entries that Q replaces by their mean contribute."""
    number = spread.sum().to(log_plan.dtype)
    log_sum = torch.logsumexp(log_plan.masked_fill(~spread, -torch.inf), (0, 1))
    # No infinities in the gradient of what is unused.
    log_mean = torch.where(number > 0, log_sum - number.log(), 0.0)
    logs = log_plan.masked_fill(~spread, 0.0)
    return torch.where(spread, torch.exp(log_mean) * (log_mean - logs), 0.0).sum()
