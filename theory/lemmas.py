"""The lemmas: g is convex in the cost (3.1), averaging never increases it (3.2), two distances.

And what becomes of the first two with unbalanced classes, which the paper leaves out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import combinations, pairwise, product

import torch
from torch import Tensor

from theory import setting
from theory.setting import NONE, SHAPINGS, Measured, Row, Setting, statement, worst, worst_of
from tricouple.ot import dense
from tricouple.shaping import Shaping, log_sigmoid, resolve

Value = Callable[[Tensor], float]

SIZES = ((2, 3), (3, 3), (4, 2))  # (K, b)
SEGMENTS = 6
CURVATURE_POINTS = 2
FRACTIONS = torch.linspace(0.0, 1.0, 9, dtype=torch.float64).tolist()
EPSILON = 0.5
SHARPNESS = 1 / EPSILON
LOSS = "Gram matrices, loss"
LARGEST_EXCESS = "largest excess over chord"


def random_cost(n: int, generator: torch.Generator) -> Tensor:
    """Draw a cost tensor with independent normal entries."""
    return torch.randn((n, n, n), generator=generator, dtype=torch.float64)


def random_gram(n: int, generator: torch.Generator) -> Tensor:
    """Draw the Gram matrix of random unit vectors in a random dimension."""
    dim = int(torch.randint(2, n + 1, (), generator=generator))
    return setting.gram(setting.random_unit(n, dim, generator))


def dense_value(labels: Tensor, kind: str = "uniform") -> Value:
    """C ↦ g(C) by the dense solver."""
    target = setting.triplet_target(labels)
    plan = partial(setting.log_plan, epsilon=EPSILON, target=target, kind=kind)
    return lambda cost: float(setting.divergence(target, plan(cost)))


def chord_gaps(value: Value, start: Tensor, end: Tensor) -> list[float]:
    """How far values on a segment lie below its chord, from end to end; negative: not convex."""
    values = [value(torch.lerp(start, end, part)) for part in FRACTIONS]
    chord = ((1 - part) * values[0] + part * values[-1] for part in FRACTIONS)
    return [above - here for above, here in zip(chord, values, strict=True)]


def segments(value: Value, draw: Callable[[], Tensor]) -> tuple[float, float]:
    """On random segments: the largest excess over a chord, and the mean gap in the middle."""
    ends = [(draw(), draw()) for _ in range(SEGMENTS)]
    gaps = [chord_gaps(value, *both)[1:-1] for both in ends]
    excess = worst(-gap for line in gaps for gap in line)
    return excess, sum(line[len(line) // 2] for line in gaps) / len(gaps)


def hessian(cost: Tensor, epsilon: float, target: Tensor, kind: str) -> Tensor:
    """∂²g/∂C², over the entries with distinct indices in the order of ``cost[distinct(N, 3)]``.

    Along a change D of the cost, log P changes at the rate ℓ = −D/ε + u_i + v_j + w_k, where u, v
    and w keep the marginals, and d²g = Σ P_ijk W_ijk ℓ_ijk² with W_ijk = ω¹_i + ω²_j + ω³_k and
    J ω = marginals of P̃, J the 3N×3N matrix of the pair marginals of P. W = 1 if P̃ has the imposed
    marginals; if not, W may be negative somewhere.
    """
    n = len(cost)
    allowed = setting.distinct(n, 3)
    plan = setting.log_plan(cost, epsilon, target, kind).exp()[allowed]  # (E,)
    places = allowed.nonzero() + torch.tensor([0, n, 2 * n])  # (E, 3)
    touches = torch.zeros(len(plan), 3 * n, dtype=torch.float64).scatter_(1, places, 1.0)  # (E, 3N)
    # J is singular: constants can move between u, v and w without a change of P.
    inverse = torch.linalg.pinv(touches.T @ (plan[:, None] * touches), hermitian=True)
    weights = touches @ (inverse @ torch.cat(setting.marginals(target)))  # W
    kept = touches @ inverse @ (touches.T * plan)
    rates = kept - torch.eye(len(plan), dtype=torch.float64)  # ε ℓ for each D
    return torch.mm(rates.T, (plan * weights)[:, None] * rates) / epsilon**2


def lowest_curvature(cost: Tensor, labels: Tensor, kind: str) -> tuple[float, Tensor]:
    """The smallest eigenvalue of ∂²g/∂C² relative to the largest, and its direction as a cost."""
    matrix = hessian(cost, EPSILON, setting.triplet_target(labels), kind)
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    direction = torch.zeros_like(cost)
    direction[setting.distinct(len(cost), 3)] = basis[:, 0]
    return float(values[0] / values[-1]), direction


def distance_from_dense(value: Value, labels: Tensor, matrices: Iterable[Tensor]) -> float:
    """How far a function of Gram matrices is from the dense g: other convex losses fail this."""
    exact = partial(dense.neg_mmiot, temperature=1.0, epsilon=EPSILON, n_iters=200)
    plain = setting.loss_value(exact, labels)
    return worst(abs(value(matrix) - plain(matrix)) for matrix in matrices)


@statement("Lemma 3.1",
           "largest excess over a chord, −curvature, or distance of the loss from dense", 1e-10,
           LARGEST_EXCESS, "negative curvature", "distance from dense")  # fmt: skip
def convexity(given: Setting) -> Measured:
    """The loss g(C) = KL(P̃ ‖ P^C) is convex in the cost C.

    So g((1 − t)C + tC') ≤ (1 − t)g(C) + t g(C') on random segments, and ∂²g/∂C² ≥ 0.
    """
    generator = given.generator("convexity")
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        n = len(labels)
        loss = setting.loss_value(given.triplets(SHARPNESS), labels)
        # Random segments hardly meet the directions of small curvature: look at all directions.
        costs = (random_cost(n, generator) for _ in range(CURVATURE_POINTS))
        negative = worst(-lowest_curvature(cost, labels, "uniform")[0] for cost in costs)
        drawn = [random_gram(n, generator) for _ in range(SEGMENTS)]
        distance = distance_from_dense(loss, labels, drawn)
        for name, value, draw, extra in (
            ("cost tensors, dense", dense_value(labels), random_cost, (negative, NONE)),
            (LOSS, loss, random_gram, (NONE, distance)),
        ):
            excess, middle = segments(value, partial(draw, n, generator))
            row = {"function of": name, "K": n_classes, "b": per_class, "segments": SEGMENTS}
            row |= {LARGEST_EXCESS: excess, "mean gap in the middle": middle}
            yield row | {"negative curvature": extra[0], "distance from dense": extra[1]}


def average(tensor: Tensor, labels: Tensor, *, within: bool = False) -> Tensor:
    """The mean of C∘π over all π that keep the classes together (Γ of Lemma 3.2).

    With balanced classes it is the mean over the entries of the same pattern, in which the same
    indices are equal and the same are of one class. `within`: over the permutations of the samples
    of each class alone, also of unbalanced classes.
    """
    axes = range(tensor.dim())
    relation = (labels[:, None] == labels).long().fill_diagonal_(2)  # other class, same, itself
    parts = [(relation, pair) for pair in combinations(axes, 2)]
    parts += [(labels, (axis,)) for axis in axes if within]
    pattern = torch.zeros(tensor.shape, dtype=torch.long)
    for codes, own in parts:
        shape = [len(labels) if axis in own else 1 for axis in axes]
        pattern = pattern * (int(codes.max()) + 1) + codes.view(shape)
    _, codes = pattern.unique(return_inverse=True)
    sums = torch.bincount(codes.flatten(), weights=tensor.flatten())
    return (sums / torch.bincount(codes.flatten()))[codes]


def increases(value: Value, drawn: list[Tensor], labels: Tensor, **how: bool) -> list[float]:
    """g(C̄) − g(C)."""
    return [value(average(one, labels, **how)) - value(one) for one in drawn]


@statement("Lemma 3.2", "largest increase, or distance of the loss from dense", 1e-10,
           "largest increase", "distance from dense")  # fmt: skip
def symmetrisation(given: Setting) -> Measured:
    """The average C̄ over class-preserving permutations has g(C̄) ≤ g(C)."""
    generator = given.generator("symmetrisation")
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        exact, loss = dense_value(labels), setting.loss_value(given.triplets(SHARPNESS), labels)
        for name, value, draw in (
            ("random tensors, dense", exact, random_cost),
            ("log-sigmoid costs, dense", exact, random_gram),
            (LOSS, loss, random_gram),
        ):
            drawn = [draw(len(labels), generator) for _ in range(SEGMENTS)]
            distance = distance_from_dense(loss, labels, drawn) if name == LOSS else NONE
            if name.startswith("log-sigmoid"):
                drawn = [setting.triplet_cost(one, log_sigmoid) for one in drawn]
            changes = increases(value, drawn, labels)
            row = {"function of": name, "K": n_classes, "b": per_class, "draws": SEGMENTS}
            row |= {"largest increase": worst(changes), "mean change": sum(changes) / SEGMENTS}
            yield row | {"distance from dense": distance}


# Unbalanced classes

UNBALANCED_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))
POINTS = 4


@statement(setting.NOT, "most negative curvature, relative to the largest", None,
           lambda rows: worst(-row["smallest curvature"] for row in rows))  # fmt: skip
def unbalanced_convexity(given: Setting) -> Measured:
    """Lemmas 3.1 and 3.2 with unbalanced classes."""
    for kind, sizes in product(setting.MARGINALS, UNBALANCED_SIZES):
        generator = given.generator("unbalanced-convexity")  # the same costs for both kinds
        labels = setting.class_labels(sizes)
        value = dense_value(labels, kind)
        costs = [random_cost(len(labels), generator) for _ in range(POINTS)]
        lowest = [(*lowest_curvature(cost, labels, kind), cost) for cost in costs]
        curvature, direction, cost = min(lowest, key=lambda found: found[0])
        gaps = chord_gaps(value, cost - direction, cost + direction)
        row = {"class sizes": f"{sizes}"[1:-1], "marginals": kind, "smallest curvature": curvature}
        row |= {"excess over chord there": worst(-gap for gap in gaps)}
        changes = increases(value, costs, labels, within=True)
        yield row | {"largest increase by averaging": worst(changes)}


# Two distances: Lemma C.1, the loss has a closed form that decreases in Δ = α − β

LINEAR_SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
SHAPED_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
STEPS = 25
OFF_PATH = ((0.9, 0.5), (0.4, 0.0), (0.7, 0.7))  # the loss may depend on α − β only


def two_distance_path(n_classes: int, per_class: int, count: int) -> list[tuple[float, float]]:
    """Pairs (α, β) = (t, −t/(K−1)) from the lowest possible Δ = α − β to the ETF's."""
    # The Gram matrix has eigenvalues 1 − t and 1 − t + b Δ.
    lowest = -1 / (per_class * n_classes / (n_classes - 1) - 1)
    steps = torch.linspace(lowest, 1.0, count, dtype=torch.float64).tolist()
    return [(t, -t / (n_classes - 1)) for t in steps]


