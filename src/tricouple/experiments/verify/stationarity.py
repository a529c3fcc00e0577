"""Proposition 3.5: the simplex ETF is stationary for every differentiable ψ."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.experiments.verify.configurations import (
    balanced_labels,
    etf_gram,
    gram,
    random_unit,
    vectors,
)
from tricouple.experiments.verify.coupling import (
    SHAPINGS,
    by_name,
    divergence,
    pair_target,
    triplet_cost,
    triplet_target,
)
from tricouple.experiments.verify.results import Finding, Row, by_row, chart, worst_of
from tricouple.experiments.verify.setting import Criterion, Setting
from tricouple.shaping import Shaping

SIZES = ((3, 3), (5, 2))
EPSILON = 0.5

# The proposition asks ψ to be differentiable, nothing else: so also one that is not monotone.
DIFFERENTIABLE: dict[str, Shaping] = SHAPINGS | {"sine": torch.sin}


def dense_neg_mmiot(shaping: Shaping) -> Criterion:
    """Neg-MMIOT for any ψ, autograd through the converged sweeps."""

    def criterion(embeddings: Tensor, labels: Tensor) -> Tensor:
        cost = triplet_cost(gram(embeddings), shaping)
        return divergence(cost, EPSILON, triplet_target(labels))

    return criterion


def dense_push_pull(shaping: Shaping) -> Criterion:
    """PushPull for any ψ, autograd through the converged sweeps."""

    def criterion(embeddings: Tensor, labels: Tensor) -> Tensor:
        cost = shaping(gram(embeddings))
        pull = divergence(cost, EPSILON, pair_target(labels))
        push = divergence(-cost, EPSILON, pair_target(labels, positive=False))
        return pull + push

    return criterion


def gradient_of(
    criterion: Callable[..., Tensor], embeddings: Tensor, labels: Tensor, **others: Tensor
) -> Tensor:
    """The gradient of a loss to the embeddings, shape (N, d)."""
    leaf = embeddings.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(criterion(leaf, labels, **others), leaf)
    return gradient


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """‖actual − expected‖ / ‖expected‖."""
    return float((actual - expected).norm() / expected.norm())


def tangential_gradient(criterion: Criterion, embeddings: Tensor, labels: Tensor) -> float:
    """The largest norm of P^⊥ ∇_{z_i} g over the samples.

    The criterion normalises its input, so its gradient at unit vectors has no radial part.
    """
    return float(gradient_of(criterion, embeddings, labels).norm(dim=1).max())


def relative_gradient(
    criterion: Criterion, frame: Tensor, elsewhere: Tensor, labels: Tensor
) -> tuple[float, float, float]:
    """The tangential gradient at a frame, elsewhere, and their ratio.

    The ratio is not a number for a loss that has no gradient elsewhere, or an infinite one.
    """
    here, there = (tangential_gradient(criterion, z, labels) for z in (frame, elsewhere))
    return here, there, here / there if 0 < there < math.inf else math.nan


def criteria(setting: Setting) -> Iterator[tuple[str, str, Criterion, Criterion]]:
    """Loss, ψ, and the loss under test beside the dense one."""
    for name, shaping in DIFFERENTIABLE.items():
        for loss, make, dense in (
            ("Neg-MMIOT", setting.losses.triplets, dense_neg_mmiot(shaping)),
            ("PushPull", setting.losses.pairs, dense_push_pull(shaping)),
        ):
            # The library refuses a ψ that is not decreasing.
            known = name in SHAPINGS
            yield loss, name, make(1 / EPSILON, shaping=by_name(name)) if known else dense, dense


def stationarity(setting: Setting) -> Finding:
    """The tangential gradient at the ETF, relative to that at random vectors."""
    generator = setting.generator("stationarity")
    rows: list[Row] = []
    for n_classes, per_class in SIZES:
        labels = balanced_labels(n_classes, per_class)
        frame = normalize(vectors(etf_gram(labels)), dim=1)
        random = random_unit(len(labels), n_classes, generator)
        for loss, shaping, criterion, dense in criteria(setting):
            here, there, ratio = relative_gradient(criterion, frame, random, labels)
            rows.append(
                {
                    "loss": loss,
                    "ψ": shaping if criterion is not dense else f"{shaping}, dense",
                    "K": n_classes,
                    "b": per_class,
                    "at the ETF": here,
                    "at random vectors": there,
                    "ratio": ratio,
                    "error of the latter": relative_error(
                        gradient_of(criterion, random, labels), gradient_of(dense, random, labels)
                    ),
                }
            )
    figure = chart(
        "Largest tangential gradient of a sample",
        "row of the table",
        "norm",
        by_row(rows, "at random vectors", "at the ETF"),
        "Two bands of points on a logarithmic axis: gradients at random vectors, and those at the "
        "ETF, which should be rounding errors.",
        log="y",
    )
    return Finding(worst_of(rows, "ratio", "error of the latter"), rows, figure)
