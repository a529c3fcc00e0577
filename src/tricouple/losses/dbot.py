"""DBOT: transport with doubly bounded column sums (OT-CLIP)."""

import math
from collections.abc import Iterator
from typing import get_args

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, GivenSharpness, Need, Variant
from tricouple.numeric import inverse_product, wide_dtype


class DBOT(ContrastiveLoss):
    """Inverse transport with rows that sum to one and columns held inside an interval.

    The kernel ``exp(−(1 − s)/reg)`` is scaled ``n_iters`` times: rows to 1, then each column up to
    the lower bound if it is below, down to the upper bound if it is above (Shi et al., ICML 2024).
    Where no column reaches a bound, the loss is ``InfoNCE(temperature=reg)``. With the default
    bounds and reg = 1, as in public code, no column does in practice.

    Bounds are fractions of the mean column sum N/M, feasible if ``lower ≤ 1 ≤ upper``, as the
    column sums add up to N. The public code has 0.1·n and 0.9·n with n = 5, its number of
    iterations: our defaults 0.5 and 4.5. (A fork takes n for the batch size, which is infeasible
    for more than ten samples.) The loss is one direction; the public code averages both.

    Args:
        sharpness: c = 1/reg; 10 if neither is given.
        regularisation: reg instead, the entropic regularisation; 1 in public code.
        n_iters: Rounds of scaling.
        lower: Lower bound of a column sum, a fraction of the mean one, between 0 and 1.
        upper: Upper bound of a column sum, a fraction of the mean one, at least 1.
        variant: ``"formula"``, −mean log P at the positives, or ``"published"``, the public code's
            cross-entropy with the plan as logits, across two sets only. ``pairs=`` weigh both.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.

    Example:
        >>> images, texts, ids = torch.randn(4, 3), torch.randn(4, 3), torch.arange(4)
        >>> loss = DBOT(sharpness=10)(images, ids, ref_emb=texts, ref_labels=ids)
        >>> loss.shape
        torch.Size([])
    """

    scale = "regularisation"
    regularisation: float | Tensor

    def __init__(
        self,
        regularisation: float | Tensor | None = None,
        n_iters: int = 5,
        lower: float = 0.5,
        upper: float = 4.5,
        variant: Variant = "formula",
        *,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(regularisation, sharpness)
        checks.count("n_iters", n_iters)
        checks.non_negative_number("lower", lower)
        checks.non_negative_number("upper", upper)
        if not lower <= 1 <= upper:
            raise ValueError(
                f"lower={lower} and upper={upper} are not feasible: they are fractions of the mean "
                "column sum, so use lower <= 1 <= upper"
            )
        checks.one_of("variant", variant, get_args(Variant))
        self.n_iters, self.lower, self.upper = n_iters, lower, upper
        self.variant = variant

    def _needs(self, batch: Batch) -> Iterator[Need]:
        if batch.within and self.variant == "published":
            raise ValueError(
                'variant="published" has no meaning within one set: the public code compares two '
                'modalities; pass ref_emb and ref_labels, or use variant="formula"'
            )
        return super()._needs(batch)

    def compute(self, batch: Batch) -> Tensor:
        """Scale the kernel, read the positives."""
        # Potentials of size c take digits from what they are added to: float32 has none to spare.
        sharpness = inverse_product(batch.temperature, 1.0, batch.entries)
        wide = wide_dtype(batch.anchors.device)
        scores = batch.without_own(batch.similarity(wide) * sharpness, -torch.inf)
        n, m = scores.shape
        bounds = [
            math.log(fraction * n / m) if fraction else -math.inf
            for fraction in (self.lower, self.upper)
        ]
        columns = scores.new_zeros(m)
        for _ in range(self.n_iters):
            rows = -torch.logsumexp(scores + columns, 1)
            unscaled = torch.logsumexp(scores + rows[:, None], 0)
            # Up to the lower bound, then down to the upper one: a clamp of the column sum.
            columns = (columns + unscaled).clamp(*bounds) - unscaled
        log_plan = scores + rows[:, None] + columns
        target = batch.relation.positives().pairs.dense()
        return read_out(log_plan, target, self.variant).to(batch.dtype)


def read_out(log_plan: Tensor, target: Tensor, variant: str) -> Tensor:
    """The loss of log P, (N, M), whose rows sum to about one, at the positive pairs of P̃, (N, M).

    ``"formula"`` is ``−Σ P̃ log P``, the mean over them: ``KL(P̃ ‖ P)`` up to a constant.

    ``"published"`` is the public CLIP code's ``cross_entropy(P, diagonal)``. It takes the plan
    itself for logits, numbers between 0 and 1: for N = 256 the loss stays between 4.55 and 5.55.
    The public code has one positive per row; the mean over all of them is ours.
    """
    if variant == "published":
        log_plan = torch.log_softmax(log_plan.exp(), 1)
    return -(target * torch.where(target > 0, log_plan, 0.0)).sum()
