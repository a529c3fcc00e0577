"""Where the paper's conditions end: few dimensions, other ψ, a sharp loss, unbalanced classes."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import geometry
from tricouple.data.gmm import class_sizes
from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.frames import (
    SHARPNESS,
    STARTS,
    descend_from_random,
    gaps,
    optimal_loss,
    reached,
)
from tricouple.experiments.verify.gradients import relative_gradient, tangential_gradient
from tricouple.experiments.verify.lemmas import (
    chord_gaps,
    convexity_gaps,
    random_cost,
    random_gram,
    violation,
)
from tricouple.experiments.verify.setting import (
    MARGINALS,
    Measured,
    Row,
    Setting,
    experiment,
    grouped,
    listed,
    numbered,
    worst,
    worst_of,
)
from tricouple.report.chart import Line

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)

SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
SHARPNESS_STEPS = 100

BASE_CLASSES, BASE_PER_CLASS, BASE_DIM = 5, 4, 8
BASE_STEPS = 25


def _smallest_gap(rows: list[Row]) -> float:
    below = [row for row in rows if int(row["d"]) < LOW_CLASSES - 1]
    return -worst(-float(row["loss above closed form"]) for row in below)


@experiment(
    "Spectrum of the class means, K = 10",
    ("number of the eigenvalue", "eigenvalue"),
    "Eigenvalues of the class means, descending: d of them are above zero, at most nine.",
    residual=_smallest_gap,
)
def low_dimension(setting: Setting) -> Measured:
    """Ten classes in fewer than nine dimensions.

    In d < K − 1 the only two-distance configuration is total collapse, Δ = 0 (the Gram matrix of
    any other has rank K − 1 or more); its loss is reported for comparison.
    """
    generator = setting.generator("low-dimension")
    criterion = setting.losses.triplets(SHARPNESS)
    labels = tensors.balanced_labels(LOW_CLASSES, LOW_PER_CLASS)
    optimum = optimal_loss(LOW_CLASSES, LOW_PER_CLASS)
    collapsed = geometry.etf_loss(
        LOW_CLASSES, LOW_PER_CLASS, temperature=1.0, epsilon=1 / SHARPNESS, alpha=1.0, beta=1.0
    )
    for dim in LOW_DIMS:
        best = descend_from_random(criterion, labels, dim, generator, STARTS)[0]
        spectrum = best.collapse.spectrum.tolist()
        positive = [value for value in spectrum if value > 1e-6]
        yield {
            "d": dim,
            "loss above closed form": best.loss - optimum,
            "loss below total collapse": collapsed - best.loss,
            "NC1": best.collapse.nc1,
            "NC2 std": best.collapse.nc2_std,
            "spread of β": best.distances.beta_std,
            "largest β": float(best.across.max()),
            "nonzero eigenvalues": len(positive),
            "smallest / largest of these": positive[-1] / positive[0] if positive else 0.0,
        }
        yield numbered(f"d = {dim}", spectrum)


@experiment(
    "Worst descent of free vectors for several ψ, K = 3, d = 2",
    ("evaluation", "loss − loss at the ETF"),
    "A curve that levels off far above rounding errors has met a local minimum.",
    log="y",
    residual=("largest Gram deviation",),
)
def other_shapings(setting: Setting) -> Measured:
    """Whether descent ends at the ETF for ψ that are not affine: open in the paper."""
    generator = setting.generator("other-shapings")
    for n_classes, dim, per_class in ((3, 2, 3), (4, 5, 2)):
        labels = tensors.balanced_labels(n_classes, per_class)
        for name in tensors.SHAPINGS:
            # The envelope is exact for balanced classes, and cheap.
            criterion = setting.losses.triplets(
                SHARPNESS, shaping=tensors.by_name(name), gradient="envelope"
            )
            ends = descend_from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = tensors.loss_value(criterion, labels)(tensors.etf_gram(labels))
            yield {
                "ψ": name,
                "K": n_classes,
                "d": dim,
                "b": per_class,
                "starts at the ETF": reached(ends),
                "best loss − at the ETF": ends[0].loss - optimum,
                "worst loss − at the ETF": ends[-1].loss - optimum,
                "largest Gram deviation": worst(end.deviation for end in ends),
                "largest gradient at an end": worst(
                    tangential_gradient(criterion, end.embeddings, labels) for end in ends
                ),
            }
            if n_classes == 3:
                yield gaps(name, ends[-1], optimum)


@experiment(
    f"Distance from the ETF after at most {SHARPNESS_STEPS} steps, K = 5, d = 8",
    ("sharpness c", "Gram deviation"),
    log="xy",
    residual=lambda rows: worst_of(rows[len(SHARPNESSES) - 1 :][:1], *list(rows[0])[2:]),
)
def sharpness(setting: Setting) -> Measured:
    """How close descent comes to the ETF within a fixed number of steps, against c."""
    labels = tensors.balanced_labels(5, 4)
    largest: list[Row] = []
    of_means: list[Row] = []
    for value in SHARPNESSES:
        largest.append({"c": value, "measure": "largest, of samples"})
        of_means.append({"c": value, "measure": "mean, of class means (NC2)"})
        criteria = setting.losses.at_sharpness(value)
        for name, criterion in criteria.items():
            generator = setting.generator("sharpness")  # the same start for all
            (end,) = descend_from_random(criterion, labels, 8, generator, 1, SHARPNESS_STEPS)
            largest[-1][name] = end.deviation
            of_means[-1][name] = end.collapse.nc2_deviation
    yield from (*largest, *of_means)
    for name in criteria:
        yield from grouped(largest, name, "c", name)


@experiment(
    f"Descent of free vectors, K = {BASE_CLASSES}, d = {BASE_DIM}, c = {SHARPNESS:g}",
    ("evaluation", "loss − loss at the ETF"),
    log="y",
    residual=("Gram deviation",),
)
def baselines(setting: Setting) -> Measured:
    """Each loss at the same sharpness: convexity, averaging, monotonicity, stationarity, descent.

    All in terms of the Gram matrix, because InfoNCE has no coupling and IOT another one.
    """
    labels = tensors.balanced_labels(BASE_CLASSES, BASE_PER_CLASS)
    frame = normalize(tensors.vectors(tensors.etf_gram(labels)), dim=1)
    for name, criterion in setting.losses.at_sharpness(SHARPNESS).items():
        generator = setting.generator("baselines")  # the same matrices and starts for all
        value, draw = tensors.loss_value(criterion, labels), random_gram(len(labels))
        excess = violation(convexity_gaps(value, draw, generator))
        drawn = [draw(generator) for _ in range(10)]
        increase = worst(
            value(tensors.average_over_symmetries(matrix, labels)) - value(matrix)
            for matrix in drawn
        )
        path = tensors.two_distance_path(BASE_CLASSES, BASE_PER_CLASS, BASE_STEPS)
        values = [value(tensors.two_distance_gram(labels, *pair)) for pair in path]
        random = tensors.random_unit(len(labels), BASE_DIM, generator)
        ends = descend_from_random(criterion, labels, BASE_DIM, generator, STARTS)
        optimum = value(tensors.etf_gram(labels))
        yield {
            "loss": name,
            "excess over chord": excess,
            "increase by averaging": increase,
            "largest step in Δ": worst(late - early for early, late in pairwise(values)),
            "gradient at the ETF": relative_gradient(criterion, frame, random, labels)[2],
            "starts at the ETF": reached(ends),
            "Gram deviation": worst(end.deviation for end in ends),
            "loss at the end − at the ETF": ends[0].loss - optimum,
        }
        yield gaps(name, ends[0], optimum)


# --- unbalanced classes, where the paper is silent ------------------------------------------------


EPSILON = 0.5
DENSE_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))
POINTS = 4
PROBED = tuple(torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).tolist())

UNBALANCED_SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3))
FEW = 2  # starts

MANY_CLASSES = (3, 5, 10)
LARGEST_CLASS, RATIO = 20, 10.0


@experiment(
    f"g along the direction of lowest curvature, class sizes {DENSE_SIZES[0]}",
    ("step from a random cost", "chord − g"),
    "Below zero g is not convex.",
    residual=lambda rows: worst(-float(row["smallest curvature"]) for row in rows),
)
def unbalanced_convexity(setting: Setting) -> Measured:
    """Lemmas 3.1 and 3.2 with uniform marginals, and with those of the target."""
    for kind in MARGINALS:
        for sizes in DENSE_SIZES:
            generator = setting.generator("unbalanced-convexity")  # the same costs for both kinds
            row, line = probe(tensors.class_labels(sizes), kind, generator)
            yield {"class sizes": listed(sizes), "marginals": kind, **row}
            if sizes == DENSE_SIZES[0]:
                yield Line(f"{kind} marginals", PROBED, tuple(line))


def probe(labels: Tensor, kind: str, generator: torch.Generator) -> tuple[Row, list[float]]:
    """Look for a direction in which g is not convex: numbers, and chord minus g along it."""
    target = tensors.triplet_target(labels)
    imposed = tensors.imposed_marginals(target, kind)

    def value(cost: Tensor) -> float:
        return float(tensors.divergence(cost, EPSILON, target, imposed))

    draw = random_cost(len(labels))
    costs = [draw(generator) for _ in range(POINTS)]
    lowest = [
        tensors.lowest_direction(tensors.hessian(cost, EPSILON, target, imposed), cost)
        for cost in costs
    ]
    (curvature, direction), cost = min(zip(lowest, costs, strict=True), key=lambda pair: pair[0][0])
    line = chord_gaps([value(cost + step * direction) for step in PROBED])
    row: Row = {
        "smallest curvature": curvature,
        "excess over chord there": worst(-gap for gap in line),
        "largest increase by averaging": worst(
            value(tensors.average_within_classes(cost, labels)) - value(cost) for cost in costs
        ),
    }
    return row, line


@experiment(
    "Distance of the best end from the simplex ETF, unbalanced classes",
    ("number of the class sizes in the table", "Gram deviation"),
    log="y",
    residual=("Gram deviation",),
    lines=lambda rows: grouped(rows, "{loss}, {marginals}", "", "Gram deviation", points=True),
)
def unbalanced_frames(setting: Setting) -> Measured:
    """Where free vectors end: collapsed? equiangular?"""
    for sizes in UNBALANCED_SIZES:
        labels = tensors.class_labels(sizes)
        for name, kind, criterion in setting.losses.with_marginals(SHARPNESS):
            generator = setting.generator("unbalanced-frames")  # the same starts for all
            ends = descend_from_random(criterion, labels, BASE_DIM, generator, FEW)
            best = ends[0]
            yield {
                "class sizes": listed(sizes),
                "loss": name,
                "marginals": kind,
                "loss value": best.loss,
                "NC1": best.collapse.nc1,
                "smallest β": float(best.across.min()),
                "largest β": float(best.across.max()),
                "Gram deviation": best.deviation,
                "loss spread over starts": ends[-1].loss - best.loss,
            }


@experiment(
    f"Evenness of the class means' spectrum, class sizes {RATIO:g} to 1, c = {SHARPNESS:g}",
    ("number of classes K", "smallest / largest eigenvalue"),
    "With uniform marginals it falls to zero at ten classes, with the target's it does not.",
    residual=("Gram deviation",),
    lines=lambda rows: grouped(rows, "{loss}, {marginals}", "K", "smallest / largest eigenvalue"),
)
def unbalanced_classes(setting: Setting) -> Measured:
    """Ten to one between the largest class and the smallest: which directions the means keep."""
    for n_classes in MANY_CLASSES:
        labels = tensors.class_labels(tuple(class_sizes(n_classes, LARGEST_CLASS, RATIO)))
        for name, kind, criterion in setting.losses.with_marginals(SHARPNESS):
            generator = setting.generator(f"unbalanced-classes {n_classes}")
            (end,) = descend_from_random(criterion, labels, n_classes + 6, generator, 1)
            spectrum = end.collapse.spectrum
            yield {
                "K": n_classes,
                "loss": name,
                "marginals": kind,
                "Gram deviation": end.deviation,
                "NC2 deviation": end.collapse.nc2_deviation,
                "smallest / largest eigenvalue": float(spectrum[-1] / spectrum[0]),
            }
