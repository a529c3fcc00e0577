"""Where free unit vectors end under a loss (the unconstrained-features model).

Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF. And where their conditions end: few
dimensions, other ψ, a sharp loss, unbalanced classes, other losses.
"""

from __future__ import annotations

import math
from functools import lru_cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from theory import lemmas, setting
from theory.setting import NOT, Criterion, Measured, Row, Setting, statement, worst, worst_of
from tricouple import geometry
from tricouple_lab.data.generated import class_sizes

# (K, d, b) with d ≥ K − 1.
SIZES = ((2, 2, 4), (3, 2, 4), (4, 3, 4), (5, 8, 4), (7, 6, 2), (10, 9, 3), (10, 16, 4))
STARTS = 3
SHARPNESS = 2.0
REACHED = 1e-4  # deviation from the Gram matrix of the ETF below which a descent has reached it
DEVIATION = "largest deviation of an inner product from the ETF"
LBFGS: Any = {"history_size": 20, "tolerance_grad": 1e-10, "tolerance_change": 1e-15,
              "line_search_fn": "strong_wolfe"}  # fmt: skip


class End(NamedTuple):
    """Where a descent ended; the start, NaN and −∞ where the loss or its gradient was no number."""

    embeddings: Tensor  # unit vectors, (N, d)
    loss: float
    lowest: float  # loss met on the way
    deviation: float  # largest difference between an inner product and that of the simplex ETF
    across: Tensor  # similarities of different classes
    collapse: geometry.NeuralCollapse


def descend(criterion: Criterion, start: Tensor, labels: Tensor, iterations: int) -> End:
    """Minimise a loss, which normalises its vectors, by at most so many steps of L-BFGS."""
    free, losses = start.clone().requires_grad_(), []
    optimiser = torch.optim.LBFGS([free], max_iter=iterations, **LBFGS)

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        loss = criterion(free, labels)
        loss.backward()
        losses.append(float(loss.detach()))
        if not (loss.isfinite() and free.grad.isfinite().all()):
            raise FloatingPointError  # the descent is over
        return loss

    try:
        optimiser.step(evaluate)
        final = normalize(free.detach(), dim=1)
        losses.append(float(criterion(final, labels)))
        found = final, losses[-1], -worst(-loss for loss in losses)
    except FloatingPointError:
        found = start, math.nan, -math.inf
    gram = setting.gram(found[0])
    deviation = float((gram - setting.etf_gram(labels)).abs().max())
    across = gram[labels[:, None] != labels]
    return End(*found, deviation, across, geometry.neural_collapse(found[0], labels))


def from_random(
    criterion: Criterion, labels: Tensor, dim: int, generator: torch.Generator,
    starts: int = 1, iterations: int = 200,
) -> list[End]:  # fmt: skip
    """Descend from several random starts; the best end comes first."""
    drawn = (setting.random_unit(len(labels), dim, generator) for _ in range(starts))
    ends = [descend(criterion, start, labels, iterations) for start in drawn]
    return sorted(ends, key=lambda end: worst([end.loss]))  # a NaN last


def reached(ends: list[End]) -> str:
    """How many descents ended at the simplex ETF."""
    return f"{sum(end.deviation <= REACHED for end in ends)} of {len(ends)}"


closed_form = partial(geometry.etf_loss, temperature=1.0, epsilon=1 / SHARPNESS)


@lru_cache(maxsize=1)  # two statements are about the same descents
def descents(given: Setting) -> list[tuple[Row, list[End]]]:
    """K, d, b as a row begun, and the ends from random starts, the best first."""
    generator, criterion, found = given.generator("frames"), given.triplets(SHARPNESS), []
    for n_classes, dim, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        ends = from_random(criterion, labels, dim, generator, STARTS)
        found.append(({"K": n_classes, "d": dim, "b": per_class}, ends))
    return found


def distance_from_optimum(rows: list[Row]) -> float:
    """The largest deviation of the best ends, or of their losses, or how far a loss is below."""
    above = [abs(row["loss above closed form"]) for row in rows]
    below = [-row["lowest loss seen above it"] for row in rows]
    return worst([worst_of(rows, "Gram deviation"), *above, *below])


@statement("Theorem 3.4", "largest deviation of an inner product, or of the loss from its form",
           1e-5, distance_from_optimum)  # fmt: skip
