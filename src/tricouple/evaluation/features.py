"""Frozen features of a trained encoder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol, cast

import torch
from torch import Tensor, nn

from tricouple.data.images.batches import loader
from tricouple.data.images.sets import ImageSet
from tricouple.data.normalisation import Normalisation
from tricouple.numeric import compute_dtype


class Encoder(Protocol):
    """A module that tells its features from the embedding that the loss sees.

    ``forward(images)`` must be ``project(features(images))``.
    """

    def features(self, images: Tensor) -> Tensor:
        """What the backbone says, before the projection: (n, c, h, w) to (n, d)."""
        ...

    def project(self, features: Tensor) -> Tensor:
        """The embedding of features: (n, d) to (n, d')."""
        ...


@dataclass(frozen=True, eq=False)
class Features:
    """What an encoder makes of a set of images.

    Attributes:
        penultimate: Before the projection, shape (n, d); probes usually look at these.
        embedding: After it, shape (n, d'); the loss shaped these.
        labels: Class of each image, shape (n,); −1 where unlabelled.
    """

    penultimate: Tensor
    embedding: Tensor
    labels: Tensor

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
        model: A module that is an ``Encoder``; its mode is restored afterwards.
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
    encoder = cast(Encoder, model)
    if device is None:
        device = next(model.parameters()).device
    was_training = model.training
    model.to(device).eval()
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    try:
        # Loaders draw from a generator even if nothing is random: not from that of a training run.
        for batch, labels in loader(images, batch_size, generator=torch.Generator()):
            features = encoder.features(normalisation(batch.to(device)))
            embedding = encoder.project(features)
            parts.append((_kept(features), _kept(embedding), labels))
    finally:
        model.train(was_training)
    penultimate, embedding, labels = (torch.cat(part) for part in zip(*parts, strict=True))
    return Features(penultimate, embedding, labels)


def _kept(values: Tensor) -> Tensor:
    return values.to("cpu", compute_dtype(values.dtype))
