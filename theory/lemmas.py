"""The lemmas: g is convex in the cost (3.1), averaging never increases it (3.2), two distances.

And what becomes of the first two with unbalanced classes, which the paper leaves out.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product

import torch
from torch import Tensor

from theory import setting
from theory.setting import NOT, SHAPINGS, Measured, Row, Setting, statement, worst
from tricouple.ot import dense
from tricouple.shaping import Shaping, log_sigmoid, resolve

Value = Callable[[Tensor], float]

SIZES = ((2, 3), (3, 3), (4, 2))  # (K, b)
DRAWS = 12  # the ends of six segments
FRACTIONS = torch.linspace(0.0, 1.0, 9, dtype=torch.float64)
EPSILON = 0.5
SHARPNESS = 1 / EPSILON
PLAIN = {"temperature": 1.0, "n_iters": 200}  # of the dense losses
DISTANCE = "distance from dense"


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
    return lambda cost: float(setting.divergence(cost, EPSILON, target, kind))


def chord_excess(value: Value, start: Tensor, end: Tensor) -> float:
    """How far values inside a segment are above its chord at most; positive: not convex."""
    values = [value(torch.lerp(start, end, part)) for part in FRACTIONS]
    values = torch.tensor(values, dtype=torch.float64)
    chord = torch.lerp(values[0], values[-1], FRACTIONS)
    return float((values - chord)[1:-1].max())


def excess(value: Value, drawn: Sequence[Tensor]) -> float:
    """The largest excess over a chord; two points that follow each other are ends of a segment."""
    return worst(chord_excess(value, *ends) for ends in zip(drawn[::2], drawn[1::2], strict=True))


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
    rates = touches @ inverse @ (touches.T * plan) - torch.eye(len(plan))  # ε ℓ for each D
    return torch.mm(rates.T, (plan * weights)[:, None] * rates) / epsilon**2


def lowest_curvature(cost: Tensor, labels: Tensor, kind: str) -> tuple[float, Tensor]:
    """The smallest eigenvalue of ∂²g/∂C² relative to the largest, and its direction as a cost."""
    matrix = hessian(cost, EPSILON, setting.triplet_target(labels), kind)
    values, basis = torch.linalg.eigh((matrix + matrix.T) / 2)
    direction = torch.zeros_like(cost)
    direction[setting.distinct(len(cost), 3)] = basis[:, 0]
    return float(values[0] / values[-1]), direction


def average(tensor: Tensor, labels: Tensor, *, within: bool = False) -> Tensor:
    """The mean of C∘π over all π that keep the classes together (Γ of Lemma 3.2).

    With balanced classes it is the mean over the entries of the same pattern, in which the same
    indices are equal and the same are of one class. `within`: over the permutations of the samples
    of each class alone, also of unbalanced classes, for entries with distinct indices.
    """
    n = len(labels)
    pair = labels[:, None] * n + labels if within else (labels[:, None] == labels).long()
    pattern = pair.fill_diagonal_(n * n)  # what two indices have in common
    if tensor.dim() == 3:
        base = n * n + 1
        pattern = (pair[:, :, None] * base + pair[:, None, :]) * base + pair
    _, codes = pattern.unique(return_inverse=True)
    sums = torch.bincount(codes.flatten(), weights=tensor.flatten())
    return (sums / torch.bincount(codes.flatten()))[codes]


def increase(value: Value, drawn: Iterable[Tensor], labels: Tensor, **how: bool) -> float:
    """The largest g(C̄) − g(C)."""
    return worst(value(average(one, labels, **how)) - value(one) for one in drawn)


@statement("Lemma 3.1",
           "largest excess over a chord, −curvature, or distance of the loss from dense", 1e-10,
           "excess, dense", "excess, loss", "negative curvature", DISTANCE, name="convexity",
           claim="The loss g(C) = KL(P̃ ‖ P^C) is convex in the cost C")  # fmt: skip
@statement("Lemma 3.2", "largest increase, or distance of the loss from dense", 1e-10,
           *(f"increase, {of}" for of in ("random costs", "log-sigmoid costs", "loss")), DISTANCE,
           name="symmetrisation",
           claim="The average C̄ over class-preserving permutations has g(C̄) ≤ g(C)")  # fmt: skip
def balanced(given: Setting) -> Measured:
    """How g and the loss behave on segments between random costs, and when costs are averaged.

    g((1 − t)C + tC') ≤ (1 − t)g(C) + t g(C') on segments, ∂²g/∂C² ≥ 0, and g(C̄) ≤ g(C).
    """
    generator = given.generator("balanced")
    for n_classes, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        exact, loss = dense_value(labels), setting.loss_value(given.triplets(SHARPNESS), labels)
        costs = [random_cost(len(labels), generator) for _ in range(DRAWS)]
        grams = [random_gram(len(labels), generator) for _ in range(DRAWS)]
        shaped = [setting.triplet_cost(one, log_sigmoid) for one in grams]
        # Random segments hardly meet the directions of small curvature: look at all directions.
        lowest = (lowest_curvature(cost, labels, "uniform")[0] for cost in costs[:2])
        row = {"K": n_classes, "b": per_class, "negative curvature": worst(-one for one in lowest)}
        row |= {"excess, dense": excess(exact, costs), "excess, loss": excess(loss, grams)}
        row["increase, random costs"] = increase(exact, costs, labels)
        row["increase, log-sigmoid costs"] = increase(exact, shaped, labels)
        row["increase, loss"] = increase(loss, grams, labels)
        # Other convex losses fail this.
        plain = setting.loss_value(partial(dense.neg_mmiot, epsilon=EPSILON, **PLAIN), labels)
        yield row | {DISTANCE: worst(abs(loss(one) - plain(one)) for one in grams)}


# Unbalanced classes

UNBALANCED_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))


@statement(NOT, "most negative curvature, relative to the largest", None,
           lambda rows: worst(-row["smallest curvature"] for row in rows))  # fmt: skip
def unbalanced_convexity(given: Setting) -> Measured:
    """Lemmas 3.1 and 3.2 with unbalanced classes."""
    for kind, sizes in product(setting.MARGINALS, UNBALANCED_SIZES):
        generator = given.generator("unbalanced-convexity")  # the same costs for both kinds
        labels = setting.class_labels(sizes)
        value = dense_value(labels, kind)
        costs = [random_cost(len(labels), generator) for _ in range(4)]
        lowest = [(*lowest_curvature(cost, labels, kind), cost) for cost in costs]
        curvature, direction, cost = min(lowest, key=lambda found: found[0])
        row = {"class sizes": f"{sizes}"[1:-1], "marginals": kind, "smallest curvature": curvature}
        row["excess over chord there"] = chord_excess(value, cost - direction, cost + direction)
        yield row | {"largest increase by averaging": increase(value, costs, labels, within=True)}


# Two distances: Lemma C.1, the loss has a closed form that decreases in Δ = α − β

LINEAR_SIZES = ((2, 3), (3, 2), (4, 3), (10, 4))
SHAPED_SIZES = ((2, 3), (4, 3))
SHARPNESSES = (0.5, 2.0, 8.0, 100.0)
STEPS = 12
# The loss may depend on α − β only.
OFF_PATH = torch.tensor([(0.9, 0.5), (0.4, 0.0), (0.7, 0.7)], dtype=torch.float64)


def two_distance_path(n_classes: int, per_class: int, count: int) -> Tensor:
    """Pairs (α, β) = (t, −t/(K−1)) from the lowest possible Δ = α − β to the ETF's, (count, 2)."""
    # The Gram matrix has eigenvalues 1 − t and 1 − t + b Δ.
    lowest = -1 / (per_class * n_classes / (n_classes - 1) - 1)
    t = torch.linspace(lowest, 1.0, count, dtype=torch.float64)
    return torch.stack([t, -t / (n_classes - 1)], 1)


