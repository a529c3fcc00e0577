"""The lemmas: g is convex in the cost (3.1), averaging never increases it (3.2), two distances."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.setting import (
    NONE,
    Measured,
    Row,
    Setting,
    experiment,
    worst,
    worst_of,
)
from tricouple.report.chart import Line
from tricouple.shaping import Shaping

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


@experiment(
    "Chord minus g on random segments, K = 3, b = 3",
    ("fraction of the segment", "chord − g"),
    "Six arcs that start and end at zero; above zero g is below its chord.",
    residual=("largest excess over chord", "negative curvature", "distance from dense"),
)
def convexity(setting: Setting) -> Measured:
    """Random segments of dense cost tensors and of Gram matrices; the curvature everywhere."""
    generator = setting.generator("convexity")
    criterion = setting.losses.triplets(SHARPNESS)
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
            yield {
                "function of": name,
                "K": n_classes,
                "b": per_class,
                "segments": len(gaps),
                "largest excess over chord": violation(gaps),
                "mean gap in the middle": sum(g[len(g) // 2] for g in gaps) / len(gaps),
                "negative curvature": extra[0],
                "distance from dense": extra[1],
            }
            for number, line in enumerate(gaps[:3], 1):
                if (n_classes, per_class) == (3, 3):
                    yield Line(f"{name} {number}", tuple(FRACTIONS), tuple(line))


@experiment(
    "g before and after averaging over the symmetries",
    ("g(C)", "g of the average"),
    "Points on or below the line of no change mean that averaging did not increase g.",
    residual=("largest increase", "distance from dense"),
)
def symmetrisation(setting: Setting) -> Measured:
    """Random tensors, tensors of random vectors, and Gram matrices, before and after averaging."""
    generator = setting.generator("symmetrisation")
    criterion = setting.losses.triplets(SHARPNESS)
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
            averaged = [value(tensors.average_over_symmetries(one, labels)) for one in drawn]
            changes = [late - early for early, late in zip(values, averaged, strict=True)]
            yield {
                "function of": name,
                "K": n_classes,
                "b": per_class,
                "draws": len(drawn),
                "largest increase": worst(changes),
                "mean change": sum(changes) / len(changes),
                "distance from dense": (
                    distance_from_dense(value, labels, drawn) if name == LOSS else NONE
                ),
            }
            before, after = points.setdefault(name, ([], []))
            before += values
            after += averaged
    for name, (before, after) in points.items():
        yield Line(name, tuple(before), tuple(after), points=True)
    highest = worst(value for before, _ in points.values() for value in before)
    yield Line("no change", (0.0, highest), (0.0, highest))


def vector_cost(n: int) -> Draw:
    """Draw log-sigmoid costs of random vectors."""
    draw = random_gram(n)
    return lambda generator: tensors.triplet_cost(draw(generator), tensors.SHAPINGS["log-sigmoid"])


# --- two distances: Lemma C.1, the loss has a closed form that decreases in Δ ---------------------

LINEAR_SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
SHAPED_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
STEPS = 25

# Configurations off the path of `two_distance_path`: the loss may depend on α − β only.
OFF_PATH = ((0.9, 0.5), (0.4, 0.0), (0.7, 0.7))


def closed_form(
    n_classes: int, per_class: int, gap: float, shaping: Shaping, sharpness: float = SHARPNESS
) -> float:
    """The loss at Δ = `gap` for any ψ and τ = 1.

    ``log((|A| e^{−ψ(Δ)/ε} + |A| e^{−ψ(−Δ)/ε} + |R| e^{−ψ(0)/ε}) / (|A| e^{−ψ(Δ)/ε}))``:
    admissible triplets A, as many reversed ones, and the rest R (mathematics §6).
    """
    n = n_classes * per_class
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    margins = torch.tensor([gap, -gap, 0.0], dtype=torch.float64)
    right, reversed_, other = (-shaping(margins) * sharpness).tolist()
    return math.log1p(math.exp(reversed_ - right) + rest / admissible * math.exp(other - right))


class Walk:
    """The loss under test along a path of two-distance configurations, and its closed form."""

    def __init__(
        self,
        setting: Setting,
        shaping: str,
        size: tuple[int, int],
        sharpness: float,
        pairs: list[tuple[float, float]],
    ) -> None:
        n_classes, per_class = size
        labels = tensors.balanced_labels(n_classes, per_class)
        criterion = setting.losses.triplets(sharpness, shaping=tensors.by_name(shaping))
        value = tensors.loss_value(criterion, labels)
        self.start: Row = {"ψ": shaping, "K": n_classes, "b": per_class, "c": sharpness}
        self.gaps = tuple(alpha - beta for alpha, beta in pairs)
        self.measured = tuple(value(tensors.two_distance_gram(labels, *pair)) for pair in pairs)
        self.expected = tuple(
            closed_form(n_classes, per_class, gap, tensors.SHAPINGS[shaping], sharpness)
            for gap in self.gaps
        )

    @property
    def error(self) -> float:
        """The largest error, relative to values above 1 and absolute below."""
        pairs = zip(self.measured, self.expected, strict=True)
        return worst(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)

    @property
    def step(self) -> float:
        """The largest change from one configuration to the next."""
        return worst(late - early for early, late in pairwise(self.measured))


def settings() -> Iterator[tuple[str, tuple[int, int]]]:
    """ψ and (K, b): more sizes for the linear one, whose sweeps are fast."""
    for shaping in tensors.SHAPINGS:
        for size in LINEAR_SIZES if shaping == "linear" else SHAPED_SIZES:
            yield shaping, size


@experiment(
    "Loss at two-distance configurations, c = 2",
    ("Δ = α − β", "loss"),
    "Points of the measured loss, which should lie on the curve of the closed form.",
    residual=("largest error",),
)
def closed_form_equality(setting: Setting) -> Measured:
    """The loss under test for every ψ, the linear one at several sharpnesses."""
    for shaping, size in settings():
        count = STEPS if shaping == "linear" else STEPS // 4
        path = tensors.two_distance_path(*size, count)
        for sharpness in SHARPNESSES if shaping == "linear" else (SHARPNESS,):
            walk = Walk(setting, shaping, size, sharpness, [*path, *OFF_PATH])
            yield {**walk.start, "largest error": walk.error}
            if shaping == "linear" and sharpness == SHARPNESS:
                gaps, name = walk.gaps[:count], f"K = {size[0]}"
                yield Line(f"closed form, {name}", gaps, walk.expected[:count])
                yield Line(f"measured, {name}", gaps, walk.measured[:count], points=True)


@experiment(
    "Loss against Δ for several ψ, K = 4, b = 3, τ = 1, ε = 0.5",
    ("Δ = α − β", "loss"),
    "The loss against Δ, one curve for each ψ; each should fall from left to right.",
    residual=lambda rows: worst_of(rows, "largest step") + worst_of(rows, "largest error"),
)
def monotonicity(setting: Setting) -> Measured:
    """The largest step of the loss between neighbouring Δ must be downwards."""
    for shaping, size in settings():
        # At a larger sharpness the loss is 0 to machine precision at the upper end.
        path = tensors.two_distance_path(*size, STEPS if shaping == "linear" else STEPS // 2)
        walk = Walk(setting, shaping, size, SHARPNESS, path)
        yield {
            **walk.start,
            "loss at lowest Δ": walk.measured[0],
            "loss at ETF": walk.measured[-1],
            "largest step": walk.step,
            "largest error": walk.error,
        }
        if size == SHAPED_SIZES[-1]:
            yield Line(shaping, walk.gaps, walk.measured)
