"""Where free unit vectors end under a loss (the unconstrained-features model).

Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF. And where their conditions end: few
dimensions, other ψ, a sharp loss, unbalanced classes, other losses.
"""

from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize

from theory import lemmas, setting
from theory.setting import NOT, Criterion, Measured, Setting, statement, worst
from tricouple import geometry
from tricouple_lab.data.generated import class_sizes

# (K, d, b) with d ≥ K − 1.
SIZES = ((2, 2, 4), (3, 2, 4), (4, 3, 4), (5, 8, 4), (7, 6, 2), (10, 9, 3), (10, 16, 4))
SHARPNESS = 2.0
REACHED = 1e-4  # deviation from the Gram matrix of the ETF below which a descent has reached it
DEVIATION = "largest deviation of an inner product from the ETF"


class End(NamedTuple):
    """Where a descent ended."""

    loss: float
    lowest: float  # loss met on the way
    embeddings: Tensor  # unit vectors, (N, d)
    deviation: float  # largest difference between an inner product and that of the simplex ETF
    across: Tensor  # similarities of different classes
    collapse: geometry.NeuralCollapse


def descend(
    criterion: Criterion, labels: Tensor, dim: int, generator: torch.Generator, steps: int = 200
) -> End:
    """Minimise a loss from random vectors, which it normalises, by at most so many L-BFGS steps.

    A loss or a gradient that is no number is a FloatingPointError.
    """
    free, losses = setting.random_unit(len(labels), dim, generator).requires_grad_(), []
    optimiser = torch.optim.LBFGS(
        [free], max_iter=steps, history_size=20, tolerance_grad=1e-10,
        tolerance_change=1e-15, line_search_fn="strong_wolfe",
    )  # fmt: skip

    def evaluate() -> Tensor:
        optimiser.zero_grad()
        loss = criterion(free, labels)
        loss.backward()
        if not (loss.isfinite() and free.grad.isfinite().all()):
            raise FloatingPointError(f"{loss:g}, or its gradient")
        losses.append(loss.item())
        return loss

    optimiser.step(evaluate)
    loss, final = evaluate().item(), normalize(free.detach(), dim=1)
    gram, collapse = final @ final.T, geometry.neural_collapse(final, labels)
    deviation = float((gram - setting.etf_gram(labels)).abs().max())
    across = gram[labels[:, None] != labels]
    return End(loss, min(losses), final, deviation, across, collapse)


def descend_often(*problem: Any, starts: int = 3) -> list[End]:
    """The ends from several random starts, the best first."""
    return sorted((descend(*problem) for _ in range(starts)), key=lambda end: end.loss)


def reached(ends: list[End]) -> str:
    """How many descents ended at the simplex ETF."""
    return f"{sum(end.deviation <= REACHED for end in ends)} of {len(ends)}"


closed_form = partial(geometry.etf_loss, temperature=1.0, epsilon=1 / SHARPNESS)


@statement("Theorem 3.4", "largest deviation of an inner product, or of the loss from its form",
           1e-5, "Gram deviation", "loss above closed form", "loss below closed form", name="etf",
           claim="The optimum is the simplex ETF: α = 1, β = −1/(K−1) (ψ affine, d ≥ K−1)"
           )  # fmt: skip
@statement("Lemma 3.3", "largest standard deviation of either", 1e-5, "spread of α", "spread of β",
           name="homogeneity",
           claim="At the optimum ⟨z_i, z_j⟩ = α within classes and β across (ψ affine)"
           )  # fmt: skip
def descents(given: Setting) -> Measured:
    """How far the best of several ends is from the ETF, and the losses from the closed form.

    The best end is the ETF, its loss the closed form; nothing met on the way is lower. How many
    starts find it is a number of the table; only the best one decides.
    """
    generator, criterion = given.generator("frames"), given.triplets(SHARPNESS)
    for n_classes, dim, per_class in SIZES:
        labels = setting.class_labels((per_class,) * n_classes)
        ends = descend_often(criterion, labels, dim, generator)
        best, optimum = ends[0], closed_form(n_classes, per_class)
        found = geometry.two_distance(best.embeddings, labels)
        row = {"K": n_classes, "d": dim, "b": per_class, "starts at the ETF": reached(ends)}
        row |= {"Gram deviation": best.deviation, "loss above closed form": best.loss - optimum}
        row["loss below closed form"] = optimum - min(end.lowest for end in ends)
        yield row | {"spread of α": found.alpha_std, "spread of β": found.beta_std}


# Where the conditions of the paper end

LOW_SIZE = (10, 3)  # K, b
LOW_DIMS = (2, 3, 5, 7, 8, 9, 12)
DIM = 8
TEN_TO_ONE = [tuple(class_sizes(k, 20, imbalance=10.0)) for k in (3, 5, 10)]
UNBALANCED_SIZES = ((5, 4, 3), (8, 4, 2), (12, 2, 2), (9, 3, 3, 3), *TEN_TO_ONE)


