"""Gradients: the simplex ETF is stationary for every differentiable ψ (Proposition 3.5).

Its proof rests on the envelope identity ∂g/∂C = (P̃ − P)/ε, which is tested here too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from theory import setting
from theory.setting import MARGINALS, SHAPINGS, Criterion, Measured, Row, Setting
from tricouple.ot import dense

SIZES = ((3, 3), (5, 2))  # (K, b)
EPSILON = 0.5
SWEEPS = 200  # of the dense losses

DIM = 4
BALANCED = ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2, 2))
UNBALANCED = ((3, 3, 2), (4, 3, 2), (6, 2, 2), (8, 2, 2))
GRADIENTS = ("unrolled", "implicit", "envelope")
ERRORS = ("(P̃ − P)/ε, dense", *(f"library, {gradient}" for gradient in GRADIENTS))


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
    """The tangential gradient at a frame, elsewhere, and their ratio: NaN if nothing to compare."""
    here, there = (tangential_gradient(criterion, z, labels) for z in (frame, elsewhere))
    return here, there, here / there if 0 < there < math.inf else math.nan


def criteria(given: Setting) -> Iterator[tuple[str, str, Criterion, Criterion]]:
    """Loss, ψ, and the loss under test beside the dense one."""
    epsilons: dict[str, Any] = {"epsilon_pos": EPSILON, "epsilon_neg": EPSILON}
    how: dict[str, Any] = {"temperature": 1.0, "n_iters": SWEEPS}
    # The proposition asks ψ to be differentiable, nothing else: so also one that is not monotone.
    for name, shaping in {**SHAPINGS, "sine": torch.sin}.items():
        triplets = partial(dense.neg_mmiot, epsilon=EPSILON, shaping=shaping, **how)
        pairs = partial(dense.push_pull, **epsilons, shaping=shaping, **how)
        if name in SHAPINGS:
            psi = {"shaping": setting.by_name(name)}
            yield "Neg-MMIOT", name, given.losses.triplets(1 / EPSILON, **psi), triplets
            yield "PushPull", name, given.losses.pairs(1 / EPSILON, **psi), pairs
        else:  # the library refuses a ψ that is not decreasing
            yield "Neg-MMIOT", f"{name}, dense", triplets, triplets
            yield "PushPull", f"{name}, dense", pairs, pairs


def stationarity(given: Setting) -> Measured:
    """P^⊥_{z_i} ∇_{z_i} g = 0 at the ETF: its norm, relative to that at random vectors."""
    generator = given.generator("stationarity")
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        frame = normalize(setting.vectors(setting.etf_gram(labels)), dim=1)
        random = setting.random_unit(len(labels), n_classes, generator)
        for loss, shaping, criterion, exact in criteria(given):
            here, there, ratio = relative_gradient(criterion, frame, random, labels)
            found, expected = (gradient_of(one, random, labels) for one in (criterion, exact))
            row: Row = {"loss": loss, "ψ": shaping, "K": n_classes, "b": per_class}
            row |= {"at the ETF": here, "at random vectors": there, "ratio": ratio}
            yield row | {"error of the latter": relative_error(found, expected)}


def envelope_errors(
    given: Setting, sizes: tuple[int, ...], kind: str, generator: torch.Generator
) -> Row:
    """∂g/∂C = (P̃ − P)/ε at a random cost, and the library's gradients at random vectors."""
    labels = setting.class_labels(sizes)
    n = len(labels)
    target = setting.triplet_target(labels)
    imposed = setting.imposed_marginals(target, kind)
    cost = torch.randn((n, n, n), generator=generator, dtype=torch.float64).requires_grad_()
    (exact,) = torch.autograd.grad(setting.divergence(cost, EPSILON, target, imposed), cost)
    identity = (target - setting.log_plan(cost.detach(), EPSILON, imposed).exp()) / EPSILON
    row: Row = {"class sizes": f"{sizes}"[1:-1], "marginals": kind}
    row[ERRORS[0]] = relative_error(identity, exact)
    embeddings = setting.random_unit(n, DIM, generator)
    plain = partial(dense.neg_mmiot, temperature=1.0, epsilon=EPSILON, n_iters=SWEEPS)
    exact = gradient_of(partial(plain, marginals=kind), embeddings, labels)
    for gradient in GRADIENTS:
        criterion = given.losses.triplets(1 / EPSILON, gradient=gradient, marginals=kind)
        found = gradient_of(criterion, embeddings, labels)
        row[f"library, {gradient}"] = relative_error(found, exact)
    return row


def balanced_envelope(given: Setting) -> Measured:
    """Every gradient agrees with autograd through converged dense sweeps."""
    generator = given.generator("envelope")
    for sizes in BALANCED:
        yield envelope_errors(given, sizes, "uniform", generator)


def unbalanced_envelope(given: Setting) -> Measured:
    """What remains of the identity where the marginals of P̃ are not uniform."""
    generator = given.generator("unbalanced-envelope")
    for kind, sizes in product(MARGINALS, UNBALANCED):
        yield envelope_errors(given, sizes, kind, generator)
