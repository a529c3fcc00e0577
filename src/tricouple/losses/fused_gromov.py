"""Fused-Gromov OT: a plan that also matches the geometry inside each modality (OT-CLIP)."""

import math
from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, GivenSharpness, Need, Variant
from tricouple.losses.dbot import read_out
from tricouple.numeric import cosines, on_host
from tricouple.ot.plans import sinkhorn


class FusedGromov(ContrastiveLoss):
    """Inverse transport whose cost rewards pairs that agree with the plan's other pairs.

    From the cost ``C = 1 − s`` and the plan ``softmax(−C/ε)``, ``n_outer`` times: subtract
    ``α · Σ_anchors P Σ_references`` from C (Σ: the similarities inside each set) and solve for P
    by Sinkhorn, rows summing to 1 and columns to N/M (Shi et al., ICML 2024).

    At the public code's α, our default, and with one caption per image, the gradient is that of
    ``IOT`` at the same ε up to a few per cent, for ``n_outer`` times the iterations.

    It needs two sets: within one the identity is a trivial optimum. The loss is one direction, as
    in public code.

    Args:
        sharpness: c = 1/ε; 10 if neither is given.
        epsilon: ε instead; a number, or a tensor that receives its gradient; 0.01 in public code.
        alpha: α ≥ 0, weight of the geometry; 1e-4 in public code (its 0.01 · 0.01).
        n_outer: How often the cost is updated and the plan solved.
        n_iters: Sinkhorn iterations for each plan.
        variant: ``"formula"``, −mean log P at the positives of the transport plan. Or
            ``"published"``: the public code uses ε for the first plan only, then solves with
            regularisation 1 and the kernel ``exp(+C)``, so that its plan is large where
            similarities are small, and takes a cross-entropy with the plan as logits. ``pairs=``
            weigh both.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.

    Example:
        >>> images, texts, ids = torch.randn(4, 3), torch.randn(4, 3), torch.arange(4)
        >>> loss = FusedGromov(sharpness=10)(images, ids, ref_emb=texts, ref_labels=ids)
        >>> loss.shape
        torch.Size([])
    """

    scale = "epsilon"
    epsilon: float | Tensor

    def __init__(
        self,
        epsilon: float | Tensor | None = None,
        alpha: float = 1e-4,
        n_outer: int = 5,
        n_iters: int = 5,
        variant: Variant = "formula",
        *,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(epsilon, sharpness)
        checks.non_negative_number("alpha", alpha)
        checks.count("n_outer", n_outer)
        checks.count("n_iters", n_iters)
        checks.one_of("variant", variant, get_args(Variant))
        self.alpha, self.variant = alpha, variant
        self.n_outer, self.n_iters = n_outer, n_iters

    def _needs(self, batch: Batch) -> Iterator[Need]:
        if batch.within:
            raise ValueError(
                "FusedGromov has no meaning within one set, whose geometry matches itself: pass "
                "the other modality (or view) as ref_emb with ref_labels, or use IOT"
            )
        return super()._needs(batch)

    def compute(self, batch: Batch) -> Tensor:
        """Update the cost, solve the plan, and again."""
        flipped = self.variant == "published"
        epsilon = 1.0 if flipped else batch.temperature
        check: Check = "full" if self.check == "full" and on_host(batch.anchors) else "shapes"
        assert batch.references is not None
        rows, columns = (cosines(x, x) for x in (batch.anchors, batch.references))
        cost = 1 - batch.similarity()
        mass = len(cost)  # so that rows sum to one
        plan = torch.softmax(batch.without_own(-cost / batch.temperature, -math.inf), 1)
        for _ in range(self.n_outer):
            cost = cost - self.alpha * cosines(cosines(rows, plan.T), columns)  # Σ P Σ
            # Divided by ε beforehand, so that an ε that learns receives its gradient.
            allowed = batch.without_own(cost / epsilon, math.inf)
            solved = sinkhorn(allowed, 1.0, n_iters=self.n_iters, anti=flipped, check=check)
            plan = mass * solved.dense()
        f, g = solved.potentials
        signed = (cost if flipped else -cost) / epsilon
        log_plan = f[:, None] + g + signed + math.log(mass)
        target = batch.relation.positives().pairs.dense()
        return read_out(log_plan, target, self.variant).to(batch.dtype)
