"""Where free unit vectors end under a loss (the unconstrained-features model).

Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF. And where their conditions end: few
dimensions, other ψ, a sharp loss, unbalanced classes, other losses.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from theory import lemmas, setting
from theory.gradients import relative_gradient, tangential_gradient
from theory.setting import Criterion, Measured, Row, Setting, worst, worst_of
from tricouple import geometry
from tricouple_lab.data.generated import class_sizes

# (K, d, b) with d ≥ K − 1.
SIZES = ((2, 2, 4), (3, 2, 4), (4, 3, 4), (5, 8, 4), (7, 6, 2), (10, 9, 3), (10, 16, 4))
STARTS = 3
SHARPNESS = 2.0
REACHED = 1e-4  # deviation from the Gram matrix of the ETF below which a descent has reached it


@dataclass(frozen=True)
class End:
    """Where a descent ended: unit vectors (N, d), and the losses of all evaluations.

    Where the loss or its gradient was no number, the end is the start, and its loss is NaN.
    """

    embeddings: Tensor
    labels: Tensor
    loss: float
    losses: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """Largest difference between an inner product and that of the simplex ETF."""
        etf = setting.etf_gram(self.labels)
        return float((setting.gram(self.embeddings) - etf).abs().max())

    @property
    def lowest(self) -> float:
        """Lowest loss met, −∞ if one was no number."""
        return -worst(-loss for loss in (*self.losses, self.loss))

    @property
    def collapse(self) -> geometry.NeuralCollapse:
        """NC1, NC2 and the spectrum of the class means."""
        return geometry.neural_collapse(self.embeddings, self.labels)

    def across(self) -> Tensor:
        """The similarities across classes."""
        return setting.gram(self.embeddings)[self.labels[:, None] != self.labels]


def descend(criterion: Criterion, start: Tensor, labels: Tensor, iterations: int = 200) -> End:
    """Minimise a loss, which normalises its vectors, by at most so many steps of L-BFGS."""
    free = start.clone().requires_grad_()
    how: dict[str, Any] = {"history_size": 20, "line_search_fn": "strong_wolfe"}
    tolerances: dict[str, Any] = {"tolerance_grad": 1e-10, "tolerance_change": 1e-15}
    optimiser = torch.optim.LBFGS([free], max_iter=iterations, **how, **tolerances)
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
        return End(final, labels, float(criterion(final, labels)), tuple(losses))


def from_random(
    criterion: Criterion, labels: Tensor, dim: int, generator: torch.Generator,
    starts: int = 1, iterations: int = 200,
) -> list[End]:  # fmt: skip
    """Descend from several random starts; the best end comes first."""
    drawn = (setting.random_unit(len(labels), dim, generator) for _ in range(starts))
    ends = [descend(criterion, start, labels, iterations) for start in drawn]
    return sorted(ends, key=lambda end: worst([end.loss]))  # a NaN last


def reached(ends: list[End]) -> Row:
    """How many descents ended at the simplex ETF, as a column."""
    count = sum(end.deviation <= REACHED for end in ends)
    return {"starts at the ETF": f"{count} of {len(ends)}"}


def neural_collapse(end: End) -> Row:
    """NC1 and NC2, as columns."""
    return {"NC1": end.collapse.nc1, "NC2 std": end.collapse.nc2_std}


closed_form = partial(geometry.etf_loss, temperature=1.0, epsilon=1 / SHARPNESS)


@lru_cache(maxsize=1)  # two statements are about the same descents
def descents(given: Setting) -> dict[tuple[int, int, int], list[End]]:
    """The ends from random starts, best first, for each (K, d, b)."""
    generator = given.generator("frames")
    criterion = given.losses.triplets(SHARPNESS)
    labels = {(k, d, b): setting.class_labels((b,) * k) for k, d, b in SIZES}
    return {
        size: from_random(criterion, own, size[1], generator, STARTS)
        for size, own in labels.items()
    }


def etf(given: Setting) -> Measured:
    """The best end is the ETF, its loss the closed form; nothing met on the way is lower.

    The theorem is about the optimum: how many starts find it is a number of the table, but only
    the best one decides.
    """
    for (n_classes, dim, per_class), ends in descents(given).items():
        optimum = closed_form(n_classes, per_class)
        best, lowest = ends[0], min(end.lowest for end in ends)
        row: Row = {"K": n_classes, "d": dim, "b": per_class} | reached(ends)
        row |= {"Gram deviation": best.deviation, "loss above closed form": best.loss - optimum}
        yield row | {"lowest loss seen above it": lowest - optimum} | neural_collapse(best)


def distance_from_optimum(rows: list[Row]) -> float:
    """The largest deviation of the best ends, or of their losses, or how far a loss is below."""
    above = [abs(float(row["loss above closed form"])) for row in rows]
    below = [-float(row["lowest loss seen above it"]) for row in rows]
    return worst([worst_of(rows, "Gram deviation"), *above, *below])


def homogeneity(given: Setting) -> Measured:
    """⟨z_i, z_j⟩ = α within classes and β across: the spread of either at the best end.

    It is infinite where a loss on the way was no number.
    """
    for (n_classes, dim, per_class), ends in descents(given).items():
        found = geometry.two_distance(ends[0].embeddings, ends[0].labels)
        no_number = 0.0 if math.isfinite(worst(end.lowest for end in ends)) else math.inf
        row: Row = {"K": n_classes, "d": dim, "b": per_class}
        row |= {"α": found.alpha, "spread of α": found.alpha_std + no_number}
        row |= {"β": found.beta, "spread of β": found.beta_std + no_number}
        yield row | {"−1/(K−1)": -1 / (n_classes - 1)}


# Where the conditions of the paper end

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)
SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
SHARPNESS_STEPS = 100
BASE_CLASSES, BASE_PER_CLASS, BASE_DIM, BASE_STEPS = 5, 4, 8, 25
UNBALANCED_SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3))
MANY_CLASSES = (3, 5, 10)
LARGEST_CLASS, RATIO = 20, 10.0


def low_dimension(given: Setting) -> Measured:
    """Ten classes in fewer than nine dimensions.

    In d < K − 1 the only two-distance configuration is total collapse, Δ = 0 (the Gram matrix of
    any other has rank K − 1 or more); its loss is reported for comparison.
    """
    generator = given.generator("low-dimension")
    criterion = given.losses.triplets(SHARPNESS)
    labels = setting.class_labels((LOW_PER_CLASS,) * LOW_CLASSES)
    optimum = closed_form(LOW_CLASSES, LOW_PER_CLASS)
    collapsed = closed_form(LOW_CLASSES, LOW_PER_CLASS, alpha=1.0, beta=1.0)
    for dim in LOW_DIMS:
        best = from_random(criterion, labels, dim, generator, STARTS)[0]
        across = best.across()
        positive = [value for value in best.collapse.spectrum.tolist() if value > 1e-6]
        row: Row = {"d": dim, "loss above closed form": best.loss - optimum}
        row |= {"loss below total collapse": collapsed - best.loss} | neural_collapse(best)
        row |= {"spread of β": float(across.std(correction=0)), "largest β": float(across.max())}
        ratio = positive[-1] / positive[0] if positive else 0.0
        yield row | {"nonzero eigenvalues": len(positive), "smallest / largest of these": ratio}


def other_shapings(given: Setting) -> Measured:
    """Whether descent ends at the ETF for ψ that are not affine: open in the paper."""
    generator = given.generator("other-shapings")
    for n_classes, dim, per_class in ((3, 2, 3), (4, 5, 2)):
        labels = setting.class_labels((per_class,) * n_classes)
        for name in setting.SHAPINGS:
            # The envelope is exact for balanced classes, and fast.
            how = {"shaping": setting.by_name(name), "gradient": "envelope"}
            criterion = given.losses.triplets(SHARPNESS, **how)
            ends = from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = setting.loss_value(criterion, labels)(setting.etf_gram(labels))
            norms = (tangential_gradient(criterion, end.embeddings, labels) for end in ends)
            row: Row = {"ψ": name, "K": n_classes, "d": dim, "b": per_class}
            row |= reached(ends)
            row |= {"best loss − at the ETF": ends[0].loss - optimum}
            row |= {"worst loss − at the ETF": ends[-1].loss - optimum}
            row |= {"largest Gram deviation": worst(end.deviation for end in ends)}
            yield row | {"largest gradient at an end": worst(norms)}


def sharpness(given: Setting) -> Measured:
    """How close descent comes to the ETF within a fixed number of steps, against c."""
    labels = setting.class_labels((4,) * 5)
    largest: list[Row] = [{"c": c, "measure": "largest, of samples"} for c in SHARPNESSES]
    means: list[Row] = [{"c": c, "measure": "mean, of class means (NC2)"} for c in SHARPNESSES]
    for value, of_samples, of_means in zip(SHARPNESSES, largest, means, strict=True):
        for name, criterion in given.losses.at_sharpness(value).items():
            generator = given.generator("sharpness")  # the same start for all
            (end,) = from_random(criterion, labels, 8, generator, 1, SHARPNESS_STEPS)
            of_samples[name], of_means[name] = end.deviation, end.collapse.nc2_deviation
    yield from (*largest, *means)


def baselines(given: Setting) -> Measured:
    """Each loss at the same sharpness: convexity, averaging, monotonicity, stationarity, descent.

    All in terms of the Gram matrix, because InfoNCE has no plan and IOT another one.
    """
    labels = setting.class_labels((BASE_PER_CLASS,) * BASE_CLASSES)
    etf = setting.etf_gram(labels)
    frame = normalize(setting.vectors(etf), dim=1)
    for name, criterion in given.losses.at_sharpness(SHARPNESS).items():
        generator = given.generator("baselines")  # the same matrices and starts for all
        value, draw = (
            setting.loss_value(criterion, labels),
            partial(lemmas.random_gram, len(labels)),
        )
        excess = lemmas.violation(lemmas.convexity_gaps(value, draw, generator))
        drawn = [draw(generator) for _ in range(10)]
        path = lemmas.two_distance_path(BASE_CLASSES, BASE_PER_CLASS, BASE_STEPS)
        values = [value(setting.two_distance_gram(labels, *pair)) for pair in path]
        random = setting.random_unit(len(labels), BASE_DIM, generator)
        ends = from_random(criterion, labels, BASE_DIM, generator, STARTS)
        row: Row = {"loss": name, "excess over chord": excess}
        row |= {"increase by averaging": worst(lemmas.increases(value, drawn, labels))}
        row |= {"largest step in Δ": lemmas.largest_step(values)}
        row |= {"gradient at the ETF": relative_gradient(criterion, frame, random, labels)[2]}
        row |= reached(ends) | {"Gram deviation": worst(end.deviation for end in ends)}
        yield row | {"loss at the end − at the ETF": ends[0].loss - value(etf)}


def unbalanced_frames(given: Setting) -> Measured:
    """Where free vectors end: collapsed? equiangular?"""
    for sizes in UNBALANCED_SIZES:
        labels = setting.class_labels(sizes)
        for name, kind, criterion in given.losses.with_marginals(SHARPNESS):
            generator = given.generator("unbalanced-frames")  # the same starts for all
            best, other = from_random(criterion, labels, BASE_DIM, generator, 2)
            low, high = map(float, best.across().aminmax())
            row: Row = {"class sizes": f"{sizes}"[1:-1], "loss": name, "marginals": kind}
            row |= {"loss value": best.loss, "NC1": best.collapse.nc1}
            row |= {"smallest β": low, "largest β": high, "Gram deviation": best.deviation}
            yield row | {"loss spread over starts": other.loss - best.loss}


def unbalanced_classes(given: Setting) -> Measured:
    """Ten to one between the largest class and the smallest: which directions the means keep."""
    for n_classes in MANY_CLASSES:
        labels = setting.class_labels(class_sizes(n_classes, LARGEST_CLASS, RATIO))
        for name, kind, criterion in given.losses.with_marginals(SHARPNESS):
            generator = given.generator(f"unbalanced-classes {n_classes}")
            (end,) = from_random(criterion, labels, n_classes + 6, generator, 1)
            row: Row = {"K": n_classes, "loss": name, "marginals": kind}
            row |= {"Gram deviation": end.deviation, "NC2 deviation": end.collapse.nc2_deviation}
            spectrum = end.collapse.spectrum
            yield row | {"smallest / largest eigenvalue": float(spectrum[-1] / spectrum[0])}
