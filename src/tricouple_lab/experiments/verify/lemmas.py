"""The lemmas: g is convex in the cost (3.1), averaging never increases it (3.2), two distances.

And what becomes of the first two with unbalanced classes, where the paper is silent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise

import torch
from torch import Tensor

from tricouple.shaping import Shaping
from tricouple_lab.experiments.verify import tensors
from tricouple_lab.experiments.verify.setting import (
    MARGINALS,
    NONE,
    Measured,
    Row,
    Setting,
    experiment,
    listed,
    worst,
    worst_of,
)
from tricouple_lab.report.chart import Line

Value = Callable[[Tensor], float]
Draw = Callable[[torch.Generator], Tensor]
Numbers = tuple[float, ...]

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


def dense_value(labels: Tensor, kind: str = "uniform") -> Value:
    """C ↦ g(C) by the dense solver."""
    target = tensors.triplet_target(labels)
    imposed = tensors.imposed_marginals(target, kind)
    return lambda cost: float(tensors.divergence(cost, EPSILON, target, imposed))


def convexity_gaps(value: Value, draw: Draw, generator: torch.Generator) -> list[list[float]]:
    """The gaps below the chord on random segments."""
    segments = [(draw(generator), draw(generator)) for _ in range(SEGMENTS)]
    return [chord_gaps([value(torch.lerp(*ends, part)) for part in FRACTIONS]) for ends in segments]


def violation(gaps: list[list[float]]) -> float:
    """The largest excess over a chord, at the inner points; at most 0 for a convex function."""
    return worst(-gap for line in gaps for gap in line[1:-1])


def lowest_curvature(cost: Tensor, labels: Tensor, kind: str = "uniform") -> tuple[float, Tensor]:
    """The smallest eigenvalue of ∂²g/∂C² relative to the largest, and its direction as a cost."""
    target = tensors.triplet_target(labels)
    matrix = tensors.hessian(cost, EPSILON, target, tensors.imposed_marginals(target, kind))
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    direction = torch.zeros_like(cost)
    direction[tensors.distinct(len(cost), 3)] = basis[:, 0]
    return float(values[0] / values[-1]), direction


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
        costs = (random_cost(n)(generator) for _ in range(CURVATURE_POINTS))
        negative = worst(-lowest_curvature(cost, labels)[0] for cost in costs)
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


# --- unbalanced classes --------------------------------------------------------------------------

UNBALANCED_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))
POINTS = 4
PROBED = tuple(torch.linspace(-1.0, 1.0, len(FRACTIONS), dtype=torch.float64).tolist())


@experiment(
    f"g along the direction of lowest curvature, class sizes {UNBALANCED_SIZES[0]}",
    ("step from a random cost", "chord − g"),
    "Below zero g is not convex.",
    residual=lambda rows: worst(-float(row["smallest curvature"]) for row in rows),
)
def unbalanced_convexity(setting: Setting) -> Measured:
    """Lemmas 3.1 and 3.2 with uniform marginals, and with those of the target."""
    for kind in MARGINALS:
        for sizes in UNBALANCED_SIZES:
            generator = setting.generator("unbalanced-convexity")  # the same costs for both kinds
            labels = tensors.class_labels(sizes)
            value, draw = dense_value(labels, kind), random_cost(len(labels))
            costs = [draw(generator) for _ in range(POINTS)]
            lowest = [(*lowest_curvature(cost, labels, kind), cost) for cost in costs]
            curvature, direction, cost = min(lowest, key=lambda found: found[0])
            gaps = chord_gaps([value(cost + step * direction) for step in PROBED])
            averaged = (tensors.average_within_classes(cost, labels) for cost in costs)
            changes = (value(a) - value(cost) for a, cost in zip(averaged, costs, strict=True))
            yield {
                "class sizes": listed(sizes),
                "marginals": kind,
                "smallest curvature": curvature,
                "excess over chord there": worst(-gap for gap in gaps),
                "largest increase by averaging": worst(changes),
            }
            if sizes == UNBALANCED_SIZES[0]:
                yield Line(f"{kind} marginals", PROBED, tuple(gaps))


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


def walk(
    setting: Setting,
    shaping: str,
    size: tuple[int, int],
    sharpness: float,
    pairs: list[tuple[float, float]],
) -> tuple[Row, Numbers, Numbers, Numbers]:
    """A row begun; along a path of (α, β) the gap Δ, the loss under test and its closed form."""
    n_classes, per_class = size
    labels = tensors.balanced_labels(n_classes, per_class)
    criterion = setting.losses.triplets(sharpness, shaping=tensors.by_name(shaping))
    value, psi = tensors.loss_value(criterion, labels), tensors.SHAPINGS[shaping]
    gaps = tuple(alpha - beta for alpha, beta in pairs)
    measured = tuple(value(tensors.two_distance_gram(labels, *pair)) for pair in pairs)
    expected = tuple(closed_form(n_classes, per_class, gap, psi, sharpness) for gap in gaps)
    row: Row = {"ψ": shaping, "K": n_classes, "b": per_class, "c": sharpness}
    return row, gaps, measured, expected


def largest_error(measured: Numbers, expected: Numbers) -> float:
    """Relative to values above 1, and absolute below."""
    pairs = zip(measured, expected, strict=True)
    return worst(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)


def largest_step(values: Sequence[float]) -> float:
    """The largest change from one value to the next."""
    return worst(late - early for early, late in pairwise(values))


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
            pairs = [*path, *OFF_PATH]
            row, gaps, measured, expected = walk(setting, shaping, size, sharpness, pairs)
            yield row | {"largest error": largest_error(measured, expected)}
            if shaping == "linear" and sharpness == SHARPNESS:
                on_path, name = slice(count), f"K = {size[0]}"
                yield Line(f"closed form, {name}", gaps[on_path], expected[on_path])
                yield Line(f"measured, {name}", gaps[on_path], measured[on_path], points=True)


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
        row, gaps, measured, expected = walk(setting, shaping, size, SHARPNESS, path)
        yield row | {
            "loss at lowest Δ": measured[0],
            "loss at ETF": measured[-1],
            "largest step": largest_step(measured),
            "largest error": largest_error(measured, expected),
        }
        if size == SHAPED_SIZES[-1]:
            yield Line(shaping, gaps, measured)
