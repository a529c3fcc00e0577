"""Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF, found by descents of free vectors."""

from __future__ import annotations

import math
from functools import lru_cache

from tricouple import geometry
from tricouple.experiments.verify.configurations import balanced_labels
from tricouple.experiments.verify.descent import End, descend_from_random, gaps, reached
from tricouple.experiments.verify.results import Finding, Row, chart, grouped, worst, worst_of
from tricouple.experiments.verify.setting import Setting
from tricouple.report.chart import Line

SIZES = ((2, 2, 4), (3, 2, 4), (4, 3, 4), (5, 8, 4), (7, 6, 2), (10, 9, 3), (10, 16, 4))
"""(K, d, b) with d ≥ K − 1."""

STARTS = 3
SHARPNESS = 2.0


def optimal_loss(n_classes: int, per_class: int) -> float:
    """The closed form at the simplex ETF, at the sharpness of these experiments."""
    return geometry.etf_loss(n_classes, per_class, temperature=1.0, epsilon=1 / SHARPNESS)


@lru_cache(maxsize=1)  # two statements are about the same descents
def descents(setting: Setting) -> list[tuple[int, int, int, list[End]]]:
    """(K, d, b) and the ends from random starts, best first."""
    generator = setting.generator("frames")
    criterion = setting.losses.triplets(SHARPNESS)
    return [
        (
            n_classes,
            dim,
            per_class,
            descend_from_random(
                criterion, balanced_labels(n_classes, per_class), dim, generator, STARTS
            ),
        )
        for n_classes, dim, per_class in SIZES
    ]


def etf(setting: Setting) -> Finding:
    """The best end is the ETF, its loss the closed form; nothing met on the way is lower.

    The theorem is about the optimum, not about descents: that every start finds it is reported as
    a number, but only the best one decides.
    """
    rows: list[Row] = []
    series: list[Line] = []
    for n_classes, dim, per_class, ends in descents(setting):
        optimum = optimal_loss(n_classes, per_class)
        lowest = min(end.lowest for end in ends)
        best = ends[0]
        rows.append(
            {
                "K": n_classes,
                "d": dim,
                "b": per_class,
                "starts at the ETF": reached(ends),
                "Gram deviation": best.deviation,
                "loss above closed form": best.loss - optimum,
                "lowest loss seen above it": lowest - optimum,
                "NC1": best.collapse.nc1,
                "NC2 std": best.collapse.nc2_std,
            }
        )
        series.append(gaps(f"K = {n_classes}, d = {dim}", best, optimum))
    residual = worst(
        number
        for row in rows
        for number in (
            float(row["Gram deviation"]),
            abs(float(row["loss above closed form"])),
            -float(row["lowest loss seen above it"]),
        )
    )
    figure = chart(
        "Descent of free vectors to the closed-form optimum",
        "evaluation",
        "loss − closed form",
        series,
        "How far the loss is above the closed form, evaluation by evaluation, on a logarithmic "
        "axis that ends at rounding errors; one curve for each number of classes and dimension.",
        log="y",
    )
    return Finding(residual, rows, figure)


def homogeneity(setting: Setting) -> Finding:
    """The spread of the similarities within and across classes at the best end."""
    rows: list[Row] = []
    met: list[float] = []
    for n_classes, dim, per_class, ends in descents(setting):
        distances = ends[0].distances
        met.extend(end.lowest for end in ends)
        rows.append(
            {
                "K": n_classes,
                "d": dim,
                "b": per_class,
                "α": distances.alpha,
                "spread of α": distances.alpha_std,
                "β": distances.beta,
                "spread of β": distances.beta_std,
                "−1/(K−1)": -1 / (n_classes - 1),
            }
        )
    figure = chart(
        "Similarities at the optimum",
        "number of classes K",
        "inner product",
        [
            *grouped(rows, "α measured", (), "K", "α", points=True),
            *grouped(rows, "β measured", (), "K", "β", points=True),
            *grouped(rows, "−1/(K−1)", (), "K", "−1/(K−1)"),
        ],
        "The measured α and β against the number of classes, with the curve −1/(K−1) that β "
        "should lie on; α should be one.",
    )
    spread = worst_of(rows, "spread of α", "spread of β")
    return Finding(spread if math.isfinite(worst(met)) else math.inf, rows, figure)
