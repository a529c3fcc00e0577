"""Where free unit vectors end under a loss (the unconstrained-features model).

Lemma 3.3 and Theorem 3.4: the optimum is the simplex ETF.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.experiments.verify import tensors
from tricouple.experiments.verify.setting import (
    Criterion,
    Measured,
    Row,
    Setting,
    experiment,
    grouped,
    numbered,
    worst,
    worst_of,
)
from tricouple.report.chart import Line

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


class _NotANumberError(ArithmeticError):
    """A loss or its gradient is not finite: the descent is over."""


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
            raise _NotANumberError
        return loss

    try:
        optimiser.step(evaluate)
    except _NotANumberError:
        return End(start, labels, math.nan, tuple(losses))
    final = torch.nn.functional.normalize(free.detach(), dim=1)
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
    n = len(labels)
    ends = [
        descend(criterion, tensors.random_unit(n, dim, generator), labels, iterations)
        for _ in range(starts)
    ]
    # A NaN would leave the order to chance.
    return sorted(ends, key=lambda end: worst([end.loss]))


def reached(ends: list[End]) -> str:
    """How many descents ended at the simplex ETF, in words."""
    return f"{sum(end.deviation <= REACHED for end in ends)} of {len(ends)}"


def gaps(name: str, end: End, optimum: float) -> Line:
    """How far above its optimum a loss is, evaluation by evaluation."""
    return numbered(name, [loss - optimum for loss in end.losses])


def optimal_loss(n_classes: int, per_class: int) -> float:
    """The closed form at the simplex ETF, at the sharpness of these experiments."""
    return geometry.etf_loss(n_classes, per_class, temperature=1.0, epsilon=1 / SHARPNESS)


@lru_cache(maxsize=1)  # two statements are about the same descents
def descents(setting: Setting) -> dict[tuple[int, int, int], list[End]]:
    """The ends from random starts, best first, for each (K, d, b)."""
    generator = setting.generator("frames")
    criterion = setting.losses.triplets(SHARPNESS)
    return {
        (k, d, b): descend_from_random(
            criterion, tensors.balanced_labels(k, b), d, generator, STARTS
        )
        for k, d, b in SIZES
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
        optimum = optimal_loss(n_classes, per_class)
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