def etf(given: Setting) -> Measured:
    """The optimum is the simplex ETF: α = 1, β = −1/(K−1) (ψ affine, d ≥ K−1).

    The best end is the ETF, its loss the closed form; nothing met on the way is lower. How many
    starts find it is a number of the table; only the best one decides.
    """
    for row, ends in descents(given):
        best, optimum = ends[0], closed_form(row["K"], row["b"])
        yield {**row, "starts at the ETF": reached(ends), "Gram deviation": best.deviation,
               "loss above closed form": best.loss - optimum,
               "lowest loss seen above it": min(end.lowest for end in ends) - optimum,
               "NC1": best.collapse.nc1, "NC2 std": best.collapse.nc2_std}  # fmt: skip


@statement("Lemma 3.3", "largest standard deviation of either", 1e-5, "spread of α", "spread of β")
def homogeneity(given: Setting) -> Measured:
    """At the optimum ⟨z_i, z_j⟩ = α within classes and β across (ψ affine).

    The spreads are infinite where a loss on the way was no number.
    """
    for row, ends in descents(given):
        labels = setting.class_labels((row["b"],) * row["K"])
        found = geometry.two_distance(ends[0].embeddings, labels)
        no_number = 0.0 if math.isfinite(worst(end.lowest for end in ends)) else math.inf
        yield {**row, "α": found.alpha, "spread of α": found.alpha_std + no_number,
               "β": found.beta, "spread of β": found.beta_std + no_number,
               "−1/(K−1)": -1 / (row["K"] - 1)}  # fmt: skip


# Where the conditions of the paper end

LOW_CLASSES, LOW_PER_CLASS = 10, 3
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)
SHARPNESSES = (1.0, 2.0, 5.0, 10.0, 30.0, 100.0)
BASE_CLASSES, BASE_PER_CLASS, BASE_DIM, BASE_STEPS = 5, 4, 8, 25
UNBALANCED_SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3))


@statement("remark to Theorem 3.4", "smallest gap to the closed form", None,
           lambda rows: -worst(-row["loss above closed form"] for row in rows[:5]))  # fmt: skip
def low_dimension(given: Setting) -> Measured:
    """In d < K−1 dimensions, what replaces the ETF?

    The only two-distance configuration there is total collapse, Δ = 0 (the Gram matrix of any other
    has rank K − 1 or more); its loss is reported for comparison.
    """
    generator, criterion = given.generator("low-dimension"), given.triplets(SHARPNESS)
    labels = setting.class_labels((LOW_PER_CLASS,) * LOW_CLASSES)
    optimum = closed_form(LOW_CLASSES, LOW_PER_CLASS)
    collapsed = closed_form(LOW_CLASSES, LOW_PER_CLASS, alpha=1.0, beta=1.0)
    for dim in LOW_DIMS:
        best = from_random(criterion, labels, dim, generator, STARTS)[0]
        positive = [value for value in best.collapse.spectrum.tolist() if value > 1e-6]
        yield {"d": dim, "loss above closed form": best.loss - optimum,
               "loss below total collapse": collapsed - best.loss,
               "NC1": best.collapse.nc1, "NC2 std": best.collapse.nc2_std,
               "spread of β": float(best.across.std(correction=0)),
               "largest β": float(best.across.max()), "nonzero eigenvalues": len(positive),
               "smallest / largest of these": positive[-1] / positive[0] if positive else 0.0,
               }  # fmt: skip


@statement("open question", DEVIATION, None, "largest Gram deviation")
def other_shapings(given: Setting) -> Measured:
    """Does descent end at the ETF when ψ is not affine?"""
    generator = given.generator("other-shapings")
    for n_classes, dim, per_class in ((3, 2, 3), (4, 5, 2)):
        labels = setting.class_labels((per_class,) * n_classes)
        for name, psi in setting.SHAPINGS.items():
            # The envelope is exact for balanced classes, and fast.
            criterion = given.triplets(SHARPNESS, shaping=psi, gradient="envelope")
            ends = from_random(criterion, labels, dim, generator, STARTS, iterations=100)
            optimum = setting.loss_value(criterion, labels)(setting.etf_gram(labels))
            norms = (setting.largest_gradient(criterion, end.embeddings, labels) for end in ends)
            yield {"ψ": name, "K": n_classes, "d": dim, "b": per_class,
                   "starts at the ETF": reached(ends),
                   "best loss − at the ETF": ends[0].loss - optimum,
                   "worst loss − at the ETF": ends[-1].loss - optimum,
                   "largest Gram deviation": worst(end.deviation for end in ends),
                   "largest gradient at an end": worst(map(float, norms))}  # fmt: skip


