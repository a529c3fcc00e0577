"""Where free unit vectors end under a loss (the unconstrained-features model).

Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF. And where their conditions end: few
dimensions, other ψ, a sharp loss, unbalanced classes, other losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import geometry
from tricouple_lab.data.gmm import class_sizes
from tricouple_lab.experiments.verify import lemmas, tensors
from tricouple_lab.experiments.verify.gradients import relative_gradient, tangential_gradient
from tricouple_lab.experiments.verify.setting import (
    Criterion,
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
from tricouple_lab.report.chart import Line

SIZES = ((2, 2, 4), (3, 2, 4), (4, 3, 4), (5, 8, 4), (7, 6, 2), (10, 9, 3), (10, 16, 4))
"""(K, d, b) with d ≥ K − 1."""

STARTS = 3
SHARPNESS = 2.0

REACHED = 1e-4
"""Deviation of a Gram matrix from the ETF's below which a descent has reached it."""


@dataclass(frozen=True)
class End:
    """Where a descent ended: unit vectors (N, d) and the losses of all evaluations.

    Where the loss or its gradient was no number, the end is the start, and its loss is NaN.
    """

    embeddings: Tensor
    labels: Tensor
    loss: float
    losses: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """Largest difference between an inner product and that of the simplex ETF."""
        return float((tensors.gram(self.embeddings) - tensors.etf_gram(self.labels)).abs().max())

    @property
    def lowest(self) -> float:
        """Lowest loss met, −∞ if one was no number."""
        return -worst(-loss for loss in (*self.losses, self.loss))

    @property
    def across(self) -> Tensor:
        """The similarities across classes."""
        return tensors.gram(self.embeddings)[self.labels[:, None] != self.labels]

    @property
    def collapse(self) -> geometry.NeuralCollapse:
        """NC1, NC2 and the spectrum of the class means."""
        return geometry.neural_collapse(self.embeddings, self.labels)

    @property
    def distances(self) -> geometry.TwoDistance:
        """Mean and spread of the similarities within and across classes."""
        return geometry.two_distance(self.embeddings, self.labels)


def descend(criterion: Criterion, start: Tensor, labels: Tensor, iterations: int = 200) -> End:
    """Minimise a loss, which normalises its vectors, by at most so many steps of L-BFGS."""
    free = start.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [free],
        max_iter=iterations,
        history_size=20,
        tolerance_grad=1e-10,
        tolerance_change=1e-15,
        line_search_fn="strong_wolfe",
    )
    losses: list[float] = []

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        loss = criterion(free, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        if not (loss.isfinite() and free.grad is not None and free.grad.isfinite().all()):
            raise FloatingPointError  # the descent is over
        return loss

    try:
        optimiser.step(evaluate)
    except FloatingPointError:
        return End(start, labels, math.nan, tuple(losses))
    final = normalize(free.detach(), dim=1)
    with torch.no_grad():
        value = float(criterion(final, labels))
    return End(final, labels, value, tuple(losses))


def descend_from_random(
    criterion: Criterion,
    labels: Tensor,
    dim: int,
    generator: torch.Generator,
    starts: int = 1,
    iterations: int = 200,
) -> list[End]:
    """Descend from several random starts; the best end comes first."""
    drawn = (tensors.random_unit(len(labels), dim, generator) for _ in range(starts))
    ends = [descend(criterion, start, labels, iterations) for start in drawn]
    # A NaN would leave the order to chance.
    return sorted(ends, key=lambda end: worst([end.loss]))


def reached(ends: list[End]) -> str:
    """How many descents ended at the simplex ETF, in words."""
    return f"{sum(end.deviation <= REACHED for end in ends)} of {len(ends)}"


def gaps(name: str, end: End, optimum: float) -> Line:
    """How far above its optimum a loss is, evaluation by evaluation."""
    return numbered(name, [loss - optimum for loss in end.losses])


# The closed form, at the sharpness of these experiments.
closed_form = partial(geometry.etf_loss, temperature=1.0, epsilon=1 / SHARPNESS)


@lru_cache(maxsize=1)  # two statements are about the same descents
def descents(setting: Setting) -> dict[tuple[int, int, int], list[End]]:
    """The ends from random starts, best first, for each (K, d, b)."""
    generator = setting.generator("frames")
    criterion = setting.losses.triplets(SHARPNESS)
    labels = {(k, d, b): tensors.balanced_labels(k, b) for k, d, b in SIZES}
    return {
        size: descend_from_random(criterion, own, size[1], generator, STARTS)
        for size, own in labels.items()
    }


def _distance_from_the_optimum(rows: list[Row]) -> float:
    above = [abs(float(row["loss above closed form"])) for row in rows]
    below = [-float(row["lowest loss seen above it"]) for row in rows]
    return worst([worst_of(rows, "Gram deviation"), *above, *below])


@experiment(
    "Descent of free vectors to the closed-form optimum",
    ("evaluation", "loss − closed form"),
    log="y",
    residual=_distance_from_the_optimum,
)
def etf(setting: Setting) -> Measured:
    """The best end is the ETF, its loss the closed form; nothing met on the way is lower.

    The theorem is about the optimum, not about descents: that every start finds it is reported as
    a number, but only the best one decides.
    """
    for (n_classes, dim, per_class), ends in descents(setting).items():
        optimum = closed_form(n_classes, per_class)
        best, lowest = ends[0], min(end.lowest for end in ends)
        yield {
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
        yield gaps(f"K = {n_classes}, d = {dim}", best, optimum)


@experiment(
    "Similarities at the optimum",
    ("number of classes K", "inner product"),
    "α should be one, and β should lie on the curve −1/(K−1).",
    residual=("spread of α", "spread of β"),
    lines=lambda rows: [
        *grouped(rows, "α measured", "K", "α", points=True),
        *grouped(rows, "β measured", "K", "β", points=True),
        *grouped(rows, "−1/(K−1)", "K", "−1/(K−1)"),
    ],
)
def homogeneity(setting: Setting) -> Measured:
    """The spread of the similarities within and across classes at the best end.

    It is infinite where a loss on the way was no number.
    """
    for (n_classes, dim, per_class), ends in descents(setting).items():
        distances = ends[0].distances
        met = math.isfinite(worst(end.lowest for end in ends))
        yield {
            "K": n_classes,
            "d": dim,
            "b": per_class,
            "α": distances.alpha,
            "spread of α": distances.alpha_std if met else math.inf,
            "β": distances.beta,
            "spread of β": distances.beta_std if met else math.inf,
            "−1/(K−1)": -1 / (n_classes - 1),
        }


# --- where the conditions of the paper end --------------------------------------------------------

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)

SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
SHARPNESS_STEPS = 100

BASE_CLASSES, BASE_PER_CLASS, BASE_DIM = 5, 4, 8
BASE_STEPS = 25

UNBALANCED_SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3))
FEW = 2  # starts

