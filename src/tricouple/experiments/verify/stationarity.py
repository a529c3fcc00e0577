"""Proposition 3.5: the simplex ETF is stationary for every differentiable ψ."""

from __future__ import annotations

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
    divergence,
    pair_target,
    triplet_cost,
    triplet_target,
)
from tricouple.experiments.verify.results import Figure, Finding, Row, Series
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


def tangential_gradient(criterion: Criterion, embeddings: Tensor, labels: Tensor) -> float:
    """The largest norm of P^⊥ ∇_{z_i} g over the samples.

    The criterion normalises its input, so its gradient at unit vectors has no radial part.
    """
    leaf = embeddings.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(criterion(leaf, labels), leaf)
    return float(gradient.norm(dim=1).max())


def stationarity(setting: Setting) -> Finding:
    """The tangential gradient at the ETF, relative to that at random vectors."""
    generator = setting.generator("stationarity")
    losses = setting.losses.at_sharpness(1 / EPSILON)
    criteria: dict[str, Criterion] = {
        "Neg-MMIOT, linear, library": losses["Neg-MMIOT"],
        "PushPull, linear, library": losses["PushPull"],
    }
    for name, shaping in DIFFERENTIABLE.items():
        criteria[f"Neg-MMIOT, {name}, dense"] = dense_neg_mmiot(shaping)
        criteria[f"PushPull, {name}, dense"] = dense_push_pull(shaping)
    rows: list[Row] = []
    for n_classes, per_class in SIZES:
        labels = balanced_labels(n_classes, per_class)
        frame = normalize(vectors(etf_gram(labels)), dim=1)
        random = random_unit(len(labels), n_classes, generator)
        for name, criterion in criteria.items():
            at_frame = tangential_gradient(criterion, frame, labels)
            elsewhere = tangential_gradient(criterion, random, labels)
            rows.append(
                {
                    "loss, ψ": name,
                    "K": n_classes,
                    "b": per_class,
                    "at the ETF": at_frame,
                    "at random vectors": elsewhere,
                    "ratio": at_frame / elsewhere,
                }
            )
    numbers = tuple(float(number) for number in range(1, len(rows) + 1))
    figure = Figure(
        "Largest tangential gradient of a sample",
        "row of the table",
        "norm",
        tuple(
            Series(name, numbers, tuple(float(row[name]) for row in rows), points=True)
            for name in ("at random vectors", "at the ETF")
        ),
        "Two bands of points on a logarithmic axis: gradients at random vectors, and those at the "
        "ETF, which should be rounding errors.",
        log_y=True,
    )
    return Finding(max(float(row["ratio"]) for row in rows), tuple(rows), figure)
