"""Where free unit vectors end under a loss (the unconstrained-features model)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.experiments.verify.configurations import etf_gram, gram, random_unit, vectors
from tricouple.experiments.verify.results import worst
from tricouple.experiments.verify.setting import Criterion
from tricouple.report.chart import Line

REACHED = 1e-4
"""Deviation of a Gram matrix from the ETF's below which a descent has reached it."""


@dataclass(frozen=True)
class End:
    """Where a descent ended.

    Attributes:
        embeddings: Unit vectors, shape (N, d).
        labels: Their classes.
        loss: Loss at the end.
        losses: Loss at each evaluation.

    Where the loss or its gradient was no number, the end is the start, and its loss is NaN.
    """

    embeddings: Tensor
    labels: Tensor
    loss: float
    losses: tuple[float, ...]

    @property
    def deviation(self) -> float:
        """Largest difference between an inner product and that of the simplex ETF."""
        return float((gram(self.embeddings) - etf_gram(self.labels)).abs().max())

    @property
    def lowest(self) -> float:
        """Lowest loss met, −∞ if one was no number."""
        return -worst(-loss for loss in (*self.losses, self.loss))

    @property
    def reached(self) -> bool:
        """Whether this is the simplex ETF with collapsed classes."""
        return self.deviation <= REACHED

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
    """Minimise a loss over free vectors with L-BFGS, in float64.

    Args:
        criterion: The loss; it normalises the vectors.
        start: Initial vectors, shape (N, d).
        labels: Their classes.
        iterations: At most so many steps.
    """
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
        descend(criterion, random_unit(n, dim, generator), labels, iterations)
        for _ in range(starts)
    ]
    # A NaN would leave the order to chance.
    return sorted(ends, key=lambda end: worst([end.loss]))


def reached(ends: list[End]) -> str:
    """How many descents ended at the simplex ETF, in words."""
    return f"{sum(end.reached for end in ends)} of {len(ends)}"


def gaps(name: str, end: End, optimum: float) -> Line:
    """How far above its optimum a loss is, evaluation by evaluation."""
    steps = tuple(float(step) for step in range(1, len(end.losses) + 1))
    return Line(name, steps, tuple(loss - optimum for loss in end.losses))


def loss_at_etf(criterion: Criterion, labels: Tensor) -> float:
    """The loss of collapsed classes on the simplex ETF."""
    with torch.no_grad():
        return float(criterion(vectors(etf_gram(labels)), labels))