def losses_at(value: Value, pairs: Tensor, labels: Tensor) -> Tensor:
    """The loss at each pair (α, β)."""
    matrices = (setting.two_distance_gram(labels, *pair) for pair in pairs.tolist())
    return torch.tensor([value(matrix) for matrix in matrices], dtype=torch.float64)


def exact_losses(size: tuple[int, int], gaps: Tensor, shaping: Shaping, sharpness: float) -> Tensor:
    """The loss at each Δ for any ψ and τ = 1, `size` K, b.

    ``log((|A| e^{−ψ(Δ)/ε} + |A| e^{−ψ(−Δ)/ε} + |R| e^{−ψ(0)/ε}) / (|A| e^{−ψ(Δ)/ε}))``:
    admissible triplets A, as many reversed ones, and the rest R (mathematics §6).
    """
    n, per_class = math.prod(size), size[1]
    admissible = n * (per_class - 1) * (n - per_class)
    rest = n * (n - 1) * (n - 2) - 2 * admissible
    margins = torch.stack([gaps, -gaps, torch.zeros_like(gaps)], 1)
    counts = torch.tensor([admissible, admissible, rest], dtype=torch.float64)
    logs = counts.log() - sharpness * shaping(margins)
    return torch.logsumexp(logs, 1) - logs[:, 0]


@statement("Lemma C.1", "largest error", 1e-10, "largest error", name="closed-form",
           claim="At two distances the loss is a closed form in Δ = α − β, for every ψ"
           )  # fmt: skip
