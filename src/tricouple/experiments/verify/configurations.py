"""Balanced classes, two-distance configurations, the simplex ETF, and averages over symmetries."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.experiments.verify.setting import Criterion


def class_labels(sizes: tuple[int, ...]) -> Tensor:
    """Labels 0, 0, …, 1, 1, … with the given numbers of samples."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


def balanced_labels(n_classes: int, per_class: int) -> Tensor:
    """Labels of K classes with b samples each."""
    return class_labels((per_class,) * n_classes)


def two_distance_gram(labels: Tensor, alpha: float, beta: float) -> Tensor:
    """The Gram matrix with α within and β across classes, shape (N, N)."""
    same = (labels[:, None] == labels).double()
    return (beta + (alpha - beta) * same).fill_diagonal_(1.0)


def etf_gram(labels: Tensor) -> Tensor:
    """The Gram matrix of collapsed classes on a simplex ETF."""
    n_classes = len(labels.unique())
    return two_distance_gram(labels, 1.0, -1 / (n_classes - 1))


def vectors(gram: Tensor) -> Tensor:
    """Rows whose inner products are a given Gram matrix, shape (N, N).

    Raises:
        ValueError: If the matrix is not positive semi-definite: no vectors have these products.
    """
    values, basis = torch.linalg.eigh(gram)
    if values[0] < -1e-9:
        raise ValueError(f"gram must be positive semi-definite, has eigenvalue {values[0]:.3g}")
    # The root of a rounding error is a hundred million times larger: cut it off.
    lengths = torch.where(values > 1e-12 * values[-1], values, 0.0).sqrt()
    return torch.mul(basis, lengths)


def loss_value(criterion: Criterion, labels: Tensor) -> Callable[[Tensor], float]:
    """Gram matrix ↦ loss of vectors that have it."""

    @torch.no_grad()
    def value(gram: Tensor) -> float:
        return float(criterion(vectors(gram), labels))

    return value


def gram(embeddings: Tensor) -> Tensor:
    """The cosines of all pairs, shape (N, N)."""
    unit = normalize(embeddings, dim=1)
    return unit @ unit.T


def two_distance_path(n_classes: int, per_class: int, count: int) -> list[tuple[float, float]]:
    """Pairs (α, β) with Δ = α − β increasing from the lowest possible value to the ETF's.

    On the path α = t, β = −t/(K−1) the Gram matrix has eigenvalues 1 − t and
    1 − t + b Δ: it exists down to the t where the latter vanishes.
    """
    lowest = -1 / (per_class * n_classes / (n_classes - 1) - 1)
    steps = torch.linspace(lowest, 1.0, count, dtype=torch.float64).tolist()
    return [(t, -t / (n_classes - 1)) for t in steps]


def random_unit(n: int, dim: int, generator: torch.Generator) -> Tensor:
    """Uniform on the sphere, shape (n, dim)."""
    return normalize(torch.randn(n, dim, generator=generator, dtype=torch.float64), dim=1)


def average_over_symmetries(tensor: Tensor, labels: Tensor) -> Tensor:
    """The mean of C∘π over all π that keep the classes together (Γ of the paper).

    With balanced classes two entries with distinct indices can be carried into each other exactly
    if the same of their indices share a class; so the mean over the (b!)^K K! permutations is the
    mean over the entries of the same pattern. The tensor has two or three axes.
    """
    return _mean_by(tensor, _pattern(labels, tensor.dim()))


def average_within_classes(tensor: Tensor, labels: Tensor) -> Tensor:
    """The mean of C∘π over the permutations of the samples of each class, also unbalanced ones."""
    key = _pattern(labels, tensor.dim())
    n_classes = int(labels.max()) + 1
    for axis in range(tensor.dim()):
        shape = [-1 if other == axis else 1 for other in range(tensor.dim())]
        key = key * n_classes + labels.reshape(shape)
    return _mean_by(tensor, key)


def _pattern(labels: Tensor, order: int) -> Tensor:
    """A number for each entry that says which of its indices are equal, or of one class."""
    n = len(labels)
    relation = (labels[:, None] == labels).long()
    relation.fill_diagonal_(2)  # (N, N): 0 other class, 1 same class, 2 same sample
    if order == 2:
        return relation
    return relation.reshape(n, n, 1) + 3 * relation.reshape(n, 1, n) + 9 * relation.reshape(1, n, n)


def _mean_by(tensor: Tensor, key: Tensor) -> Tensor:
    _, codes = torch.unique(key, return_inverse=True)
    flat = codes.flatten()
    sums = torch.zeros(int(flat.max()) + 1, dtype=tensor.dtype).index_add(0, flat, tensor.flatten())
    return (sums / torch.bincount(flat))[codes]
