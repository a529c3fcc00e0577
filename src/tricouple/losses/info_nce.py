"""InfoNCE: SupCon for labels, NT-Xent for views, one direction of CLIP across."""

from collections.abc import Iterator
from typing import Literal

from torch import Tensor

from tricouple import checks
from tricouple.batch import Batch
from tricouple.groups import Group
from tricouple.losses.base import Check, ContrastiveLoss, Empty, GivenSharpness, Memory, Need
from tricouple.losses.coupled import Part
from tricouple.ot.solver import DEFAULT_BUDGET, MEMORY_MODES, Sweeps
from tricouple.relations import Identities


class InfoNCE(ContrastiveLoss):
    """The contrastive cross-entropy: SupCon, NT-Xent, and one direction of CLIP.

    For each anchor, minus the mean over its positives of ``log softmax(s/τ)`` over all others;
    then the mean over the anchors that have a positive (some public code counts the rest as zeros).

    This is SupCon for class labels, NT-Xent for two views, and across modalities one direction of
    CLIP, with every reference of the anchor's label as a positive. With explicit triplets the
    positives are the distinct listed (anchor, positive) pairs; the softmax is over all others.

    Args:
        sharpness: c = 1/τ; 10, the paper's, if neither is given.
        temperature: τ instead; a number, or a tensor or ``nn.Parameter`` that gets its gradient.
        empty, check, group: As in ``ContrastiveLoss``; empty is a batch without a triplet.
        memory: As in ``NegMMIOT``; they have no effect: similarities always come in tiles.
        memory_budget: Bytes that the tiles may take.
        marginals: ``"uniform"``: every anchor counts the same. ``"classes"``: every class does, and
            its anchors share that evenly.
        partition: ``"per_anchor"``, or ``"joint"``: the denominators of all samples of one label
            are added up, within one set. Of queries and their documents, ``pair_views(q, d)``, it
            is the loss of GTE (Li et al. 2023), ``mean_i [log(Z_q,i + Z_d,i) − s_ii/τ]``.

    Example:
        >>> criterion = InfoNCE(sharpness=10)
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
        *,
        sharpness: GivenSharpness = None,
        empty: Empty = "raise",
        check: Check = "full",
        group: Group = None,
        memory: Memory = "auto",
        memory_budget: float = DEFAULT_BUDGET,
        marginals: Literal["uniform", "classes"] = "uniform",
        partition: Literal["per_anchor", "joint"] = "per_anchor",
    ) -> None:
        super().__init__(empty=empty, check=check, group=group)
        self._set_scale(temperature, sharpness)
        checks.one_of("memory", memory, MEMORY_MODES)
        checks.one_of("marginals", marginals, ("uniform", "classes"))
        checks.one_of("partition", partition, ("per_anchor", "joint"))
        self.marginals = marginals
        self.partition = partition
        self.sweeps = Sweeps(1, memory_budget=memory_budget)

    def _needs(self, batch: Batch) -> Iterator[Need]:
        given = batch.relation
        if self.partition == "joint" and not (isinstance(given, Identities) and given.within):
            raise ValueError(
                'partition="joint" adds up the denominators of one label within one set: pass '
                "labels alone; of queries and documents criterion(*pair_views(queries, documents))"
            )
        return super()._needs(batch)

    def _parts(self, batch: Batch) -> list[Part]:
        """Σ_i w_i log Σ_j exp(s_ij/τ) − ⟨P̃, s⟩/τ, with P̃_ij = w_i/n⁺_i at the positives."""
        relation = batch.relation.with_marginals(self.marginals)
        masses, target = relation.per_anchor()
        groups = None
        if self.partition == "joint" and isinstance(relation, Identities):
            groups = relation.anchors
        return [Part([masses], batch.sharpness(), linear=target, joint=groups)]
