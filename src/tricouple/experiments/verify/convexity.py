"""Lemmas 3.1 and 3.2: g is convex in the cost, and averaging over symmetries never increases it.

Both are tested on dense cost tensors, and on the loss under test: with ψ affine the cost is affine
in the Gram matrix of the vectors, so the loss must be convex in it too, and averages of Gram
matrices are Gram matrices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.results import NONE, Finding, Row, chart, worst, worst_of
from tricouple.experiments.verify.setting import Setting
from tricouple.report.chart import Line

Value = Callable[[Tensor], float]
Draw = Callable[[torch.Generator], Tensor]

SIZES = ((2, 3), (3, 3), (4, 2))
"""(K, b): classes and samples of each."""

SEGMENTS = 6
CURVATURE_POINTS = 2
FRACTIONS = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).tolist()
EPSILON = 0.5
SHARPNESS = 1 / EPSILON
LOSS = "Gram matrices, loss"


def chord_gaps(values: Sequence[float]) -> list[float]:
    """How far values at `FRACTIONS` of a segment lie below their chord; negative: not convex."""
    return [
        (1 - fraction) * values[0] + fraction * values[-1] - here
        for fraction, here in zip(FRACTIONS, values, strict=True)
    ]


def random_cost(n: int) -> Draw:
    """Draw cost tensors with independent normal entries."""
    return lambda generator: torch.randn((n, n, n), generator=generator, dtype=torch.float64)


def random_gram(n: int) -> Draw:
    """Draw Gram matrices of random unit vectors in a random dimension."""

    def draw(generator: torch.Generator) -> Tensor:
        dim = int(torch.randint(2, n + 1, (), generator=generator))
        return tensors.gram(tensors.random_unit(n, dim, generator))

    return draw


def dense_value(labels: Tensor) -> Value:
    """C ↦ g(C) by the dense solver."""
    target = tensors.triplet_target(labels)
    return lambda cost: float(tensors.divergence(cost, EPSILON, target))


def convexity_gaps(value: Value, draw: Draw, generator: torch.Generator) -> list[list[float]]:
    """The gaps below the chord on random segments."""
    segments = [(draw(generator), draw(generator)) for _ in range(SEGMENTS)]
    return [chord_gaps([value(torch.lerp(*ends, part)) for part in FRACTIONS]) for ends in segments]


def violation(gaps: list[list[float]]) -> float:
    """The largest excess over a chord, at the inner points; at most 0 for a convex function."""
    return worst(-gap for line in gaps for gap in line[1:-1])


def lowest_curvature(labels: Tensor, generator: torch.Generator) -> float:
    """The smallest eigenvalue of ∂²g/∂C² at a random cost, relative to the largest."""
    cost = random_cost(len(labels))(generator)
    target = tensors.triplet_target(labels)
    return tensors.lowest_direction(
        tensors.hessian(cost, EPSILON, target, tensors.imposed_marginals(target)), cost
    )[0]


def distance_from_dense(value: Value, labels: Tensor, matrices: list[Tensor]) -> float:
    """How far a function of Gram matrices is from the dense g of their linear cost.

    Other losses are convex in the Gram matrix too: this is what they fail.
    """
    dense = dense_value(labels)
    return worst(
        abs(value(matrix) - dense(tensors.triplet_cost(matrix, tensors.SHAPINGS["linear"])))
        for matrix in matrices
    )


def convexity(setting: Setting) -> Finding:
    """Random segments of dense cost tensors and of Gram matrices; the curvature everywhere."""
    generator = setting.generator("convexity")
    criterion = setting.losses.triplets(SHARPNESS)
    rows: list[Row] = []
    series: list[Line] = []
    for n_classes, per_class in SIZES:
        labels = tensors.balanced_labels(n_classes, per_class)
        n = len(labels)
        loss = tensors.loss_value(criterion, labels)
        # Random segments hardly meet the directions of small curvature: look at all directions.
        negative = worst(-lowest_curvature(labels, generator) for _ in range(CURVATURE_POINTS))
        drawn = [random_gram(n)(generator) for _ in range(SEGMENTS)]
        distance = distance_from_dense(loss, labels, drawn)
        for name, value, draw, extra in (
            ("cost tensors, dense", dense_value(labels), random_cost(n), (negative, NONE)),
            (LOSS, loss, random_gram(n), (NONE, distance)),
        ):
            gaps = convexity_gaps(value, draw, generator)
            rows.append(
                {
                    "function of": name,
                    "K": n_classes,
                    "b": per_class,
                    "segments": len(gaps),
                    "largest excess over chord": violation(gaps),
                    "mean gap in the middle": sum(g[len(g) // 2] for g in gaps) / len(gaps),
                    "negative curvature": extra[0],
                    "distance from dense": extra[1],
                }
            )
            if (n_classes, per_class) == (3, 3):
                series += [
                    Line(f"{name} {number}", tuple(FRACTIONS), tuple(line))
                    for number, line in enumerate(gaps[:3], 1)
                ]
    figure = chart(
        "Chord minus g on random segments, K = 3, b = 3",
        ("fraction of the segment", "chord − g"),
        series,
        "Six arcs that start and end at zero; above zero g is below its chord.",
    )
    residuals = ("largest excess over chord", "negative curvature", "distance from dense")
    return Finding(worst_of(rows, *residuals), rows, figure)


def symmetrisation(setting: Setting) -> Finding:
    """Random tensors, tensors of random vectors, and Gram matrices, before and after averaging."""
    generator = setting.generator("symmetrisation")
    criterion = setting.losses.triplets(SHARPNESS)
    rows: list[Row] = []
    points: dict[str, tuple[list[float], list[float]]] = {}
    for n_classes, per_class in SIZES:
        labels = tensors.balanced_labels(n_classes, per_class)
        n = len(labels)
        for name, value, draw in (
            ("random tensors, dense", dense_value(labels), random_cost(n)),
            ("log-sigmoid costs, dense", dense_value(labels), vector_cost(n)),
            (LOSS, tensors.loss_value(criterion, labels), random_gram(n)),
        ):
            drawn = [draw(generator) for _ in range(SEGMENTS)]
            values = [value(tensor) for tensor in drawn]
            averaged = [value(tensors.average_over_symmetries(tensor, labels)) for tensor in drawn]
            changes = [late - early for early, late in zip(values, averaged, strict=True)]
            distance = distance_from_dense(value, labels, drawn) if name == LOSS else NONE
            rows.append(
                {
                    "function of": name,
                    "K": n_classes,
                    "b": per_class,
                    "draws": len(drawn),
                    "largest increase": worst(changes),
                    "mean change": sum(changes) / len(changes),
                    "distance from dense": distance,
                }
            )
            before, after = points.setdefault(name, ([], []))
            before += values
            after += averaged
    highest = worst(value for before, _ in points.values() for value in before)
    figure = chart(
        "g before and after averaging over the symmetries",
        ("g(C)", "g of the average"),
        [
            *(
                Line(name, tuple(before), tuple(after), points=True)
                for name, (before, after) in points.items()
            ),
            Line("no change", (0.0, highest), (0.0, highest)),
        ],
        "Points on or below the line of no change mean that averaging did not increase g.",
    )
    return Finding(worst_of(rows, "largest increase", "distance from dense"), rows, figure)


def vector_cost(n: int) -> Draw:
    """Draw log-sigmoid costs of random vectors."""
    draw = random_gram(n)
    return lambda generator: tensors.triplet_cost(draw(generator), tensors.SHAPINGS["log-sigmoid"])
