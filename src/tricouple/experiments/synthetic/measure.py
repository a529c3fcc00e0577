"""What is measured along training, and what became of a run in one word.

Measured are the geometry of the training embeddings and k-NN on held-out ones; the words, verdicts,
are defined by thresholds on the last measurement.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.evaluation.probe import knn_accuracy
from tricouple.report.numbers import directions

CURVES = (
    "loss", "nc1", "nc2_std", "nc2_deviation", "alpha", "beta", "effective_rank", "knn",
)  # fmt: skip
"""The quantities that become curves, beside ``step``."""


ETF_DEVIATION = 0.01
ETF_RATIO = 0.95
ALIVE = 0.01
NO_SPREAD = 0.01
ONE_DIRECTION = 1.5
LOSS_NOISE = 0.05

MEANINGS = {
    "etf": f"NC2 deviation ≤ {ETF_DEVIATION} and every one of the K−1 eigenvalues of the "
    f"class-mean covariance at least {ETF_RATIO:.0%} of the largest",
    "rich": "not ETF, but every direction the class means could fill (the smaller of K−1 and the "
    f"embedding dimension) has an eigenvalue of {ALIVE:.0%} of the largest or more",
    "reduced": "some of these directions are lost, not all",
    "collapsed": f"the class means fill {ONE_DIRECTION} directions or fewer (exponential of the "
    f"entropy of the eigenvalues' shares), or their total variance is below {NO_SPREAD}",
    "diverged": "numbers were no longer finite, or the loss ended above its start by more than "
    f"{LOSS_NOISE:.0%}",
}


@dataclass(frozen=True)
class Measurement:
    """One point of all curves."""

    step: int  # optimiser steps done
    # Mean loss of the batches since the last measurement; at step 0 that of the first one.
    loss: float
    nc1: float  # scatter within classes, summed over the training set
    nc2_std: float  # standard deviation of the cosines between centred class means
    nc2_deviation: float  # their mean distance from −1/(K−1)
    alpha: float  # mean cosine within classes
    beta: float  # mean cosine across classes
    effective_rank: float  # of the training embeddings
    knn: float  # accuracy of k-NN on held-out samples; the neighbours are training samples
    spectrum: tuple[float, ...]  # eigenvalues of the class-mean covariance, descending, K−1 of them

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


def judge(
    losses: Sequence[float], nc2_deviation: float, spectrum: Sequence[float], dim: int
) -> str:
    """Name the outcome of a run from its curves' ends; ``MEANINGS`` says what each word means.

    Args:
        losses: The loss along training.
        nc2_deviation: The last one.
        spectrum: The last eigenvalues of the class-mean covariance, descending, K−1 of them.
        dim: Dimension of the embeddings.

    Example:
        >>> judge([2.0, 1.0], 0.0, [0.5, 0.5, 0.5], dim=8)
        'etf'
        >>> judge([2.0, 1.0], 0.2, [0.9, 0.5, 0.001], dim=8)
        'reduced'
    """
    if not all(map(math.isfinite, [*losses, nc2_deviation, *spectrum])):
        return "diverged"
    if losses[-1] - losses[0] > LOSS_NOISE * abs(losses[0]):
        return "diverged"
    total = sum(spectrum)
    if total < NO_SPREAD or directions(spectrum) <= ONE_DIRECTION < len(spectrum):
        return "collapsed"
    if nc2_deviation <= ETF_DEVIATION and spectrum[-1] >= ETF_RATIO * spectrum[0]:
        return "etf"
    possible = min(dim, len(spectrum))
    return "rich" if spectrum[possible - 1] >= ALIVE * spectrum[0] else "reduced"
