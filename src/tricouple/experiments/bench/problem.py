"""The one problem that all contenders solve, and its random batches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

Criterion = Callable[[Tensor, Tensor], Tensor]
"""Embeddings (N, d) and labels (N,) in, a scalar out."""


@dataclass(frozen=True)
class Problem:
    """What is fixed while contender and batch size vary."""

    dim: int = 128
    classes: int = 10
    temperature: float = 0.1
    epsilon: float = 0.1
    n_iters: int = 10
    seed: int = 0


@dataclass(frozen=True)
class Batch:
    """A random batch: class centres plus noise, with unbalanced classes."""

    embeddings: Tensor  # (N, d) float32, not normalised: that is part of a loss
    labels: Tensor  # (N,) int64

    def similarities(self) -> Tensor:
        """Return the N×N cosine similarities."""
        unit = normalize(self.embeddings, dim=1)
        return unit @ unit.T

    def pair_cost(self) -> Tensor:
        """Return 1 − s with an infinite diagonal, the cost of the pairwise plans."""
        return (1.0 - self.similarities()).fill_diagonal_(torch.inf)

    def value_and_gradient(self, criterion: Criterion) -> Callable[[], tuple[Tensor, Tensor]]:
        """Return a call that evaluates a loss and its gradient at the embeddings."""
        embeddings = self.embeddings.clone().requires_grad_()

        def step() -> tuple[Tensor, Tensor]:
            value = criterion(embeddings, self.labels)
            (gradient,) = torch.autograd.grad(value, embeddings)
            return value.detach(), gradient

        return step


def make_batch(size: int, problem: Problem) -> Batch:
    """Draw a batch; the same size and problem give the same batch in every process.

    Class k is drawn with probability proportional to 1 / (k + 1), so that classes differ in size
    as they do in shuffled mini-batches.
    """
    generator = torch.Generator().manual_seed(problem.seed)
    weights = 1.0 / torch.arange(1, problem.classes + 1, dtype=torch.float32)
    labels = torch.multinomial(weights, size, replacement=True, generator=generator)
    centres = torch.randn(problem.classes, problem.dim, generator=generator)
    noise = torch.randn(size, problem.dim, generator=generator)
    return Batch(embeddings=centres[labels] + noise, labels=labels)
