"""InvaSpread: a softmax classifier of instances, with an explicit penalty on every negative."""

from typing import get_args

import torch
from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, GivenSharpness, Variant
from tricouple.numeric import cosines, inverse_product


class InvaSpread(ContrastiveLoss):
    """Invariant and spreading instance features (Ye et al., CVPR 2019).

    With ``p_ij = softmax(s_i/τ)_j`` over all others, the loss of an anchor is
    ``−mean_{j positive} log p_ij − Σ_{k negative} log(1 − p_ik)``, averaged over the anchors that
    have a positive. For two views this is the published loss. No supervised form is published; ours
    averages over the positives, which are all samples of the anchor's label. With explicit
    triplets positives and negatives are the listed ones; with ``pairs=`` the mean over positives is
    weighted.

    Args:
        sharpness: c = 1/τ; 10, the paper's, if neither is given.
        temperature: τ instead; a number, or a tensor or ``nn.Parameter`` that gets its gradient.
        variant: ``"formula"``, or ``"published"``: the public code takes no gradient through the
            second factor of ``s_ij = ⟨z_i, z_j⟩``. The value is the same, the gradient is not.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.

    Example:
        >>> criterion = InvaSpread(sharpness=10)
        >>> loss = criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3]))
        >>> loss.shape
        torch.Size([])
    """

    scale = "temperature"
    paper_sharpness = 10.0
    temperature: float | Tensor

    def __init__(
        self,
        temperature: float | Tensor | None = None,
        variant: Variant = "formula",
        *,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(temperature, sharpness)
        checks.one_of("variant", variant, get_args(Variant))
        self.variant = variant

    def compute(self, batch: Batch) -> Tensor:
        """Attract the positives of each anchor, spread its negatives."""
        similarity = batch.similarity()
        if self.variant == "published" and batch.references is not None:
            similarity = cosines(batch.anchors, batch.references.detach())
        sharpness = inverse_product(batch.temperature, 1.0, batch.entries)
        scores = batch.without_own(similarity * sharpness, -torch.inf)
        log_p = torch.log_softmax(scores, 1)
        masses, pairs = batch.relation.per_anchor()
        target = pairs.dense()
        negatives = batch.relation.negatives(of_triplets=True).pairs.mask()
        pull = (target * log_p.masked_fill(target == 0, 0.0)).sum()
        push = _log_complement(log_p).masked_fill(~negatives, 0.0).sum(1) * masses
        return -(pull + push.sum()).to(batch.dtype)


def _log_complement(log_p: Tensor) -> Tensor:
    """``log(1 − p)`` for each entry of log-probabilities whose rows sum to one, shape (N, M).

    Only the largest entry of a row can exceed ½; 1 − p loses all digits as that one approaches 1,
    so it is replaced by what it means, the sum of the others.
    """
    top = log_p.argmax(1, keepdim=True)
    others = log_p.scatter(1, top, -torch.inf)
    rest = torch.logsumexp(others, 1, keepdim=True)
    return torch.log1p(-torch.exp(others)).scatter(1, top, rest)
