"""pytorch-metric-learning: a ``BaseMetricLossFunction`` for its miners, wrappers and trainers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tricouple.adapters.parts import adapted_library, for_any_batch
from tricouple.losses.base import ContrastiveLoss

with adapted_library():
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction


class MetricLoss(BaseMetricLossFunction):  # type: ignore[misc]
    """A loss in the place of one of pytorch-metric-learning.

    ``MetricLoss(InfoNCE(τ))`` is ``SupConLoss(τ)``, to rounding. Batches and miners without a pair
    to learn from give zero, as everywhere there. Reducers have nothing to do: the loss is one
    number a batch.

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

    def get_default_distance(self) -> CosineSimilarity:
        """The cosine."""
        return CosineSimilarity()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """The loss as that library's reducers want it."""
        references: dict[str, Any] = {}
        if ref_emb is not embeddings:  # without references that library passes the anchors
            references = {"ref_emb": ref_emb, "ref_labels": ref_labels}
        loss = self.criterion(embeddings, labels, indices_tuple, **references)
        return {"loss": {"losses": loss, "indices": None, "reduction_type": "already_reduced"}}
