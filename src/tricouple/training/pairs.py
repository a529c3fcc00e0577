"""Training on pairs: of an image and its caption, or of two texts; texts with classes too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tricouple.data.augment import Recipe, random_view
from tricouple.data.images.sets import Normalisation
from tricouple.data.pairs import PairBatch
from tricouple.losses import BothDirections
from tricouple.losses.base import ContrastiveLoss
from tricouple.training.module import Training

if TYPE_CHECKING:
    from open_clip import CLIP


class PairTraining(Training):
    """A loss between images and one caption of each, in both directions.

    Augmented images are random crops of 90 % of an image or more, as CLIP's. Decoupled decay is
    AdamW instead of Adam; the options are ``Training``'s.
    """

    def __init__(
        self,
        encoder: CLIP,
        criterion: BothDirections,
        normalisation: Normalisation,
        *,
        augment: bool,
        decoupled_decay: bool,
        **options: Any,
    ) -> None:
        super().__init__(encoder, **options)
        self.criterion = criterion
        self.recipe = Recipe(
            normalisation, scale=(0.9, 1.0), flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0
        )
        self.augment = augment
        self.decoupled_decay = decoupled_decay

    def batch_loss(self, batch: PairBatch, seed: int) -> Tensor:
        """Draw a crop and a caption for each image, compute their loss."""
        generator = torch.Generator().manual_seed(seed)
        share = self.share(len(batch.images))
        if self.augment:
            view = random_view(batch.images, self.recipe, generator, share)
        else:
            view = self.recipe.normalisation(batch.images)
        which = torch.rand(share.total, generator=generator)[share.rows]
        chosen = (which.to(batch.counts.device) * batch.counts).long()
        tokens = batch.tokens[torch.arange(len(chosen), device=chosen.device), chosen]
        view = view.to(self.dtype).contiguous(memory_format=torch.channels_last)
        towers = cast("CLIP", self.encoder)
        images = self.finite(towers.encode_image(view))
        texts = self.finite(towers.encode_text(tokens))
        loss: Tensor = self.criterion(images, texts, batch.identities)
        if self.criterion.log_factor is not None:
            self.log("sharpness", cast(float, self.criterion.sharpness), prog_bar=True)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam or AdamW; a sharpness that learns is not decayed towards its start."""
        learnt = [p for p in self.criterion.parameters() if p.requires_grad]
        weights = [p for p in self.encoder.parameters() if p.requires_grad]
        kind = torch.optim.AdamW if self.decoupled_decay else torch.optim.Adam
        return kind(
            [
                {"params": weights, "weight_decay": self.weight_decay},
                *([{"params": learnt, "weight_decay": 0.0}] if learnt else []),
            ],
            self.learning_rate,
            fused=self.device.type in ("cpu", "cuda"),
        )


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