@statement("Lemma C.1", "largest step at c = 2, which must be downwards, plus the largest error",
           -1e-6, lambda rows: sum(worst(row[key] for row in rows if row["c"] == SHARPNESS)
                                   for key in ("largest step", "largest error")),
           name="monotonicity",
           claim="That loss strictly decreases in Δ for every strictly decreasing ψ")  # fmt: skip
def walk(given: Setting) -> Measured:
    """For each ψ, size and c the largest error of the closed form and the largest step in Δ.

    At a larger sharpness the loss is 0 to machine precision at the upper end.
    """
    linear = product(["linear"], LINEAR_SIZES, SHARPNESSES)
    others = product([*SHAPINGS][1:], SHAPED_SIZES, [SHARPNESS])
    for name, size, sharpness in (*linear, *others):
        psi, labels = SHAPINGS[name], setting.class_labels((size[1],) * size[0])
        value = setting.loss_value(given.triplets(sharpness, shaping=psi), labels)
        pairs = torch.cat([two_distance_path(*size, STEPS), OFF_PATH])
        found = losses_at(value, pairs, labels)
        exact = exact_losses(size, pairs[:, 0] - pairs[:, 1], resolve(psi), sharpness)
        errors = (found - exact).abs() / exact.clamp_min(1.0)  # absolute below 1
        row = {"ψ": name, "K": size[0], "b": size[1], "c": sharpness}
        row["largest error"] = float(errors.max())
        yield row | {"largest step": float(found[:STEPS].diff().max())}


# Gradients: the simplex ETF is stationary, and the envelope identity on which the proof rests

ETF_SIZES = ((3, 3), (5, 2))
BALANCED = ((2, 2, 2), (3, 3, 3), (2, 2, 2, 2, 2))
UNBALANCED = ((3, 3, 2), (4, 3, 2), (6, 2, 2), (8, 2, 2))
GRADIENTS = ("unrolled", "implicit", "envelope")
IDENTITY = "(P̃ − P)/ε, dense"


@statement("Proposition 3.5", "tangential gradient over that at random vectors, or its error", 1e-9,
           "ratio", "error of the latter")  # fmt: skip
def stationarity(given: Setting) -> Measured:
    """At the ETF P^⊥_z ∇_z g = 0 for differentiable ψ, also for PushPull."""
    generator = given.generator("stationarity")
    both_epsilons = {"epsilon_pos": EPSILON, "epsilon_neg": EPSILON}
    for n_classes, per_class in ETF_SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        random = setting.random_unit(len(labels), n_classes, generator)
        # The library refuses a ψ that is not decreasing.
        for name, psi in {**SHAPINGS, "sine, dense": torch.sin}.items():
            triplets = partial(dense.neg_mmiot, epsilon=EPSILON, shaping=psi, **PLAIN)
            pairs = partial(dense.push_pull, **both_epsilons, shaping=psi, **PLAIN)
            losses = ("Neg-MMIOT", triplets, given.triplets), ("PushPull", pairs, given.pairs)
            for loss, exact, make in losses:
                one = make(SHARPNESS, shaping=psi) if name in SHAPINGS else exact
                both = (setting.gradient_of(each, random, labels) for each in (one, exact))
                row = {"loss": loss, "ψ": name, "K": n_classes, "b": per_class}
                row["ratio"] = setting.gradient_ratio(one, labels, random)
                yield row | {"error of the latter": setting.relative_error(*both)}


def envelope_errors(
    given: Setting, sizes: tuple[int, ...], kind: str, generator: torch.Generator
) -> Row:
    """∂g/∂C = (P̃ − P)/ε at a random cost, and the library's gradients at random vectors."""
    labels = setting.class_labels(sizes)
    n, target = len(labels), setting.triplet_target(labels)
    cost = random_cost(n, generator).requires_grad_()
    (exact,) = torch.autograd.grad(setting.divergence(cost, EPSILON, target, kind), cost)
    identity = (target - setting.log_plan(cost.detach(), EPSILON, target, kind).exp()) / EPSILON
    row = {"class sizes": f"{sizes}"[1:-1], "marginals": kind}
    row |= {IDENTITY: setting.relative_error(identity, exact)}
    embeddings = setting.random_unit(n, 4, generator)
    plain = partial(dense.neg_mmiot, epsilon=EPSILON, marginals=kind, **PLAIN)
    exact = setting.gradient_of(plain, embeddings, labels)
    for gradient in GRADIENTS:
        criterion = given.triplets(SHARPNESS, gradient=gradient, marginals=kind)
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
    for kind, sizes in product(setting.MARGINALS, UNBALANCED):
        yield envelope_errors(given, sizes, kind, generator)