@statement(NOT, "largest deviation at c = 100", None,
           lambda rows: worst_of(rows[5:6], "Neg-MMIOT", "PushPull", "IOT", "InfoNCE"))  # fmt: skip
def sharpness(given: Setting) -> Measured:
    """How close does descent come to the ETF in 100 steps, against c = 1/(τε)?"""
    labels = setting.class_labels((4,) * 5)
    largest = [{"c": c, "measure": "largest, of samples"} for c in SHARPNESSES]
    means = [{"c": c, "measure": "mean, of class means (NC2)"} for c in SHARPNESSES]
    for of_samples, of_means in zip(largest, means, strict=True):
        for name, _, criterion in given.at_sharpness(of_samples["c"]):
            generator = given.generator("sharpness")  # the same start for all
            (end,) = from_random(criterion, labels, 8, generator, iterations=100)
            of_samples[name], of_means[name] = end.deviation, end.collapse.nc2_deviation
    yield from (*largest, *means)


@statement(NOT, DEVIATION, None, "Gram deviation")
def baselines(given: Setting) -> Measured:
    """The same questions asked of PushPull, IOT and InfoNCE, at the same sharpness.

    All in terms of the Gram matrix, because InfoNCE has no plan and IOT another one.
    """
    labels = setting.class_labels((BASE_PER_CLASS,) * BASE_CLASSES)
    etf = setting.etf_gram(labels)
    frame = normalize(setting.vectors(etf), dim=1)
    for name, _, criterion in given.at_sharpness(SHARPNESS):
        generator = given.generator("baselines")  # the same matrices and starts for all
        value = setting.loss_value(criterion, labels)
        draw = partial(lemmas.random_gram, len(labels), generator)
        row = {"loss": name, "excess over chord": lemmas.segments(value, draw)[0]}
        drawn = [draw() for _ in range(10)]
        row |= {"increase by averaging": worst(lemmas.increases(value, drawn, labels))}
        path = lemmas.two_distance_path(BASE_CLASSES, BASE_PER_CLASS, BASE_STEPS)
        values = [value(setting.two_distance_gram(labels, *pair)) for pair in path]
        row |= {"largest step in Δ": lemmas.largest_step(values)}
        random = setting.random_unit(len(labels), BASE_DIM, generator)
        here, there = (setting.largest_gradient(criterion, z, labels) for z in (frame, random))
        ends = from_random(criterion, labels, BASE_DIM, generator, STARTS)
        row |= {"gradient at the ETF": float(here / there), "starts at the ETF": reached(ends)}
        row |= {"Gram deviation": worst(end.deviation for end in ends)}
        yield row | {"loss at the end − at the ETF": ends[0].loss - value(etf)}


@statement(NOT, DEVIATION, None, "Gram deviation")
def unbalanced_frames(given: Setting) -> Measured:
    """Where does descent end with unbalanced classes, for every loss?"""
    for sizes in UNBALANCED_SIZES:
        labels = setting.class_labels(sizes)
        for name, kind, criterion in given.at_sharpness(SHARPNESS, setting.MARGINALS):
            generator = given.generator("unbalanced-frames")  # the same starts for all
            best, other = from_random(criterion, labels, BASE_DIM, generator, 2)
            low, high = map(float, best.across.aminmax())
            row = {"class sizes": f"{sizes}"[1:-1], "loss": name, "marginals": kind}
            row |= {"loss value": best.loss, "NC1": best.collapse.nc1}
            row |= {"smallest β": low, "largest β": high, "Gram deviation": best.deviation}
            yield row | {"loss spread over starts": other.loss - best.loss}


@statement(NOT, DEVIATION, None, "Gram deviation")
def unbalanced_classes(given: Setting) -> Measured:
    """Which directions do class means keep at ten to one, against K?"""
    for n_classes in (3, 5, 10):
        labels = setting.class_labels(class_sizes(n_classes, 20, imbalance=10.0))
        for name, kind, criterion in given.at_sharpness(SHARPNESS, setting.MARGINALS):
            generator = given.generator(f"unbalanced-classes {n_classes}")
            (end,) = from_random(criterion, labels, n_classes + 6, generator)
            row = {"K": n_classes, "loss": name, "marginals": kind}
            row |= {"Gram deviation": end.deviation, "NC2 deviation": end.collapse.nc2_deviation}
            spectrum = end.collapse.spectrum
            yield row | {"smallest / largest eigenvalue": float(spectrum[-1] / spectrum[0])}
