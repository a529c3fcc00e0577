"""Unbalanced classes, where the paper is silent: convexity and the ends of free descents."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple.data.gmm import class_sizes
from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.convexity import chord_gaps, random_cost
from tricouple.experiments.verify.frames import SHARPNESS, descend_from_random
from tricouple.experiments.verify.results import Row, grouped, listed, worst
from tricouple.experiments.verify.setting import MARGINALS, Measured, Setting, experiment
from tricouple.report.chart import Line

EPSILON = 0.5
DENSE_SIZES = ((4, 2), (6, 2), (3, 3, 2), (5, 2, 2))
POINTS = 4
STEPS = tuple(torch.linspace(-1.0, 1.0, 9, dtype=torch.float64).tolist())

SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3))
DIM = 8
STARTS = 2

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
                yield Line(f"{kind} marginals", STEPS, tuple(line))


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
    line = chord_gaps([value(cost + step * direction) for step in STEPS])
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
    for sizes in SIZES:
        labels = tensors.class_labels(sizes)
        for name, kind, criterion in setting.losses.with_marginals(SHARPNESS):
            generator = setting.generator("unbalanced-frames")  # the same starts for all
            ends = descend_from_random(criterion, labels, DIM, generator, STARTS)
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
