"""Training of a sentence encoder: on texts with classes, or on pairs of texts."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tricouple.losses import BothDirections
from tricouple.losses.base import ContrastiveLoss
from tricouple.training.module import Training


class TextTraining(Training):
    """A loss of the embeddings of texts and their classes; of pairs, in both directions.

    A batch is (inputs, classes), or (inputs, inputs of what belongs to them, identities). The
    options are ``Training``'s.
    """

    def __init__(self, encoder: nn.Module, criterion: ContrastiveLoss, **options: Any) -> None:
        super().__init__(encoder, **options)
        self.criterion = criterion
        self.both_directions = BothDirections(criterion)

    def batch_loss(self, batch: tuple[Any, ...], seed: int) -> Tensor:
        """The loss of a batch; nothing is drawn."""
        *columns, identities = batch
        embeddings = [self.finite(self.encoder(column)) for column in columns]
        if len(embeddings) == 1:
            loss: Tensor = self.criterion(embeddings[0], identities)
        else:
            loss = self.both_directions(*embeddings, identities)
        return loss
