"""Frozen features of trained encoders: of images, and of images and texts by CLIP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tricouple import checks
from tricouple.data.images.files import ImageFiles
from tricouple.data.images.sets import ImageSet, Normalisation, loader
from tricouple.numeric import compute_dtype

if TYPE_CHECKING:
    from open_clip import CLIP

_AT_A_TIME = 256


@dataclass(frozen=True, eq=False)
class Features:
    """What an encoder makes of a set of images."""

    penultimate: Tensor  # before the projection, shape (n, d); probes usually look at these
    embedding: Tensor  # after it, shape (n, d'); the loss shaped these
    labels: Tensor  # class of each image, shape (n,); −1 where unlabelled

    def kinds(self) -> Iterator[tuple[str, Tensor]]:
        """Both kinds of features with their names."""
        yield "penultimate", self.penultimate
        yield "embedding", self.embedding


@torch.no_grad()
def extract(
    model: nn.Module,
    images: ImageSet,
    normalisation: Normalisation,
    *,
    batch_size: int = 256,
    device: torch.device | str | None = None,
) -> Features:
    """Both kinds of features of all images, in one pass and in evaluation mode.

    Args:
        model: Its method ``features`` takes images (n, c, h, w) to what the backbone says, (n, d),
            its method ``project`` these to the embedding, (n, d'). Its mode is restored afterwards.
        images: The images, in the order of the result.
        normalisation: As in training.
        batch_size: Images at a time.
        device: Where to compute; the model is moved there. By default, where it is.

    Returns:
        Features in float32 (or float64) on the CPU.

    Example:
        >>> class Mean(nn.Module):
        ...     def features(self, images):
        ...         return images.mean((2, 3))
        ...
        ...     def project(self, features):
        ...         return features.sum(1, keepdim=True)
        >>> three = ImageSet(torch.zeros(3, 1, 4, 4, dtype=torch.uint8))
        >>> extract(Mean(), three, Normalisation((0.0,), (1.0,), size=4), device="cpu").penultimate
        tensor([[0.],
                [0.],
                [0.]])
    """
    for method in ("features", "project"):
        if not callable(getattr(model, method, None)):
            raise TypeError(f"model has no method {method}(), which an Encoder needs")
    encoder = cast(Any, model)
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    with evaluating(model, device) as (place, dtype):
        for batch, labels in loader(images, batch_size):
            features = encoder.features(normalisation(batch.to(place)).to(dtype))
            embedding = encoder.project(features)
            parts.append((_kept(features), _kept(embedding), labels))
    penultimate, embedding, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Features(penultimate, embedding, labels)


@torch.no_grad()
def embed_images(model: CLIP, images: Tensor | ImageFiles, normalisation: Normalisation) -> Tensor:
    """Embeddings of all images, float32 on the CPU, shape (n, d)."""
    with evaluating(model) as (device, dtype):
        return torch.cat(
            [
                _kept(model.encode_image(normalisation(images[indices].to(device)).to(dtype)))
                for indices in torch.arange(len(images)).split(_AT_A_TIME)
            ]
        )


@torch.no_grad()
def embed_texts(model: CLIP, tokens: Tensor) -> Tensor:
    """Embeddings of tokenised texts, float32 on the CPU, shape (n, d)."""
    with evaluating(model) as (device, _):
        return torch.cat(
            [_kept(model.encode_text(part.long().to(device))) for part in tokens.split(_AT_A_TIME)]
        )


@contextmanager
def evaluating(
    model: nn.Module, device: torch.device | str | None = None
) -> Iterator[tuple[torch.device | str, torch.dtype]]:
    """The model in evaluation mode, where it is or is moved to, and its dtype.

    Later its mode is as before.
    """
    first = next(model.parameters(), torch.empty(0))
    place = first.device if device is None else device
    was_training = model.training
    model.to(place).eval()
    try:
        yield place, first.dtype
    finally:
        model.train(was_training)


def _kept(values: Tensor) -> Tensor:
    return values.to("cpu", compute_dtype(values.dtype))


def check_features(name: str, features: Tensor) -> None:
    """Require a finite matrix, one row a sample."""
    checks.matrix(name, features)
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"{name} must be finite, found NaN or infinity: the encoder diverged")


def check_labelled(part: str, features: Tensor, labels: Tensor) -> None:
    """Require features and one label each; ``part`` is train or test."""
    check_features(f"{part}_features", features)
    checks.identities(f"{part}_labels", labels, len(features), features.device)


def check_same_width(train: Tensor, test: Tensor) -> None:
    """Require that training and test features come from the same encoder."""
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"test_features have {test.shape[1]} dimensions, train_features {train.shape[1]}"
        )
