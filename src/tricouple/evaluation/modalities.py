"""How two modalities share a sphere: gap, alignment and uniformity."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from tricouple.geometry import effective_rank, uniformity


@dataclass(frozen=True)
class Modalities:
    """Geometry of image and text embeddings.

    Attributes:
        gap: Distance of the mean image from the mean text, unit embeddings: 0 for none.
        alignment: Mean squared distance of an image and its captions (lower is better).
        image_uniformity: ``log E exp(−2|z − z'|²)`` over images (lower is more uniform).
        text_uniformity: The same over texts.
        image_rank: Effective rank of the images.
        text_rank: Effective rank of the texts.
        matched: Mean cosine of an image and its captions.
        unmatched: Mean cosine of an image and the captions of others.
    """

    gap: float
    alignment: float
    image_uniformity: float
    text_uniformity: float
    image_rank: float
    text_rank: float
    matched: float
    unmatched: float

    def row(self) -> dict[str, float]:
        """The figures as a table row."""
        return asdict(self)


def measure_modalities(images: Tensor, texts: Tensor, owners: Tensor) -> Modalities:
    """Measure images and texts of one split.

    Args:
        images: Embeddings, shape (n, d), at least two.
        texts: Embeddings, shape (m, d).
        owners: Which image each text is of, shape (m,).

    Example:
        >>> z = torch.eye(2)
        >>> found = measure_modalities(z, z, torch.arange(2))
        >>> found.gap, found.alignment, found.matched, found.unmatched
        (0.0, 0.0, 1.0, 0.0)
    """
    z, w = (torch.nn.functional.normalize(part.float(), dim=1) for part in (images, texts))
    matched = float((z[owners] * w).sum(1).mean())
    # All pairs less the matched ones.
    total = float(z.sum(0).double() @ w.sum(0).double())
    others = len(z) * len(w) - len(w)
    return Modalities(
        gap=float((z.mean(0) - w.mean(0)).norm()),
        alignment=2 - 2 * matched,
        image_uniformity=uniformity(z),
        text_uniformity=uniformity(w),
        image_rank=effective_rank(z),
        text_rank=effective_rank(w),
        matched=matched,
        unmatched=(total - matched * len(w)) / others,
    )
