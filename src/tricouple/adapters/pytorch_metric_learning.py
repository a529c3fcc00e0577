"""pytorch-metric-learning: a ``BaseMetricLossFunction`` for its miners, wrappers and trainers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tricouple.adapters import adapted_library, for_any_batch
from tricouple.losses.base import ContrastiveLoss

with adapted_library():
    from pytorch_metric_learning import losses as peers
    from pytorch_metric_learning.distances import CosineSimilarity


class MetricLoss(peers.BaseMetricLossFunction):  # type: ignore[misc]
    """A loss in the place of one of pytorch-metric-learning.

    ``MetricLoss(InfoNCE(τ))`` is ``SupConLoss(τ)``, to rounding. Batches and miners without a pair
    to learn from give zero, as everywhere there. The loss is one number per batch: reducers change
    nothing.

    Args:
        criterion: A loss of tricouple; its ``empty`` becomes ``"zero"``.
        options: Options of every loss there, such as ``embedding_regularizer`` or ``reducer``. The
            distance is the cosine, and no other.

    Example:
        >>> from tricouple import NegMMIOT
        >>> criterion = MetricLoss(NegMMIOT(temperature=1.0, epsilon=0.1))
        >>> criterion(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """

    def __init__(self, criterion: ContrastiveLoss, **options: Any) -> None:
        super().__init__(**options)
        if type(self.distance) is not CosineSimilarity or self.distance.power != 1:
            raise ValueError(
                f"distance must be CosineSimilarity(), got {self.distance}: the losses compare "
                "directions"
            )
        self.criterion = for_any_batch(criterion)
        self.own: Tensor | None = None  # for the next call: which reference each anchor is

    def get_default_distance(self) -> CosineSimilarity:
        """The cosine."""
        return CosineSimilarity()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: Any,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """The loss as that library's reducers want it."""
        loss = self._loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}

    def _loss(
        self, anchors: Tensor, labels: Any, indices_tuple: Any, references: Tensor, ref_labels: Any
    ) -> Tensor:
        own, self.own = self.own, None
        if references is anchors:  # that library's way to say that there are no references
            return self.criterion(anchors, labels, indices_tuple)
        n, m = len(anchors), len(references)
        if own is None and torch.equal(
            references[:n], anchors
        ):  # its efficient distributed wrapper
            own = torch.arange(n, device=anchors.device)
        four = own is not None and indices_tuple is not None and len(indices_tuple) == 4
        if four and sum(map(len, indices_tuple[::2])) == n * (m - 1):
            indices_tuple = None  # all pairs but those of anchors with their own copies
        if own is None or indices_tuple is None:
            given = {"ref_emb": references, "ref_labels": ref_labels, "ref_index": own}
            return self.criterion(anchors, labels, indices_tuple, **given)
        # Listed pairs: one set, in which the anchors stand where their copies were.
        first, positives, *rest = indices_tuple
        if len(rest) == 2:
            rest[0] = own[rest[0]]
        samples = references.index_copy(0, own, anchors)
        return self.criterion(samples, indices_tuple=(own[first], positives, *rest))


class CrossBatchMemory(peers.CrossBatchMemory):  # type: ignore[misc]
    """That library's memory of the last embeddings, for a ``MetricLoss``.

    Theirs takes losses by name. This one also says which entry of the memory is the anchor itself,
    so that no anchor is compared with its own copy, and lists no pairs where the labels tell them.

    Example:
        >>> from tricouple import NegMMIOT
        >>> memory = CrossBatchMemory(MetricLoss(NegMMIOT()), embedding_size=4, memory_size=32)
        >>> memory(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """

    @staticmethod
    def supported_losses() -> list[str]:
        """The one that knows its own copies."""
        return ["MetricLoss"]

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: Any,
        do_remove_self_comparisons: bool,
    ) -> tuple[Tensor, ...] | None:
        """What the miner or the user lists; nothing where all pairs are meant."""
        self.loss.own = self.curr_batch_idx if do_remove_self_comparisons else None
        if self.miner is None and input_indices_tuple is None:
            return None
        listed: tuple[Tensor, ...] = super().create_indices_tuple(
            embeddings, labels, E_mem, L_mem, input_indices_tuple, do_remove_self_comparisons
        )
        return listed


class SelfSupervisedLoss(peers.SelfSupervisedLoss):  # type: ignore[misc]
    """That library's wrapper for two views, for a ``MetricLoss``; theirs takes losses by name.

    Example:
        >>> from tricouple import NegMMIOT
        >>> criterion = SelfSupervisedLoss(MetricLoss(NegMMIOT()))
        >>> criterion(torch.randn(8, 4), torch.randn(8, 4)).shape
        torch.Size([])
    """

    @staticmethod
    def supported_losses() -> list[str]:
        """Ours."""
        return ["MetricLoss"]
