"""The lemmas: g is convex in the cost (3.1), averaging never increases it (3.2), two distances.

And what becomes of the first two with unbalanced classes, which the paper leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise, product

import torch
from torch import Tensor

from theory import setting
from theory.setting import MARGINALS, NONE, SHAPINGS, Measured, Row, Setting, worst
from tricouple.ot import dense
from tricouple.shaping import Shaping

Value = Callable[[Tensor], float]
Draw = Callable[[torch.Generator], Tensor]

SIZES = ((2, 3), (3, 3), (4, 2))  # (K, b)
SEGMENTS = 6
CURVATURE_POINTS = 2
FRACTIONS = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).tolist()
EPSILON = 0.5
SHARPNESS = 1 / EPSILON
LOSS = "Gram matrices, loss"
CONVEXITY = ("largest excess over chord", "negative curvature", "distance from dense")


def chord_gaps(values: Sequence[float]) -> list[float]:
    """How far values at `FRACTIONS` of a segment lie below their chord; negative: not convex."""
    return [
        (1 - fraction) * values[0] + fraction * values[-1] - here
        for fraction, here in zip(FRACTIONS, values, strict=True)
    ]


def random_cost(n: int, generator: torch.Generator) -> Tensor:
    """Draw a cost tensor with independent normal entries."""
    return torch.randn((n, n, n), generator=generator, dtype=torch.float64)


def random_gram(n: int, generator: torch.Generator) -> Tensor:
    """Draw the Gram matrix of random unit vectors in a random dimension."""
    dim = int(torch.randint(2, n + 1, (), generator=generator))
    return setting.gram(setting.random_unit(n, dim, generator))


def vector_cost(n: int, generator: torch.Generator) -> Tensor:
    """Draw the log-sigmoid costs of random vectors."""
    return setting.triplet_cost(random_gram(n, generator), SHAPINGS["log-sigmoid"])


def dense_value(labels: Tensor, kind: str = "uniform") -> Value:
    """C ↦ g(C) by the dense solver."""
    target = setting.triplet_target(labels)
    imposed = setting.imposed_marginals(target, kind)
    return lambda cost: float(setting.divergence(cost, EPSILON, target, imposed))


def convexity_gaps(value: Value, draw: Draw, generator: torch.Generator) -> list[list[float]]:
    """The gaps below the chord on random segments."""
    segments = [(draw(generator), draw(generator)) for _ in range(SEGMENTS)]
    return [chord_gaps([value(torch.lerp(*ends, part)) for part in FRACTIONS]) for ends in segments]


def violation(gaps: list[list[float]]) -> float:
    """The largest excess over a chord, at the inner points; at most 0 for a convex function."""
    return worst(-gap for line in gaps for gap in line[1:-1])


def hessian(cost: Tensor, epsilon: float, target: Tensor, imposed: Sequence[Tensor]) -> Tensor:
    """∂²g/∂C², over the entries with distinct indices in the order of ``cost[distinct(N, 3)]``.

    Along a change D of the cost, log P changes at the rate ℓ = −D/ε + u_i + v_j + w_k, where u, v
    and w keep the marginals. Differentiating the marginal constraints twice gives

        d²g = Σ_ijk P_ijk W_ijk ℓ_ijk²,   W_ijk = ω¹_i + ω²_j + ω³_k,   J ω = marginals of P̃,

    with J the 3N×3N matrix of the pair marginals of P. If P̃ has the imposed marginals, then
    ω = (1, 0, 0) is a solution, W = 1, and g is convex: Lemma 3.1. If not, W may be negative
    somewhere, and g need not be convex.
    """
    n = len(cost)
    allowed = setting.distinct(n, 3)
    plan = setting.log_plan(cost, epsilon, imposed).exp()[allowed]  # (E,)
    places = allowed.nonzero() + torch.tensor([0, n, 2 * n])  # (E, 3)
    touches = torch.zeros(len(plan), 3 * n, dtype=torch.float64).scatter_(1, places, 1.0)  # (E, 3N)
    # J is singular: constants can move between u, v and w without a change of P.
    inverse = torch.linalg.pinv(touches.T @ (plan[:, None] * touches), hermitian=True)
    weights = touches @ (inverse @ torch.cat(setting.marginals(target)))  # W
    kept = touches @ inverse @ (touches.T * plan)
    rates = kept - torch.eye(len(plan), dtype=torch.float64)  # ε ℓ for each D
    return torch.mm(rates.T, (plan * weights)[:, None] * rates) / epsilon**2


def lowest_curvature(cost: Tensor, labels: Tensor, kind: str = "uniform") -> tuple[float, Tensor]:
    """The smallest eigenvalue of ∂²g/∂C² relative to the largest, and its direction as a cost."""
    target = setting.triplet_target(labels)
    matrix = hessian(cost, EPSILON, target, setting.imposed_marginals(target, kind))
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    direction = torch.zeros_like(cost)
    direction[setting.distinct(len(cost), 3)] = basis[:, 0]
    return float(values[0] / values[-1]), direction


def distance_from_dense(value: Value, labels: Tensor, matrices: list[Tensor]) -> float:
    """How far a function of Gram matrices is from the dense g: other convex losses fail this."""
    exact = partial(dense.neg_mmiot, temperature=1.0, epsilon=EPSILON, n_iters=200)
    plain = setting.loss_value(exact, labels)
    return worst(abs(value(matrix) - plain(matrix)) for matrix in matrices)


def convexity(given: Setting) -> Measured:
    """g((1 − t)C + tC') ≤ (1 − t)g(C) + t g(C') on random segments, and ∂²g/∂C² ≥ 0."""
    generator = given.generator("convexity")
    criterion = given.losses.triplets(SHARPNESS)
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        n = len(labels)
        loss = setting.loss_value(criterion, labels)
        # Random segments hardly meet the directions of small curvature: look at all directions.
        costs = (random_cost(n, generator) for _ in range(CURVATURE_POINTS))
        negative = worst(-lowest_curvature(cost, labels)[0] for cost in costs)
        drawn = [random_gram(n, generator) for _ in range(SEGMENTS)]
        distance = distance_from_dense(loss, labels, drawn)
        for name, value, draw, extra in (
            ("cost tensors, dense", dense_value(labels), random_cost, (negative, NONE)),
            (LOSS, loss, random_gram, (NONE, distance)),
        ):
            gaps = convexity_gaps(value, partial(draw, n), generator)
            middle = sum(line[len(line) // 2] for line in gaps) / len(gaps)
            row: Row = {"function of": name, "K": n_classes, "b": per_class, "segments": len(gaps)}
            row |= {"largest excess over chord": violation(gaps), "mean gap in the middle": middle}
            yield row | {"negative curvature": extra[0], "distance from dense": extra[1]}


def average(tensor: Tensor, labels: Tensor, *, within: bool = False) -> Tensor:
    """The mean of C∘π over all π that keep the classes together (Γ of Lemma 3.2).

    With balanced classes two entries can be carried into each other exactly if the same of their
    indices are equal and the same are of one class; so the mean over the (b!)^K K! permutations is
    the mean over the entries of the same pattern. The tensor has two or three axes. `within`: over
    the permutations of the samples of each class alone, also of unbalanced classes.
    """
    n, order = len(labels), tensor.dim()
    relation = (labels[:, None] == labels).long().fill_diagonal_(2)
    key = relation  # 0 other class, 1 same class, 2 same sample
    if order == 3:
        key = relation.view(n, n, 1) + 3 * relation.view(n, 1, n) + 9 * relation.view(1, n, n)
    if within:
        for axis in range(order):
            key = key * (int(labels.max()) + 1)
            key = key + labels.view([-1 if other == axis else 1 for other in range(order)])
    _, codes = torch.unique(key, return_inverse=True)
    flat = codes.flatten()
    sums = torch.zeros(int(flat.max()) + 1, dtype=tensor.dtype).index_add(0, flat, tensor.flatten())
    return (sums / torch.bincount(flat))[codes]


def increases(value: Value, drawn: list[Tensor], labels: Tensor, **how: bool) -> list[float]:
    """g(C̄) − g(C)."""
    return [value(average(one, labels, **how)) - value(one) for one in drawn]


def symmetrisation(given: Setting) -> Measured:
    """g(C̄) ≤ g(C) for random tensors, tensors of random vectors, and Gram matrices."""
    generator = given.generator("symmetrisation")
    criterion = given.losses.triplets(SHARPNESS)
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        n = len(labels)
        for name, value, draw in (
            ("random tensors, dense", dense_value(labels), random_cost),
            ("log-sigmoid costs, dense", dense_value(labels), vector_cost),
            (LOSS, setting.loss_value(criterion, labels), random_gram),
        ):
            drawn = [draw(n, generator) for _ in range(SEGMENTS)]
            changes = increases(value, drawn, labels)
            mean = sum(changes) / len(changes)
            distance = distance_from_dense(value, labels, drawn) if name == LOSS else NONE
            row: Row = {"function of": name, "K": n_classes, "b": per_class, "draws": len(drawn)}
            row |= {"largest increase": worst(changes), "mean change": mean}
            yield row | {"distance from dense": distance}


# Unbalanced classes

UNBALANCED_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))
POINTS = 4
PROBED = torch.linspace(-1.0, 1.0, len(FRACTIONS), dtype=torch.float64).tolist()


def unbalanced_convexity(given: Setting) -> Measured:
    """Lemmas 3.1 and 3.2 with uniform marginals, and with those of the target."""
    for kind, sizes in product(MARGINALS, UNBALANCED_SIZES):
        generator = given.generator("unbalanced-convexity")  # the same costs for both kinds
        labels = setting.class_labels(sizes)
        value = dense_value(labels, kind)
        costs = [random_cost(len(labels), generator) for _ in range(POINTS)]
        lowest = [(*lowest_curvature(cost, labels, kind), cost) for cost in costs]
        curvature, direction, cost = min(lowest, key=lambda found: found[0])
        gaps = chord_gaps([value(cost + step * direction) for step in PROBED])
        yield {
            "class sizes": f"{sizes}"[1:-1],
            "marginals": kind,
            "smallest curvature": curvature,
            "excess over chord there": worst(-gap for gap in gaps),
            "largest increase by averaging": worst(increases(value, costs, labels, within=True)),
        }


# Two distances: Lemma C.1, the loss has a closed form that decreases in Δ = α − β

LINEAR_SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
SHAPED_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
STEPS = 25
Pair = tuple[float, float]  # α and β
OFF_PATH = ((0.9, 0.5), (0.4, 0.0), (0.7, 0.7))  # the loss may depend on α − β only


def two_distance_path(n_classes: int, per_class: int, count: int) -> list[Pair]:
    """Pairs (α, β) with Δ = α − β increasing from the lowest possible value to the ETF's.

    On the path α = t, β = −t/(K−1) the Gram matrix has eigenvalues 1 − t and
    1 − t + b Δ: it exists down to the t where the latter vanishes.
    """
    lowest = -1 / (per_class * n_classes / (n_classes - 1) - 1)
    steps = torch.linspace(lowest, 1.0, count, dtype=torch.float64).tolist()
    return [(t, -t / (n_classes - 1)) for t in steps]


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
    given: Setting, shaping: str, size: tuple[int, int], sharpness: float, pairs: list[Pair]
) -> tuple[Row, list[float]]:
    """A row begun, with the largest error of the closed form along pairs (α, β), and the loss."""
    labels = setting.class_labels((size[1],) * size[0])
    criterion = given.losses.triplets(sharpness, shaping=setting.by_name(shaping))
    value, psi = setting.loss_value(criterion, labels), SHAPINGS[shaping]
    found = [value(setting.two_distance_gram(labels, *pair)) for pair in pairs]
    expected = [closed_form(*size, alpha - beta, psi, sharpness) for alpha, beta in pairs]
    # Relative to values above 1, and absolute below.
    both = zip(found, expected, strict=True)
    error = worst(abs(one - other) / max(1.0, abs(other)) for one, other in both)
    row: Row = {"ψ": shaping, "K": size[0], "b": size[1], "c": sharpness}
    return row | {"largest error": error}, found


def largest_step(values: Sequence[float]) -> float:
    """The largest change from one value to the next."""
    return worst(late - early for early, late in pairwise(values))


def closed_form_equality(given: Setting) -> Measured:
    """The loss under test for every ψ, the linear one at several sharpnesses."""
    for shaping in SHAPINGS:  # the sweeps of the linear one are fast
        fast = shaping == "linear"
        for size in LINEAR_SIZES if fast else SHAPED_SIZES:
            pairs = [*two_distance_path(*size, STEPS if fast else STEPS // 4), *OFF_PATH]
            for sharpness in SHARPNESSES if fast else (SHARPNESS,):
                yield walk(given, shaping, size, sharpness, pairs)[0]


def monotonicity(given: Setting) -> Measured:
    """The largest step of the loss between neighbouring Δ must be downwards."""
    for shaping in SHAPINGS:
        fast = shaping == "linear"
        for size in LINEAR_SIZES if fast else SHAPED_SIZES:
            # At a larger sharpness the loss is 0 to machine precision at the upper end.
            path = two_distance_path(*size, STEPS if fast else STEPS // 2)
            row, found = walk(given, shaping, size, SHARPNESS, path)
            row |= {"loss at lowest Δ": found[0], "loss at ETF": found[-1]}
            yield row | {"largest step": largest_step(found)}
