"""Training of an image and a text encoder on pairs: a loss in both directions, in Lightning."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tricouple.data.augment import Recipe, random_view
from tricouple.data.captions import PairBatch
from tricouple.data.normalisation import Normalisation
from tricouple.losses.base import ContrastiveLoss
from tricouple.training.module import Training

if TYPE_CHECKING:
    from open_clip import CLIP

# What scales the similarities in each loss; the sharpness is inverse to it.
_SCALES = ("temperature", "epsilon", "regularisation")
MAX_SHARPNESS = 100.0  # CLIP's own limit of its learnable scale


class BothDirections(nn.Module):
    """``½ loss(images → texts) + ½ loss(texts → images)``.

    Args:
        criterion: A loss.
        learn: Whether its temperature (ε of Standard OT and Fused-Gromov OT, the regularisation of
            DBOT) is a parameter: the logarithm of its inverse learns, as in CLIP, and the sharpness
            stays at or below 100, or where it started if that is more.

    Example:
        >>> from tricouple import InfoNCE
        >>> images, texts, ids = torch.randn(4, 3), torch.randn(4, 3), torch.arange(4)
        >>> BothDirections(InfoNCE())(images, texts, ids).shape
        torch.Size([])
    """

    def __init__(self, criterion: ContrastiveLoss, *, learn: bool = False) -> None:
        super().__init__()
        self.criterion = criterion
        self.scale = next(name for name in _SCALES if hasattr(criterion, name))
        self.initial = float(getattr(criterion, self.scale))
        self.log_factor = nn.Parameter(torch.zeros(())) if learn else None
        # The other regularisation, if the loss has two, divides the sharpness as well.
        other = 1.0
        if self.scale == "temperature":
            other = float(getattr(criterion, "epsilon", getattr(criterion, "epsilon_pos", 1.0)))
        self.initial_sharpness = 1 / (self.initial * other)

    def forward(self, images: Tensor, texts: Tensor, identities: Tensor) -> Tensor:
        """The loss of embeddings, (n, d); identities, (n,), are equal for texts of one image."""
        if self.log_factor is not None:
            limit = math.log(max(MAX_SHARPNESS / self.initial_sharpness, 1.0))
            # The parameter itself, as in CLIP: a clamp in the graph would leave no gradient that
            # could bring it down again.
            with torch.no_grad():
                self.log_factor.clamp_(max=limit)
            setattr(self.criterion, self.scale, self.initial * torch.exp(-self.log_factor))
        there = self.criterion(images, identities, ref_emb=texts, ref_labels=identities)
        back = self.criterion(texts, identities, ref_emb=images, ref_labels=identities)
        both: Tensor = (there + back) / 2
        return both

    def sharpness(self) -> float:
        """C = 1/(τε), now."""
        if self.log_factor is None:
            return self.initial_sharpness
        learnt = self.initial_sharpness * math.exp(float(self.log_factor.detach()))
        return min(learnt, max(MAX_SHARPNESS, self.initial_sharpness))


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
        if self.augment:
            view = random_view(batch.images, self.recipe, generator)
        else:
            view = self.recipe.normalisation(batch.images)
        share = torch.rand(len(batch.counts), generator=generator).to(batch.counts.device)
        chosen = (share * batch.counts).long()
        tokens = batch.tokens[torch.arange(len(chosen), device=chosen.device), chosen]
        view = view.contiguous(memory_format=torch.channels_last)
        towers = cast("CLIP", self.encoder)
        images = self.finite(towers.encode_image(view))
        texts = self.finite(towers.encode_text(tokens))
        loss: Tensor = self.criterion(images, texts, batch.identities)
        if self.criterion.log_factor is not None:
            self.log("sharpness", self.criterion.sharpness(), prog_bar=True)
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
