"""Gradients: the simplex ETF is stationary for every differentiable ψ (Proposition 3.5).

Its proof rests on the envelope identity ∂g/∂C = (P̃ − P)/ε, which is tested here too.
"""

from __future__ import annotations

from functools import partial
from itertools import product

import torch
from torch.nn.functional import normalize

from theory import setting
from theory.setting import MARGINALS, NOT, SHAPINGS, Measured, Row, Setting, statement
from tricouple.ot import dense

SIZES = ((3, 3), (5, 2))  # (K, b)
EPSILON = 0.5
HOW = {"temperature": 1.0, "n_iters": 200}  # of the dense losses
EPSILONS = {"epsilon_pos": EPSILON, "epsilon_neg": EPSILON}

DIM = 4
BALANCED = ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2, 2))
UNBALANCED = ((3, 3, 2), (4, 3, 2), (6, 2, 2), (8, 2, 2))
GRADIENTS = ("unrolled", "implicit", "envelope")
IDENTITY = "(P̃ − P)/ε, dense"


@statement("Proposition 3.5", "tangential gradient over that at random vectors, or its error", 1e-9,
           "ratio", "error of the latter")  # fmt: skip
def stationarity(given: Setting) -> Measured:
    """At the ETF P^⊥_z ∇_z g = 0 for differentiable ψ, also for PushPull."""
    generator = given.generator("stationarity")
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        frame = normalize(setting.vectors(setting.etf_gram(labels)), dim=1)
        random = setting.random_unit(len(labels), n_classes, generator)
        # The library refuses a ψ that is not decreasing.
        for name, psi in {**SHAPINGS, "sine, dense": torch.sin}.items():
            triplets = partial(dense.neg_mmiot, epsilon=EPSILON, shaping=psi, **HOW)
            pairs = partial(dense.push_pull, **EPSILONS, shaping=psi, **HOW)
            found = {"Neg-MMIOT": (triplets, triplets), "PushPull": (pairs, pairs)}
            if name in SHAPINGS:
                found = {"Neg-MMIOT": (given.triplets(1 / EPSILON, shaping=psi), triplets),
                         "PushPull": (given.pairs(1 / EPSILON, shaping=psi), pairs)}  # fmt: skip
            for loss, (one, exact) in found.items():
                here = setting.largest_gradient(one, frame, labels)
                there = setting.largest_gradient(one, random, labels)
                row = {"loss": loss, "ψ": name, "K": n_classes, "b": per_class}
                row |= {"at the ETF": float(here), "at random vectors": float(there)}
                both = (
                    setting.gradient_of(criterion, random, labels) for criterion in (one, exact)
                )
                row |= {"ratio": float(here / there)}
                yield row | {"error of the latter": setting.relative_error(*both)}


def envelope_errors(
    given: Setting, sizes: tuple[int, ...], kind: str, generator: torch.Generator
) -> Row:
    """∂g/∂C = (P̃ − P)/ε at a random cost, and the library's gradients at random vectors."""
    labels = setting.class_labels(sizes)
    n, target = len(labels), setting.triplet_target(labels)
    cost = torch.randn((n, n, n), generator=generator, dtype=torch.float64).requires_grad_()
    plan = setting.log_plan(cost, EPSILON, target, kind)
    (exact,) = torch.autograd.grad(setting.divergence(target, plan), cost)
    identity = (target - plan.detach().exp()) / EPSILON
    row = {"class sizes": f"{sizes}"[1:-1], "marginals": kind}
    row |= {IDENTITY: setting.relative_error(identity, exact)}
    embeddings = setting.random_unit(n, DIM, generator)
    plain = partial(dense.neg_mmiot, epsilon=EPSILON, marginals=kind, **HOW)
    exact = setting.gradient_of(plain, embeddings, labels)
    for gradient in GRADIENTS:
        criterion = given.triplets(1 / EPSILON, gradient=gradient, marginals=kind)
        found = setting.gradient_of(criterion, embeddings, labels)
        row[f"library, {gradient}"] = setting.relative_error(found, exact)
    return row


@statement("proof of Proposition 3.5", "largest relative error of a gradient", 1e-8,
           IDENTITY, *(f"library, {gradient}" for gradient in GRADIENTS))  # fmt: skip
def envelope(given: Setting) -> Measured:
    """With balanced classes ∂g/∂C = (P̃ − P)/ε, and so are the library's gradients."""
    generator = given.generator("envelope")
    return (envelope_errors(given, sizes, "uniform", generator) for sizes in BALANCED)


@statement(NOT, "largest relative error of the envelope gradient", None, "library, envelope")
def unbalanced_envelope(given: Setting) -> Measured:
    """With unbalanced classes, is ∂g/∂C = (P̃ − P)/ε?"""
    generator = given.generator("unbalanced-envelope")
    for kind, sizes in product(MARGINALS, UNBALANCED):
        yield envelope_errors(given, sizes, kind, generator)
