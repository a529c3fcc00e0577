"""Where the paper's conditions end: few dimensions, other ψ, a sharp loss, other losses."""

from __future__ import annotations

from itertools import pairwise

from torch.nn.functional import normalize

from tricouple import geometry
from tricouple.experiments.verify.configurations import (
    average_over_symmetries,
    balanced_labels,
    etf_gram,
    gram,
    random_unit,
    two_distance_path,
    vectors,
)
from tricouple.experiments.verify.convexity import (
    convexity_gaps,
    loss_value,
    random_gram,
    violation,
)
from tricouple.experiments.verify.coupling import SHAPINGS, by_name
from tricouple.experiments.verify.descent import descend_from_random, gaps, loss_at_etf, reached
from tricouple.experiments.verify.frames import SHARPNESS, STARTS, optimal_loss
from tricouple.experiments.verify.results import Finding, Row, chart, worst, worst_of
from tricouple.experiments.verify.setting import Setting
from tricouple.experiments.verify.stationarity import relative_gradient, tangential_gradient
from tricouple.experiments.verify.two_distance import loss_at
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
    labels = balanced_labels(LOW_CLASSES, LOW_PER_CLASS)
    optimum = optimal_loss(LOW_CLASSES, LOW_PER_CLASS)
    collapsed = geometry.etf_loss(
        LOW_CLASSES, LOW_PER_CLASS, temperature=1.0, epsilon=1 / SHARPNESS, alpha=1.0, beta=1.0
    )
    rows: list[Row] = []
    series: list[Line] = []
    for dim in LOW_DIMS:
        best = descend_from_random(criterion, labels, dim, generator, STARTS)[0]
        collapse, distances = best.collapse, best.distances
        across = gram(best.embeddings)[labels[:, None] != labels]
        rows.append(
            {
                "d": dim,
                "loss above closed form": best.loss - optimum,
                "loss below total collapse": collapsed - best.loss,
                "NC1": collapse.nc1,
                "NC2 std": collapse.nc2_std,
                "spread of β": distances.beta_std,
                "largest β": float(across.max()),
                "nonzero eigenvalues": int((collapse.spectrum > 1e-6).sum()),
                "smallest / largest of these": _evenness(collapse.spectrum.tolist()),
            }
        )
        spectrum = tuple(collapse.spectrum.tolist())
        series.append(Line(f"d = {dim}", tuple(map(float, range(1, len(spectrum) + 1))), spectrum))
    figure = chart(
        "Spectrum of the class means, K = 10",
        "number of the eigenvalue",
        "eigenvalue",
        series,
        "The eigenvalues of the class means in descending order, one curve for each dimension: "
        "d of them are above zero, at most nine.",
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
        labels = balanced_labels(n_classes, per_class)
        for name in SHAPINGS:
            # The envelope is exact for balanced classes, and cheap.
            criterion = setting.losses.triplets(
                SHARPNESS, shaping=by_name(name), gradient="envelope"
            )
            ends = descend_from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = loss_at_etf(criterion, labels)
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
        "evaluation",
        "loss − loss at the ETF",
        series,
        "The gap to the loss of the simplex ETF against the evaluations, one curve for each ψ: "
        "a curve that levels off far above rounding errors has met a local minimum.",
        log="y",
    )
    return Finding(worst_of(rows, "largest Gram deviation"), rows, figure)


def sharpness(setting: Setting) -> Finding:
    """How close descent comes to the ETF within a fixed number of steps, against c."""
    labels = balanced_labels(5, 4)
    deviations: dict[str, list[float]] = {}
    of_means: list[Row] = []
    for value in SHARPNESSES:
        of_means.append({"c": value, "measure": "mean, of class means (NC2)"})
        for name, criterion in setting.losses.at_sharpness(value).items():
            generator = setting.generator("sharpness")  # the same start for all
            (end,) = descend_from_random(criterion, labels, 8, generator, 1, SHARPNESS_STEPS)
            deviations.setdefault(name, []).append(end.deviation)
            of_means[-1][name] = end.collapse.nc2_deviation
    largest: list[Row] = [
        {
            "c": value,
            "measure": "largest, of samples",
            **{name: line[index] for name, line in deviations.items()},
        }
        for index, value in enumerate(SHARPNESSES)
    ]
    rows = (*largest, *of_means)
    figure = chart(
        f"Distance from the ETF after at most {SHARPNESS_STEPS} steps, K = 5, d = 8",
        "sharpness c",
        "Gram deviation",
        [Line(name, SHARPNESSES, tuple(line)) for name, line in deviations.items()],
        "The distance from the simplex ETF at the end of descent against the sharpness, one curve "
        "for each loss, on logarithmic axes.",
        log="xy",
    )
    return Finding(worst(line[-1] for line in deviations.values()), rows, figure)


def baselines(setting: Setting) -> Finding:
    """Each loss at the same sharpness: convexity, averaging, monotonicity, stationarity, descent.

    All in terms of the Gram matrix, because InfoNCE has no coupling and IOT another one.
    """
    labels = balanced_labels(BASE_CLASSES, BASE_PER_CLASS)
    frame = normalize(vectors(etf_gram(labels)), dim=1)
    rows: list[Row] = []
    series: list[Line] = []
    for name, criterion in setting.losses.at_sharpness(SHARPNESS).items():
        generator = setting.generator("baselines")  # the same matrices and starts for all
        value, draw = loss_value(criterion, labels), random_gram(len(labels))
        excess = violation(convexity_gaps(value, draw, generator))
        drawn = [draw(generator) for _ in range(10)]
        increase = worst(
            value(average_over_symmetries(matrix, labels)) - value(matrix) for matrix in drawn
        )
        path = two_distance_path(BASE_CLASSES, BASE_PER_CLASS, BASE_STEPS)
        values = [loss_at(criterion, labels, *pair) for pair in path]
        random = random_unit(len(labels), BASE_DIM, generator)
        ends = descend_from_random(criterion, labels, BASE_DIM, generator, STARTS)
        optimum = loss_at_etf(criterion, labels)
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
        "evaluation",
        "loss − loss at the ETF",
        series,
        "How far each loss is above its value at the simplex ETF, evaluation by evaluation, on a "
        "logarithmic axis that ends at rounding errors.",
        log="y",
    )
    return Finding(worst_of(rows, "Gram deviation"), rows, figure)


def _evenness(spectrum: list[float]) -> float:
    positive = [value for value in spectrum if value > 1e-6]
    return positive[-1] / positive[0] if positive else 0.0
