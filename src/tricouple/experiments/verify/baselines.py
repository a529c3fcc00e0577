"""The same questions asked of the other losses, about which the paper's theory says nothing."""

from __future__ import annotations

from itertools import pairwise

from torch.nn.functional import normalize

from tricouple.experiments.verify.configurations import (
    average_over_symmetries,
    balanced_labels,
    etf_gram,
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
from tricouple.experiments.verify.descent import descend_from_random, loss_at_etf
from tricouple.experiments.verify.frames import STARTS, gap_series
from tricouple.experiments.verify.results import Figure, Finding, Row, Series, worst, worst_of
from tricouple.experiments.verify.setting import Setting
from tricouple.experiments.verify.stationarity import relative_gradient
from tricouple.experiments.verify.two_distance import loss_at

SHARPNESS = 2.0
CLASSES, PER_CLASS, DIM = 5, 4, 8
STEPS = 25


def baselines(setting: Setting) -> Finding:
    """Each loss at the same sharpness: convexity, averaging, monotonicity, stationarity, descent.

    All in terms of the Gram matrix, because InfoNCE has no coupling and IOT another one.
    """
    labels = balanced_labels(CLASSES, PER_CLASS)
    frame = normalize(vectors(etf_gram(labels)), dim=1)
    rows: list[Row] = []
    series: list[Series] = []
    for name, criterion in setting.losses.at_sharpness(SHARPNESS).items():
        generator = setting.generator("baselines")  # the same matrices and starts for all
        value, draw = loss_value(criterion, labels), random_gram(len(labels))
        excess = violation(convexity_gaps(value, draw, generator))
        drawn = [draw(generator) for _ in range(10)]
        increase = worst(
            value(average_over_symmetries(matrix, labels)) - value(matrix) for matrix in drawn
        )
        path = two_distance_path(CLASSES, PER_CLASS, STEPS)
        values = [loss_at(criterion, labels, *pair) for pair in path]
        random = random_unit(len(labels), DIM, generator)
        ends = descend_from_random(criterion, labels, DIM, generator, STARTS)
        optimum = loss_at_etf(criterion, labels)
        rows.append(
            {
                "loss": name,
                "excess over chord": excess,
                "increase by averaging": increase,
                "largest step in Δ": worst(late - early for early, late in pairwise(values)),
                "gradient at the ETF": relative_gradient(criterion, frame, random, labels)[2],
                "starts at the ETF": f"{sum(end.reached for end in ends)} of {len(ends)}",
                "Gram deviation": worst(end.deviation for end in ends),
                "loss at the end − at the ETF": ends[0].loss - optimum,
            }
        )
        series.append(gap_series(name, [loss - optimum for loss in ends[0].losses]))
    figure = Figure(
        f"Descent of free vectors, K = {CLASSES}, d = {DIM}, b = {PER_CLASS}, c = {SHARPNESS:g}",
        "evaluation",
        "loss − loss at the ETF",
        tuple(series),
        "How far each loss is above its value at the simplex ETF, evaluation by evaluation, on a "
        "logarithmic axis that ends at rounding errors.",
        log_y=True,
    )
    return Finding(worst_of(rows, "Gram deviation"), tuple(rows), figure)
