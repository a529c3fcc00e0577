"""BYOL in Lightning: two views of an image, or two images of a class, and a target that follows."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tricouple.relations import Identities, view_pairs
from tricouple.training.byol import BYOL, momentum_at, predictor_head
from tricouple.training.module import Views, ViewTraining


class BYOLTraining(ViewTraining):
    """Training by prediction of a slowly moving target.

    In the supervised setting the two views are two images of one class, paired as VICReg pairs
    them; with several views of an image the first two are taken.

    Args:
        encoder: Images to projections.
        views: How a batch is shown.
        head_dim: Dimension of the projections.
        hidden: Width of the predictor.
        momentum: Of the target at the start; it rises to 1 along half a cosine.
        options: As for ``Training``.
    """

    def __init__(
        self,
        encoder: nn.Module,
        views: Views,
        *,
        head_dim: int,
        hidden: int,
        momentum: float,
        **options: Any,
    ) -> None:
        super().__init__(encoder, views, **options)
        # The encoder is part of it as the online network: one set of parameters, two names.
        self.byol = BYOL(encoder, predictor_head(head_dim, hidden))
        self.momentum = momentum

    def loss(self, views: list[Tensor], identities: Tensor) -> Tensor:
        """The symmetric prediction error of the two views."""
        if len(views) > 1:
            return self.byol.loss(views[0], views[1])
        first, second = view_pairs(Identities.within_one_set(identities))
        return self.byol.loss(views[0][first], views[0][second])

    def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Let the target follow."""
        n_steps = int(self.trainer.estimated_stepping_batches)
        self.byol.update_target(momentum_at(self.global_step - 1, n_steps, self.momentum))
