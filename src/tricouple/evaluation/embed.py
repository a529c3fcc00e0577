"""Embeddings of images and texts by a trained CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from tricouple.data.captions.pictures import Pictures
from tricouple.data.images.files import ImageFiles
from tricouple.data.normalisation import Normalisation

if TYPE_CHECKING:
    from open_clip import CLIP

_AT_A_TIME = 256


@torch.no_grad()
def embed_images(
    model: CLIP, images: Tensor | Pictures | ImageFiles, normalisation: Normalisation
) -> Tensor:
    """Embeddings of all images, float32 on the CPU, shape (n, d)."""
    with evaluating(model) as device:
        return torch.cat(
            [
                _kept(model.encode_image(normalisation(images[indices].to(device))))
                for indices in torch.arange(len(images)).split(_AT_A_TIME)
            ]
        )


@torch.no_grad()
def embed_texts(model: CLIP, tokens: Tensor) -> Tensor:
    """Embeddings of tokenised texts, float32 on the CPU, shape (n, d)."""
    with evaluating(model) as device:
        return torch.cat(
            [_kept(model.encode_text(part.long().to(device))) for part in tokens.split(_AT_A_TIME)]
        )


@contextmanager
def evaluating(model: nn.Module) -> Iterator[torch.device]:
    """The model in evaluation mode, and where it is; its mode is as before afterwards."""
    was_training = model.training
    model.eval()
    try:
        yield next(model.parameters()).device
    finally:
        model.train(was_training)


def _kept(values: Tensor) -> Tensor:
    return values.float().cpu()
