"""What is measured along training: geometry of the training embeddings, k-NN on held-out ones."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.evaluation.knn import knn_accuracy

CURVES = (
    "loss", "nc1", "nc2_std", "nc2_deviation", "alpha", "beta", "effective_rank", "knn",
)  # fmt: skip
"""The quantities that become curves, beside ``step``."""


@dataclass(frozen=True)
class Measurement:
    """One point of all curves.

    Attributes:
        step: Optimiser steps done.
        loss: Mean loss of the batches since the last measurement; at step 0 that of the first one.
        nc1: Scatter within classes, summed over the training set.
        nc2_std: Standard deviation of the cosines between centred class means.
        nc2_deviation: Their mean distance from −1/(K−1).
        alpha: Mean cosine within classes.
        beta: Mean cosine across classes.
        effective_rank: Of the training embeddings.
        knn: Accuracy of k-NN on held-out samples; the neighbours are training samples.
        spectrum: Eigenvalues of the class-mean covariance, descending, K−1 of them.
    """

    step: int
    loss: float
    nc1: float
    nc2_std: float
    nc2_deviation: float
    alpha: float
    beta: float
    effective_rank: float
    knn: float
    spectrum: tuple[float, ...]

    @property
    def finite(self) -> bool:
        """Whether training still has numbers."""
        return math.isfinite(self.loss) and math.isfinite(self.nc1)


def measure(
    step: int, loss: float, train: tuple[Tensor, Tensor], held_out: tuple[Tensor, Tensor]
) -> Measurement:
    """Measure embeddings (n, d) with their labels (n,); NaN throughout if they are not finite.

    Example:
        >>> z, labels = torch.eye(3).repeat_interleave(20, 0), torch.arange(3).repeat_interleave(20)
        >>> point = measure(0, 1.0, (z, labels), (z, labels))
        >>> point.nc1, point.knn, len(point.spectrum)
        (0.0, 1.0, 2)
    """
    embeddings, labels = train
    if not bool(torch.isfinite(embeddings).all() & torch.isfinite(held_out[0]).all()):
        n_values = len(torch.unique(labels)) - 1
        return Measurement(step, loss, *(math.nan,) * 7, (math.nan,) * n_values)
    collapse = geometry.neural_collapse(embeddings, labels)
    distances = geometry.two_distance(embeddings, labels)
    return Measurement(
        step=step,
        loss=loss,
        nc1=collapse.nc1,
        nc2_std=collapse.nc2_std,
        nc2_deviation=collapse.nc2_deviation,
        alpha=distances.alpha,
        beta=distances.beta,
        effective_rank=geometry.effective_rank(embeddings),
        knn=knn_accuracy(embeddings, labels, *held_out, k=min(20, len(labels))),
        spectrum=tuple(collapse.spectrum.tolist()),
    )