@statement("remark to Theorem 3.4", "smallest gap to the closed form", None,
           lambda rows: -worst(-row["loss above closed form"] for row in rows[:5]))  # fmt: skip
def low_dimension(given: Setting) -> Measured:
    """In d < K−1 dimensions, what replaces the ETF?

    The only two-distance configuration there is total collapse, Δ = 0 (the Gram matrix of any other
    has rank K − 1 or more); its loss is reported for comparison.
    """
    generator, criterion = given.generator("low-dimension"), given.triplets(SHARPNESS)
    labels = setting.class_labels(LOW_SIZE[1:] * LOW_SIZE[0])
    optimum, collapsed = closed_form(*LOW_SIZE), closed_form(*LOW_SIZE, alpha=1.0, beta=1.0)
    for dim in LOW_DIMS:
        best = descend_often(criterion, labels, dim, generator)[0]
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
            ends = descend_often(criterion, labels, dim, generator, 100)
            optimum = setting.loss_value(criterion, labels)(setting.etf_gram(labels))
            norms = (setting.largest_gradient(criterion, end.embeddings, labels) for end in ends)
            yield {"ψ": name, "K": n_classes, "d": dim, "b": per_class,
                   "starts at the ETF": reached(ends),
                   "best loss − at the ETF": ends[0].loss - optimum,
                   "worst loss − at the ETF": ends[-1].loss - optimum,
                   "largest Gram deviation": worst(end.deviation for end in ends),
                   "largest gradient at an end": worst(norms)}  # fmt: skip


@statement(NOT, "largest deviation at c = 100", None,
           lambda rows: worst(rows[5][name] for name in ("Neg-MMIOT", "PushPull", "IOT", "InfoNCE"))
           )  # fmt: skip
def sharpness(given: Setting) -> Measured:
    """How close does descent come to the ETF in 100 steps, against c = 1/(τε)?"""
    labels, means = setting.class_labels((4,) * 5), []
    for c in (1.0, 2.0, 5.0, 10.0, 30.0, 100.0):
        largest = {"c": c, "measure": "largest, of samples"}
        means.append({"c": c, "measure": "mean, of class means (NC2)"})
        for name, _, criterion in given.at_sharpness(c, "uniform"):  # the same start for all
            end = descend(criterion, labels, 8, given.generator("sharpness"), 100)
            largest[name], means[-1][name] = end.deviation, end.collapse.nc2_deviation
        yield largest
    yield from means


@statement(NOT, DEVIATION, None, "Gram deviation")
def baselines(given: Setting) -> Measured:
    """The same questions asked of PushPull, IOT and InfoNCE, at the same sharpness.

    All in terms of the Gram matrix, because InfoNCE has no plan and IOT another one.
    """
    labels = setting.class_labels((4,) * 5)
    path = lemmas.two_distance_path(5, 4, 25)
    for name, _, criterion in given.at_sharpness(SHARPNESS, "uniform"):
        generator = given.generator("baselines")  # the same matrices and starts for all
        value = setting.loss_value(criterion, labels)
        drawn = [lemmas.random_gram(len(labels), generator) for _ in range(22)]
        row = {"loss": name, "excess over chord": lemmas.excess(value, drawn[:12])}
        row["increase by averaging"] = lemmas.increase(value, drawn[12:], labels)
        row["largest step in Δ"] = float(lemmas.losses_at(value, path, labels).diff().max())
        random = setting.random_unit(len(labels), DIM, generator)
        row["gradient at the ETF"] = setting.gradient_ratio(criterion, labels, random)
        ends = descend_often(criterion, labels, DIM, generator)
        row["starts at the ETF"] = reached(ends)
        row["Gram deviation"] = worst(end.deviation for end in ends)
        at_etf = value(setting.etf_gram(labels))
        yield row | {"loss at the end − at the ETF": ends[0].loss - at_etf}


@statement(NOT, DEVIATION, None, "Gram deviation")
def unbalanced_frames(given: Setting) -> Measured:
    """Where does descent end with unbalanced classes, for every loss?"""
    for sizes in UNBALANCED_SIZES:
        labels = setting.class_labels(sizes)
        for name, kind, criterion in given.at_sharpness(SHARPNESS, *setting.MARGINALS):
            generator = given.generator("unbalanced-frames")  # the same starts for all
            best, other = descend_often(criterion, labels, 2 * DIM, generator, starts=2)
            low, high = map(float, best.across.aminmax())
            row = {"class sizes": f"{sizes}"[1:-1], "loss": name, "marginals": kind}
            row |= {"NC1": best.collapse.nc1, "smallest β": low, "largest β": high}
            row |= {"Gram deviation": best.deviation, "NC2 deviation": best.collapse.nc2_deviation}
            spectrum = best.collapse.spectrum
            row["smallest / largest eigenvalue"] = float(spectrum[-1] / spectrum[0])
            yield row | {"loss spread over starts": other.loss - best.loss}
