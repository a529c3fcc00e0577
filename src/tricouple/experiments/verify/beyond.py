"""Where the paper's conditions end: few dimensions, other ψ, a sharp loss, other losses."""

from __future__ import annotations

from itertools import pairwise

from torch.nn.functional import normalize

from tricouple import geometry
from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.convexity import convexity_gaps, random_gram, violation
from tricouple.experiments.verify.frames import (
    SHARPNESS,
    STARTS,
    descend_from_random,
    gaps,
    optimal_loss,
    reached,
)
from tricouple.experiments.verify.gradients import relative_gradient, tangential_gradient
from tricouple.experiments.verify.results import (
    Finding,
    Row,
    chart,
    grouped,
    numbered,
    worst,
    worst_of,
)
from tricouple.experiments.verify.setting import Setting
from tricouple.report.chart import Line

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)

SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
SHARPNESS_STEPS = 100

BASE_CLASSES, BASE_PER_CLASS, BASE_DIM = 5, 4, 8
BASE_STEPS = 25


def low_dimension(setting: Setting) -> Finding:
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
    rows: list[Row] = []
    series: list[Line] = []
    for dim in LOW_DIMS:
        best = descend_from_random(criterion, labels, dim, generator, STARTS)[0]
        spectrum = best.collapse.spectrum.tolist()
        positive = [value for value in spectrum if value > 1e-6]
        rows.append(
            {
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
        )
        series.append(numbered(f"d = {dim}", spectrum))
    figure = chart(
        "Spectrum of the class means, K = 10",
        ("number of the eigenvalue", "eigenvalue"),
        series,
        "Eigenvalues of the class means, descending: d of them are above zero, at most nine.",
    )
    below = [row for row in rows if int(row["d"]) < LOW_CLASSES - 1]
    residual = -worst(-float(row["loss above closed form"]) for row in below)
    return Finding(residual, rows, figure)


def other_shapings(setting: Setting) -> Finding:
    """Whether descent ends at the ETF for ψ that are not affine: open in the paper."""
    generator = setting.generator("other-shapings")
    rows: list[Row] = []
    series: list[Line] = []
    for n_classes, dim, per_class in ((3, 2, 3), (4, 5, 2)):
        labels = tensors.balanced_labels(n_classes, per_class)
        for name in tensors.SHAPINGS:
            # The envelope is exact for balanced classes, and cheap.
            criterion = setting.losses.triplets(
                SHARPNESS, shaping=tensors.by_name(name), gradient="envelope"
            )
            ends = descend_from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = tensors.loss_value(criterion, labels)(tensors.etf_gram(labels))
            rows.append(
                {
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
            )
            if n_classes == 3:
                series.append(gaps(name, ends[-1], optimum))
    figure = chart(
        "Worst descent of free vectors for several ψ, K = 3, d = 2",
        ("evaluation", "loss − loss at the ETF"),
        series,
        "A curve that levels off far above rounding errors has met a local minimum.",
        log="y",
    )
    return Finding(worst_of(rows, "largest Gram deviation"), rows, figure)


def sharpness(setting: Setting) -> Finding:
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
    figure = chart(
        f"Distance from the ETF after at most {SHARPNESS_STEPS} steps, K = 5, d = 8",
        ("sharpness c", "Gram deviation"),
        [line for name in criteria for line in grouped(largest, name, "c", name)],
        log="xy",
    )
    return Finding(worst_of(largest[-1:], *criteria), (*largest, *of_means), figure)


def baselines(setting: Setting) -> Finding:
    """Each loss at the same sharpness: convexity, averaging, monotonicity, stationarity, descent.

    All in terms of the Gram matrix, because InfoNCE has no coupling and IOT another one.
    """
    labels = tensors.balanced_labels(BASE_CLASSES, BASE_PER_CLASS)
    frame = normalize(tensors.vectors(tensors.etf_gram(labels)), dim=1)
    rows: list[Row] = []
    series: list[Line] = []
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
        rows.append(
            {
                "loss": name,
                "excess over chord": excess,
                "increase by averaging": increase,
                "largest step in Δ": worst(late - early for early, late in pairwise(values)),
                "gradient at the ETF": relative_gradient(criterion, frame, random, labels)[2],
                "starts at the ETF": reached(ends),
                "Gram deviation": worst(end.deviation for end in ends),
                "loss at the end − at the ETF": ends[0].loss - optimum,
            }
        )
        series.append(gaps(name, ends[0], optimum))
    figure = chart(
        f"Descent of free vectors, K = {BASE_CLASSES}, d = {BASE_DIM}, c = {SHARPNESS:g}",
        ("evaluation", "loss − loss at the ETF"),
        series,
        log="y",
    )
    return Finding(worst_of(rows, "Gram deviation"), rows, figure)
