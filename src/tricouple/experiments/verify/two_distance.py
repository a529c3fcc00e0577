"""Lemma C.1: at a two-distance configuration the loss has a closed form that decreases in Δ."""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.experiments.verify.configurations import (
    balanced_labels,
    two_distance_gram,
    two_distance_path,
    vectors,
)
from tricouple.experiments.verify.coupling import (
    SHAPINGS,
    divergence,
    triplet_cost,
    triplet_target,
)
from tricouple.experiments.verify.results import Figure, Finding, Row, Series
from tricouple.experiments.verify.setting import Criterion, Setting
from tricouple.shaping import Shaping

SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
DENSE_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
TEMPERATURE, EPSILON = 1.0, 0.5
STEPS = 25

# Configurations off the path of `two_distance_path`: the loss may depend on α − β only.
OFF_PATH = ((0.9, 0.5), (0.4, 0.0), (0.7, 0.7))


def closed_form(
    n_classes: int,
    per_class: int,
    gap: float,
    shaping: Shaping,
    temperature: float = TEMPERATURE,
    epsilon: float = EPSILON,
) -> float:
    """The loss at Δ = `gap` for any ψ.

    ``log((|A| e^{−ψ(Δ/τ)/ε} + |A| e^{−ψ(−Δ/τ)/ε} + |R| e^{−ψ(0)/ε}) / (|A| e^{−ψ(Δ/τ)/ε}))``:
    admissible triplets A, as many reversed ones, and the rest R.
    """
    n = n_classes * per_class
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    margins = torch.tensor([gap, -gap, 0.0], dtype=torch.float64) / temperature
    right, reversed_, other = (-shaping(margins) / epsilon).tolist()
    return math.log1p(math.exp(reversed_ - right) + rest / admissible * math.exp(other - right))


def loss_at(criterion: Criterion, labels: Tensor, alpha: float, beta: float) -> float:
    """The loss under test at a two-distance configuration."""
    with torch.no_grad():
        return float(criterion(vectors(two_distance_gram(labels, alpha, beta)), labels))


def dense_at(shaping: Shaping, labels: Tensor, alpha: float, beta: float) -> float:
    """KL(P̃ ‖ P) by the dense solver at a two-distance configuration."""
    cost = triplet_cost(two_distance_gram(labels, alpha, beta), shaping, TEMPERATURE)
    return float(divergence(cost, EPSILON, triplet_target(labels)))


def closed_form_equality(setting: Setting) -> Finding:
    """The loss under test for ψ linear at several sharpnesses, the dense loss for other ψ."""
    rows: list[Row] = []
    series: list[Series] = []
    for n_classes, per_class in SIZES:
        labels = balanced_labels(n_classes, per_class)
        path = two_distance_path(n_classes, per_class, STEPS)
        for sharpness in SHARPNESSES:
            criterion = setting.losses.at_sharpness(sharpness)["Neg-MMIOT"]
            measured = [loss_at(criterion, labels, *pair) for pair in (*path, *OFF_PATH)]
            expected = [
                geometry.etf_loss(
                    n_classes,
                    per_class,
                    temperature=1.0,
                    epsilon=1 / sharpness,
                    alpha=alpha,
                    beta=beta,
                )
                for alpha, beta in (*path, *OFF_PATH)
            ]
            error = largest_relative(measured, expected)
            rows.append(_row("linear, NegMMIOT", n_classes, per_class, sharpness, error))
            if sharpness == 1 / (TEMPERATURE * EPSILON):
                gaps = tuple(alpha - beta for alpha, beta in path)
                on_path = slice(len(path))
                series += [
                    Series(f"closed form, K = {n_classes}", gaps, tuple(expected[on_path])),
                    Series(f"NegMMIOT, K = {n_classes}", gaps, tuple(measured[on_path]), True),
                ]
    for name, shaping in SHAPINGS.items():
        for n_classes, per_class in DENSE_SIZES:
            labels = balanced_labels(n_classes, per_class)
            path = two_distance_path(n_classes, per_class, STEPS // 4)
            pairs = (*path, *OFF_PATH)
            measured = [dense_at(shaping, labels, *pair) for pair in pairs]
            expected = [
                closed_form(n_classes, per_class, alpha - beta, shaping) for alpha, beta in pairs
            ]
            error = largest_relative(measured, expected)
            sharpness = 1 / (TEMPERATURE * EPSILON)
            rows.append(_row(f"{name}, dense", n_classes, per_class, sharpness, error))
    figure = Figure(
        "Loss at two-distance configurations, c = 2",
        "Δ = α − β",
        "loss",
        tuple(series),
        "For each number of classes, points of the measured loss and the curve of the closed form "
        "that they should lie on.",
    )
    return Finding(max(float(row["largest error"]) for row in rows), tuple(rows), figure)


def largest_relative(measured: list[float], expected: list[float]) -> float:
    """The largest error, relative to values above 1 and absolute below."""
    pairs = zip(measured, expected, strict=True)
    return max(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)


def monotonicity(setting: Setting) -> Finding:
    """The largest step of the loss between neighbouring Δ must be downwards."""
    rows: list[Row] = []
    series: list[Series] = []
    for n_classes, per_class in SIZES:
        labels = balanced_labels(n_classes, per_class)
        path = two_distance_path(n_classes, per_class, STEPS)
        # At a larger sharpness the loss is 0 to machine precision at the upper end.
        criterion = setting.losses.at_sharpness(2.0)["Neg-MMIOT"]
        values = [loss_at(criterion, labels, *pair) for pair in path]
        rows.append(_step_row("linear, NegMMIOT", n_classes, per_class, values))
    for name, shaping in SHAPINGS.items():
        for n_classes, per_class in DENSE_SIZES:
            labels = balanced_labels(n_classes, per_class)
            path = two_distance_path(n_classes, per_class, STEPS // 2)
            values = [dense_at(shaping, labels, *pair) for pair in path]
            rows.append(_step_row(f"{name}, dense", n_classes, per_class, values))
            if n_classes == 4:
                gaps = tuple(alpha - beta for alpha, beta in path)
                series.append(Series(name, gaps, tuple(values)))
    figure = Figure(
        "Loss against Δ for several ψ, K = 4, b = 3, τ = 1, ε = 0.5",
        "Δ = α − β",
        "loss",
        tuple(series),
        "The loss against Δ, one curve for each ψ; each should fall from left to right.",
    )
    return Finding(max(float(row["largest step"]) for row in rows), tuple(rows), figure)


def _row(name: str, n_classes: int, per_class: int, sharpness: float, error: float) -> Row:
    return {
        "ψ, loss": name,
        "K": n_classes,
        "b": per_class,
        "c": sharpness,
        "largest error": error,
    }


def _step_row(name: str, n_classes: int, per_class: int, values: list[float]) -> Row:
    steps = [late - early for early, late in pairwise(values)]
    return {
        "ψ, loss": name,
        "K": n_classes,
        "b": per_class,
        "loss at lowest Δ": values[0],
        "loss at ETF": values[-1],
        "largest step": max(steps),
    }
