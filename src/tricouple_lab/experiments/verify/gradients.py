"""Gradients: the simplex ETF is stationary for every differentiable ψ (Proposition 3.5).

Its proof rests on the envelope identity ∂g/∂C = (P̃ − P)/ε, which is tested here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple.shaping import Shaping
from tricouple_lab.experiments.verify import tensors
from tricouple_lab.experiments.verify.setting import (
    MARGINALS,
    Criterion,
    Measured,
    Row,
    Setting,
    by_row,
    experiment,
    listed,
)

SIZES = ((3, 3), (5, 2))
EPSILON = 0.5

DIM = 4
BALANCED = ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2, 2))
UNBALANCED = ((3, 3, 2), (4, 3, 2), (6, 2, 2), (8, 2, 2))
GRADIENTS = ("unrolled", "implicit", "envelope")

# The proposition asks ψ to be differentiable, nothing else: so also one that is not monotone.
DIFFERENTIABLE: dict[str, Shaping] = tensors.SHAPINGS | {"sine": torch.sin}


def dense_neg_mmiot(
    shaping: Shaping, embeddings: Tensor, labels: Tensor, imposed: list[Tensor] | None = None
) -> Tensor:
    """Neg-MMIOT for any ψ, autograd through the converged sweeps."""
    cost = tensors.triplet_cost(tensors.gram(embeddings), shaping)
    return tensors.divergence(cost, EPSILON, tensors.triplet_target(labels), imposed)


def dense_push_pull(shaping: Shaping, embeddings: Tensor, labels: Tensor) -> Tensor:
    """PushPull for any ψ, autograd through the converged sweeps."""
    cost = shaping(tensors.gram(embeddings))
    pull = tensors.divergence(cost, EPSILON, tensors.pair_target(labels))
    return pull + tensors.divergence(-cost, EPSILON, tensors.pair_target(labels, positive=False))


def gradient_of(
    criterion: Callable[..., Tensor], embeddings: Tensor, labels: Tensor, **others: Tensor
) -> Tensor:
    """The gradient of a loss to the embeddings, shape (N, d)."""
    leaf = embeddings.clone().requires_grad_()
    return torch.autograd.grad(criterion(leaf, labels, **others), leaf)[0]


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
            ("Neg-MMIOT", setting.losses.triplets, partial(dense_neg_mmiot, shaping)),
            ("PushPull", setting.losses.pairs, partial(dense_push_pull, shaping)),
        ):
            if name in tensors.SHAPINGS:
                yield loss, name, make(1 / EPSILON, shaping=tensors.by_name(name)), dense
            else:  # the library refuses a ψ that is not decreasing
                yield loss, f"{name}, dense", dense, dense


@experiment(
    "Largest tangential gradient of a sample",
    ("row of the table", "norm"),
    "Two bands of points: at random vectors, and at the ETF, which should be rounding errors.",
    log="y",
    residual=("ratio", "error of the latter"),
    lines=lambda rows: by_row(rows, "at random vectors", "at the ETF"),
)
def stationarity(setting: Setting) -> Measured:
    """The tangential gradient at the ETF, relative to that at random vectors."""
    generator = setting.generator("stationarity")
    for n_classes, per_class in SIZES:
        labels = tensors.balanced_labels(n_classes, per_class)
        frame = normalize(tensors.vectors(tensors.etf_gram(labels)), dim=1)
        random = tensors.random_unit(len(labels), n_classes, generator)
        for loss, shaping, criterion, dense in criteria(setting):
            here, there, ratio = relative_gradient(criterion, frame, random, labels)
            actual, exact = (gradient_of(one, random, labels) for one in (criterion, dense))
            yield {
                "loss": loss,
                "ψ": shaping,
                "K": n_classes,
                "b": per_class,
                "at the ETF": here,
                "at random vectors": there,
                "ratio": ratio,
                "error of the latter": relative_error(actual, exact),
            }


def envelope_errors(
    setting: Setting, sizes: tuple[int, ...], kind: str, generator: torch.Generator
) -> Row:
    """One row: the identity on a random cost, and the library's gradients on random vectors."""
    labels = tensors.class_labels(sizes)
    n = len(labels)
    target = tensors.triplet_target(labels)
    imposed = tensors.imposed_marginals(target, kind)
    cost = torch.randn((n, n, n), generator=generator, dtype=torch.float64).requires_grad_()
    (exact,) = torch.autograd.grad(tensors.divergence(cost, EPSILON, target, imposed), cost)
    identity = (target - tensors.solve(cost.detach(), EPSILON, imposed).exp()) / EPSILON
    row: Row = {"class sizes": listed(sizes), "marginals": kind}
    row["(P̃ − P)/ε, dense"] = relative_error(identity, exact)
    embeddings = tensors.random_unit(n, DIM, generator)
    dense = partial(dense_neg_mmiot, tensors.SHAPINGS["linear"], imposed=imposed)
    exact = gradient_of(dense, embeddings, labels)
    for gradient in GRADIENTS:
        criterion = setting.losses.triplets(1 / EPSILON, gradient=gradient, marginals=kind)
        actual = gradient_of(criterion, embeddings, labels)
        row[f"library, {gradient}"] = relative_error(actual, exact)
    return row


ERRORS = ("(P̃ − P)/ε, dense", *(f"library, {gradient}" for gradient in GRADIENTS))
_envelope = partial(
    experiment,
    axes=("row of the table", "relative error"),
    log="y",
    lines=lambda rows: by_row(rows, *ERRORS),
)


@_envelope("Balanced classes: relative error of the gradients", residual=ERRORS)
def balanced_envelope(setting: Setting) -> Measured:
    """Every gradient agrees with autograd through the converged dense sweeps."""
    generator = setting.generator("envelope")
    for sizes in BALANCED:
        yield envelope_errors(setting, sizes, "uniform", generator)


@_envelope("Unbalanced classes: relative error of the gradients", residual=["library, envelope"])
def unbalanced_envelope(setting: Setting) -> Measured:
    """What remains of the identity where the marginals of P̃ are not uniform."""
    generator = setting.generator("unbalanced-envelope")
    for kind in MARGINALS:
        for sizes in UNBALANCED:
            yield envelope_errors(setting, sizes, kind, generator)