def exact_loss(size: tuple[int, int], gap: float, shaping: Shaping, sharpness: float) -> float:
    """The loss at Δ = `gap` for any ψ and τ = 1, `size` K, b.

    ``log((|A| e^{−ψ(Δ)/ε} + |A| e^{−ψ(−Δ)/ε} + |R| e^{−ψ(0)/ε}) / (|A| e^{−ψ(Δ)/ε}))``:
    admissible triplets A, as many reversed ones, and the rest R (mathematics §6).
    """
    n, per_class = math.prod(size), size[1]
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    margins = torch.tensor([gap, -gap, 0.0], dtype=torch.float64)
    right, reversed_, other = (-shaping(margins) * sharpness).tolist()
    return math.log1p(math.exp(reversed_ - right) + rest / admissible * math.exp(other - right))


def walks(
    given: Setting, sharpnesses: Sequence[float] = (SHARPNESS,), off_path: Sequence[tuple] = ()
) -> Iterator[tuple[Row, list[float]]]:
    """For each ψ and size a row with the largest error of the closed form, and losses on a path."""
    for name, shaping in SHAPINGS.items():
        fast = name == "linear"  # in its sweeps
        sizes = product(LINEAR_SIZES, sharpnesses) if fast else product(SHAPED_SIZES, (SHARPNESS,))
        for size, sharpness in sizes:
            labels = setting.class_labels((size[1],) * size[0])
            value = setting.loss_value(given.triplets(sharpness, shaping=shaping), labels)
            pairs = [*two_distance_path(*size, STEPS if fast else STEPS // 2), *off_path]
            found = [value(setting.two_distance_gram(labels, *pair)) for pair in pairs]
            exact = [exact_loss(size, a - b, resolve(shaping), sharpness) for a, b in pairs]
            # Relative to values above 1, and absolute below.
            both = zip(found, exact, strict=True)
            error = worst(abs(one - other) / max(1.0, abs(other)) for one, other in both)
            row = {"ψ": name, "K": size[0], "b": size[1], "c": sharpness, "largest error": error}
            yield row, found


def largest_step(values: Sequence[float]) -> float:
    """The largest change from one value to the next."""
    return worst(late - early for early, late in pairwise(values))


@statement("Lemma C.1", "largest error", 1e-10, "largest error")
def closed_form(given: Setting) -> Measured:
    """At two distances the loss is a closed form in Δ = α − β, for every ψ."""
    return (row for row, _ in walks(given, SHARPNESSES, OFF_PATH))


@statement("Lemma C.1", "largest step, which must be downwards, plus the largest error", -1e-6,
           lambda rows: sum(worst_of(rows, f"largest {key}") for key in ("step", "error"))
           )  # fmt: skip
def monotonicity(given: Setting) -> Measured:
    """That loss strictly decreases in Δ for every strictly decreasing ψ.

    At a larger sharpness it is 0 to machine precision at the upper end.
    """
    for row, found in walks(given):
        row |= {"loss at lowest Δ": found[0], "loss at ETF": found[-1]}
        yield row | {"largest step": largest_step(found)}
