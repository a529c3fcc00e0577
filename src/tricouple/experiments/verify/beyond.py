"""Where the paper's conditions end: too few dimensions, ψ that is not affine, a sharp loss."""

from __future__ import annotations

from torch import Tensor

from tricouple import geometry
from tricouple.experiments.verify.configurations import balanced_labels, gram
from tricouple.experiments.verify.coupling import (
    SHAPINGS,
    divergence_by_envelope,
    triplet_cost,
    triplet_target,
)
from tricouple.experiments.verify.descent import descend_from_random, loss_at_etf
from tricouple.experiments.verify.frames import SHARPNESS, STARTS, gap_series, optimal_loss
from tricouple.experiments.verify.results import Figure, Finding, Row, Series, worst, worst_of
from tricouple.experiments.verify.setting import Criterion, Setting
from tricouple.experiments.verify.stationarity import tangential_gradient
from tricouple.shaping import Shaping

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)

SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
SHARPNESS_STEPS = 100


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
    series: list[Series] = []
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
        numbers = tuple(float(number) for number in range(1, len(spectrum) + 1))
        series.append(Series(f"d = {dim}", numbers, spectrum))
    figure = Figure(
        "Spectrum of the class means, K = 10",
        "number of the eigenvalue",
        "eigenvalue",
        tuple(series),
        "The eigenvalues of the class means in descending order, one curve for each dimension: "
        "d of them are above zero, at most nine.",
    )
    below = [row for row in rows if int(row["d"]) < LOW_CLASSES - 1]
    residual = -worst(-float(row["loss above closed form"]) for row in below)
    return Finding(residual, tuple(rows), figure)


def shaped_criterion(shaping: Shaping) -> Criterion:
    """Neg-MMIOT with any ψ, dense; its gradient is exact for balanced classes."""

    def criterion(embeddings: Tensor, labels: Tensor) -> Tensor:
        cost = triplet_cost(gram(embeddings), shaping)
        return divergence_by_envelope(cost, 1 / SHARPNESS, triplet_target(labels))

    return criterion


def other_shapings(setting: Setting) -> Finding:
    """Whether descent ends at the ETF for ψ that are not affine: open in the paper."""
    generator = setting.generator("other-shapings")
    rows: list[Row] = []
    series: list[Series] = []
    for n_classes, dim, per_class in ((3, 2, 3), (4, 5, 2)):
        labels = balanced_labels(n_classes, per_class)
        for name, shaping in SHAPINGS.items():
            criterion = shaped_criterion(shaping)
            ends = descend_from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = loss_at_etf(criterion, labels)
            rows.append(
                {
                    "ψ": name,
                    "K": n_classes,
                    "d": dim,
                    "b": per_class,
                    "starts at the ETF": f"{sum(end.reached for end in ends)} of {len(ends)}",
                    "best loss − at the ETF": ends[0].loss - optimum,
                    "worst loss − at the ETF": ends[-1].loss - optimum,
                    "largest Gram deviation": worst(end.deviation for end in ends),
                    "largest gradient at an end": worst(
                        tangential_gradient(criterion, end.embeddings, labels) for end in ends
                    ),
                }
            )
            if n_classes == 3:
                series.append(gap_series(name, [loss - optimum for loss in ends[-1].losses]))
    figure = Figure(
        "Worst descent of free vectors for several ψ, K = 3, d = 2",
        "evaluation",
        "loss − loss at the ETF",
        tuple(series),
        "The gap to the loss of the simplex ETF against the evaluations, one curve for each ψ: "
        "a curve that levels off far above rounding errors has met a local minimum.",
        log_y=True,
    )
    return Finding(worst_of(rows, "largest Gram deviation"), tuple(rows), figure)


def sharpness(setting: Setting) -> Finding:
    """How close descent comes to the ETF within a fixed number of steps, against c."""
    labels = balanced_labels(5, 4)
    deviations: dict[str, list[float]] = {}
    for value in SHARPNESSES:
        for name, criterion in setting.losses.at_sharpness(value).items():
            generator = setting.generator("sharpness")  # the same start for all
            (end,) = descend_from_random(criterion, labels, 8, generator, 1, SHARPNESS_STEPS)
            deviations.setdefault(name, []).append(end.deviation)
    rows: tuple[Row, ...] = tuple(
        {"c": value, **{name: line[index] for name, line in deviations.items()}}
        for index, value in enumerate(SHARPNESSES)
    )
    figure = Figure(
        f"Distance from the ETF after at most {SHARPNESS_STEPS} steps, K = 5, d = 8",
        "sharpness c",
        "Gram deviation",
        tuple(Series(name, SHARPNESSES, tuple(line)) for name, line in deviations.items()),
        "The distance from the simplex ETF at the end of descent against the sharpness, one curve "
        "for each loss, on logarithmic axes.",
        log_x=True,
        log_y=True,
    )
    return Finding(worst(line[-1] for line in deviations.values()), rows, figure)


def _evenness(spectrum: list[float]) -> float:
    positive = [value for value in spectrum if value > 1e-6]
    return positive[-1] / positive[0] if positive else 0.0
