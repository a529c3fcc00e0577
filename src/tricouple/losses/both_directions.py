"""A loss across two modalities in both directions, with a sharpness that may learn."""

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tricouple.batch import Call
from tricouple.checks import Labels
from tricouple.groups import Processes
from tricouple.losses.base import ContrastiveLoss
from tricouple.numeric import number_of

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
        >>> images, texts = torch.randn(4, 3), torch.randn(4, 3)
        >>> BothDirections(InfoNCE())(images, texts).shape
        torch.Size([])
    """

    def __init__(self, criterion: ContrastiveLoss, *, learn: bool = False) -> None:
        super().__init__()
        self.criterion = criterion
        self.log_factor = nn.Parameter(torch.zeros(())) if learn else None
        if criterion.scale is None or criterion.sharpness is None:
            if learn:
                raise ValueError(f"{type(criterion).__name__} has no temperature that could learn")
            self.initial = self.initial_sharpness = 1.0
        else:
            self.initial = number_of(getattr(criterion, criterion.scale))
            self.initial_sharpness = criterion.sharpness

    def forward(
        self,
        images: Tensor,
        texts: Tensor,
        identities: Labels | None = None,
        *,
        sharpness: Tensor | None = None,
        pairs: Tensor | None = None,
        weights: Tensor | None = None,
    ) -> Tensor:
        """The loss of embeddings, (n, d); identities, (n,), are equal for texts of one image.

        Without identities and ``pairs``, text i belongs to image i alone.
        ``sharpness`` is the c of this call, where the model itself learns it. ``pairs``, (images,
        texts), replaces identities; ``weights`` are those of row i on both sides.
        """
        if weights is not None and len(images) != len(texts):
            raise ValueError(f"weights need one text per image, got {len(texts)} and {len(images)}")
        if identities is None and pairs is None:
            if len(images) != len(texts):
                raise ValueError(
                    "identities are missing: without them text i belongs to image i, but there "
                    f"are {len(images)} images and {len(texts)} texts"
                )
            processes = Processes.of(self.criterion.group)
            first = 0 if processes is None else processes.before(len(images))
            identities = torch.arange(first, first + len(images), device=images.device)
        temperature = None
        if sharpness is not None:
            temperature = self.initial * self.initial_sharpness / sharpness
        elif self.log_factor is not None:
            limit = math.log(max(MAX_SHARPNESS / self.initial_sharpness, 1.0))
            # The parameter itself, as in CLIP: a clamp in the graph would leave no gradient that
            # could bring it down again.
            with torch.no_grad():
                self.log_factor.clamp_(max=limit)
            temperature = self.initial * torch.exp(-self.log_factor)
        call = Call(images, identities, None, texts, identities, None, pairs, weights)
        return self.criterion.of_call(call, temperature, both=True)

    if TYPE_CHECKING:  # for editors and type checkers
        __call__ = forward

    @property
    def sharpness(self) -> float | None:
        """C = 1/(τε), now; None for a loss without one."""
        if self.log_factor is None:
            return self.criterion.sharpness
        learnt = self.initial_sharpness * math.exp(float(self.log_factor.detach()))
        return min(learnt, max(MAX_SHARPNESS, self.initial_sharpness))