MANY_CLASSES = (3, 5, 10)
LARGEST_CLASS, RATIO = 20, 10.0


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
    optimum = closed_form(LOW_CLASSES, LOW_PER_CLASS)
    collapsed = closed_form(LOW_CLASSES, LOW_PER_CLASS, alpha=1.0, beta=1.0)
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
    residual=lambda rows: worst_of([rows[len(SHARPNESSES) - 1]], *list(rows[0])[2:]),
)
def sharpness(setting: Setting) -> Measured:
    """How close descent comes to the ETF within a fixed number of steps, against c."""
    labels = tensors.balanced_labels(5, 4)
    largest: list[Row] = [{"c": c, "measure": "largest, of samples"} for c in SHARPNESSES]
    means: list[Row] = [{"c": c, "measure": "mean, of class means (NC2)"} for c in SHARPNESSES]
    for value, of_samples, of_means in zip(SHARPNESSES, largest, means, strict=True):
        for name, criterion in setting.losses.at_sharpness(value).items():
            generator = setting.generator("sharpness")  # the same start for all
            (end,) = descend_from_random(criterion, labels, 8, generator, 1, SHARPNESS_STEPS)
            of_samples[name], of_means[name] = end.deviation, end.collapse.nc2_deviation
    yield from (*largest, *means)
    for name in list(largest[0])[2:]:
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
        value, draw = tensors.loss_value(criterion, labels), lemmas.random_gram(len(labels))
        excess = lemmas.violation(lemmas.convexity_gaps(value, draw, generator))
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
            "largest step in Δ": lemmas.largest_step(values),
            "gradient at the ETF": relative_gradient(criterion, frame, random, labels)[2],
            "starts at the ETF": reached(ends),
            "Gram deviation": worst(end.deviation for end in ends),
            "loss at the end − at the ETF": ends[0].loss - optimum,
        }
        yield gaps(name, ends[0], optimum)


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
            best, *others = descend_from_random(criterion, labels, BASE_DIM, generator, FEW)
            yield {
                "class sizes": listed(sizes),
                "loss": name,
                "marginals": kind,
                "loss value": best.loss,
                "NC1": best.collapse.nc1,
                "smallest β": float(best.across.min()),
                "largest β": float(best.across.max()),
                "Gram deviation": best.deviation,
                "loss spread over starts": others[-1].loss - best.loss,
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
