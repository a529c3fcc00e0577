"""The geometry of embeddings: of one set, of images held out of training, of two modalities."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from tricouple import geometry
from tricouple.data.images.sets import ImageSet, Normalisation
from tricouple.data.images.split import stratified
from tricouple.evaluation.features import extract

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
    """Positions of at most ``size`` samples in the proportions of their classes.

    Example:
        >>> sample(torch.tensor([0, 0, 1, 1, 1, 1]), 3, seed=0).shape
        torch.Size([3])
    """
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
        image_uniformity=geometry.uniformity(z),
        text_uniformity=geometry.uniformity(w),
        image_rank=geometry.effective_rank(z),
        text_rank=geometry.effective_rank(w),
        matched=matched,
        unmatched=(total - matched * len(w)) / others,
    )
