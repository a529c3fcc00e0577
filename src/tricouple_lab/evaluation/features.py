"""Frozen features of trained encoders, of images and texts, and their geometry."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from tricouple import geometry
from tricouple_lab.data.images.files import ImageFiles
from tricouple_lab.data.images.sets import ImageSet, Normalisation, loader, stratified

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

    The model's method ``features`` takes images (n, c, h, w) to what the backbone says, (n, d), its
    method ``project`` these to the embedding, (n, d'). It is moved to the device, if one is given,
    and its mode is restored afterwards. The features are in float32 (or float64) on the CPU.

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
    return values.to("cpu", torch.promote_types(values.dtype, torch.float32))


# --- geometry -------------------------------------------------------------------------------------


GEOMETRY_SAMPLES = 4096  # pairwise measures take matrices of this size squared
MEASURES = ("nc1", "nc2_std", "nc2_deviation", "effective_rank", "alpha", "beta")  # along training


@dataclass(frozen=True)
class Geometry:
    """How features of the test set lie on the sphere; see ``tricouple.geometry``."""

    n_samples: int  # how many test samples were measured; NC1 is a sum over them
    nc1: float  # within-class scatter
    nc2_std: float  # standard deviation of the cosines between centred class means
    nc2_deviation: float  # their mean distance from −1/(K−1)
    spectrum: tuple[float, ...]  # eigenvalues of the class-mean covariance, descending
    effective_rank: float  # how many dimensions the samples fill
    alpha: float  # mean cosine within classes
    beta: float  # mean cosine across classes
    uniformity: float  # of all pairs; lower is more uniform


def measure_geometry(features: Tensor, labels: Tensor, seed: int = 0) -> Geometry | None:
    """All of ``tricouple.geometry``, on at most ``GEOMETRY_SAMPLES`` samples in class proportions.

    Returns:
        The measures; None if there are no two classes, or no two samples of one.

    Example:
        >>> measure_geometry(torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2)).alpha
        1.0
    """
    chosen = sample(labels, GEOMETRY_SAMPLES, seed)
    features, labels = features[chosen], labels[chosen]
    counts = labels.unique(return_counts=True)[1]
    if len(counts) < 2 or int(counts.max()) < 2:
        return None
    collapse = geometry.neural_collapse(features, labels)
    distances = geometry.two_distance(features, labels)
    return Geometry(
        len(features),
        collapse.nc1,
        collapse.nc2_std,
        collapse.nc2_deviation,
        tuple(collapse.spectrum.tolist()),
        geometry.effective_rank(features),
        distances.alpha,
        distances.beta,
        geometry.uniformity(features),
    )


def sample(labels: Tensor, size: int, seed: int) -> Tensor:
    """Positions of at most ``size`` samples in the proportions of their classes."""
    if len(labels) <= size:
        return torch.arange(len(labels))
    return stratified(labels, size, seed).nonzero().flatten()


@dataclass(frozen=True)
class HeldOut:
    """Labelled images that are not trained on; all of them are measured."""

    images: ImageSet
    normalisation: Normalisation

    def measure(self, encoder: nn.Module) -> dict[str, float]:
        """NC1 (a sum over the images), NC2, effective rank, α and β of their embeddings now.

        Empty if the images are too few: no two classes, or no two images of one.
        """
        features = extract(encoder, self.images, self.normalisation)
        found = measure_geometry(features.embedding, features.labels)
        return {} if found is None else {name: getattr(found, name) for name in MEASURES}


@dataclass(frozen=True)
class Modalities:
    """Geometry of image and text embeddings."""

    gap: float  # distance of the mean image from the mean text, unit embeddings: 0 for none
    alignment: float  # mean squared distance of an image and its captions (lower is better)
    image_uniformity: float  # ``log E exp(−2|z − z'|²)`` over images (lower is more uniform)
    text_uniformity: float  # the same over texts
    image_rank: float  # effective rank of the images
    text_rank: float  # effective rank of the texts
    matched: float  # mean cosine of an image and its captions
    unmatched: float  # mean cosine of an image and the captions of others


def measure_modalities(images: Tensor, texts: Tensor, owners: Tensor) -> Modalities:
    """Measure images (n, d) and texts (m, d) of a split; owners (m,) say which image a text is of.

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
        image_uniformity=geometry.uniformity(z),
        text_uniformity=geometry.uniformity(w),
        image_rank=geometry.effective_rank(z),
        text_rank=geometry.effective_rank(w),
        matched=matched,
        unmatched=(total - matched * len(w)) / others,
    )
