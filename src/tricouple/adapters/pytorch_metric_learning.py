"""pytorch-metric-learning: a ``BaseMetricLossFunction`` for its miners, wrappers and trainers."""

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

    ``MetricLoss(InfoNCE(τ))`` is ``SupConLoss(τ)``, to rounding. Without a pair to learn from it is
    zero, as there. It is one number per batch: reducers have no effect.

    Args:
        criterion: A loss of tricouple; its ``empty`` becomes ``"zero"``.
        options: Of every loss there, such as ``embedding_regularizer``; the distance is the cosine.

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

    def compute_loss(self, *arguments: Any) -> dict[str, dict[str, Any]]:
        """The loss as that library's reducers want it; arguments as in its documentation."""
        loss = self._loss(*arguments)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}

    def _loss(
        self, anchors: Tensor, labels: Any, indices_tuple: Any, references: Tensor, ref_labels: Any
    ) -> Tensor:
        own, self.own = self.own, None
        if references is anchors:  # how that library passes no references
            return self.criterion(anchors, labels, indices_tuple)
        n, m = len(anchors), len(references)
        # Its efficient distributed wrapper puts the anchors first.
        if own is None and torch.equal(references[:n], anchors):
            own = torch.arange(n, device=anchors.device)
        four = own is not None and indices_tuple is not None and len(indices_tuple) == 4
        if four and sum(map(len, indices_tuple[::2])) == n * (m - 1):
            indices_tuple = None  # all pairs but those of anchors with their own copies
        if own is None or indices_tuple is None:
            given = anchors, labels, indices_tuple, references, ref_labels
            return self.criterion(*given, ref_index=own)
        # Listed pairs: one set, in which the anchors stand where their copies were.
        first, positives, *rest = indices_tuple
        if len(rest) == 2:
            rest[0] = own[rest[0]]
        samples = references.index_copy(0, own, anchors)
        return self.criterion(samples, indices_tuple=(own[first], positives, *rest))


class CrossBatchMemory(peers.CrossBatchMemory):  # type: ignore[misc]
    """That library's memory of the last embeddings, for a ``MetricLoss``, which theirs refuses.

    No anchor is compared with its own copy in the memory, and labels are passed instead of lists
    of all pairs.

    Example:
        >>> from tricouple import NegMMIOT
        >>> memory = CrossBatchMemory(MetricLoss(NegMMIOT()), embedding_size=4, memory_size=32)
        >>> memory(torch.randn(8, 4), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3])).shape
        torch.Size([])
    """

    supported_losses = staticmethod(lambda: ["MetricLoss"])

    def create_indices_tuple(
        self,
        embeddings: Tensor,
        labels: Tensor,
        E_mem: Tensor,
        L_mem: Tensor,
        input_indices_tuple: Any,
        do_remove_self_comparisons: bool,
    ) -> tuple[Tensor, ...] | None:
        """What the miner and the user list; None for all pairs, as without a miner.

        Positives and negatives that the user lists count the batch, which is in the memory too.
        """
        self.loss.own = self.curr_batch_idx if do_remove_self_comparisons else None
        if self.miner is None:
            return None
        if input_indices_tuple is not None:
            places, anchors = self.curr_batch_idx, len(input_indices_tuple) == 4
            input_indices_tuple = tuple(
                index if place == 0 or (anchors and place == 2) else places[index]
                for place, index in enumerate(input_indices_tuple)
            )
        listed: tuple[Tensor, ...] = super().create_indices_tuple(
            embeddings, labels, E_mem, L_mem, input_indices_tuple, do_remove_self_comparisons
        )
        return listed


class SelfSupervisedLoss(peers.SelfSupervisedLoss):  # type: ignore[misc]
    """That library's wrapper for two views, for a ``MetricLoss``, which theirs refuses.

    Example:
        >>> from tricouple import NegMMIOT
        >>> criterion = SelfSupervisedLoss(MetricLoss(NegMMIOT()))
        >>> criterion(torch.randn(8, 4), torch.randn(8, 4)).shape
        torch.Size([])
    """

    supported_losses = staticmethod(lambda: ["MetricLoss"])
