"""The problem that all contenders solve, and its random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True)
class Problem:
    """What is fixed while contender and batch size vary."""

    dim: int = 128
    classes: int = 10
    temperature: float = 0.1
    epsilon: float = 0.1
    n_iters: int = 10
    seed: int = 0


class Batch(NamedTuple):
    """Class centres plus noise, with classes of different sizes."""

    embeddings: Tensor  # (N, d) float32, not normalised: that is part of a loss
    labels: Tensor  # (N,) int64

    def similarities(self) -> Tensor:
        """Return the cosine similarities (N, N)."""
        unit = normalize(self.embeddings, dim=1)
        return unit @ unit.T

    def pair_cost(self) -> Tensor:
        """Return 1 − s (N, N) with an infinite diagonal, the cost of the pairwise plans."""
        return (1.0 - self.similarities()).fill_diagonal_(torch.inf)


def gradient(criterion: Callable[..., Any], *embeddings: Tensor, marks: Tensor) -> Callable:
    """Return a call for the value of a loss and its gradient at one set of embeddings or two."""
    leaves = [one.clone().requires_grad_() for one in embeddings]

    def step() -> list[Tensor]:
        value = criterion(*leaves, marks)
        return [value.detach(), *torch.autograd.grad(value, leaves)]

    return step


def make_batch(size: int, problem: Problem) -> Batch:
    """Draw a batch: the same for the same size and problem, in every process.

    Class k has probability proportional to 1/(k + 1): classes differ in size, as in mini-batches.
    """
    generator = torch.Generator().manual_seed(problem.seed)
    weights = 1.0 / torch.arange(1, problem.classes + 1, dtype=torch.float32)
    labels = torch.multinomial(weights, size, replacement=True, generator=generator)
    centres = torch.randn(problem.classes, problem.dim, generator=generator)
    return Batch(centres[labels] + torch.randn(size, problem.dim, generator=generator), labels)
