"""A small head on frozen features: trained with any loss, the same steps for all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tricouple.losses.base import ContrastiveLoss


@dataclass(frozen=True)
class Budget:
    """What every run of a study has.

    Attributes:
        steps: Of the optimiser.
        batch_size: Samples in a batch, shuffled epoch after epoch.
        learning_rate: Of AdamW, falling to zero along a cosine.
        hidden: Width of the hidden layer.
        dim: Of the embeddings.
    """

    steps: int = 300
    batch_size: int = 256
    learning_rate: float = 1e-3
    hidden: int = 256
    dim: int = 64


def head(width: int, budget: Budget) -> nn.Sequential:
    """Two layers, from features to embeddings."""
    return nn.Sequential(
        nn.Linear(width, budget.hidden), nn.ReLU(), nn.Linear(budget.hidden, budget.dim)
    )


def descend(
    order: Iterable[Tensor],
    loss_of: Callable[[Tensor], Tensor],
    optimiser: torch.optim.Optimizer,
    schedule: torch.optim.lr_scheduler.LRScheduler | None = None,
) -> None:
    """Take a step for each batch of indices; ``loss_of`` gives the loss of a batch.

    Raises:
        FloatingPointError: If the loss is not a number; the run has diverged.
    """
    for chosen in order:
        loss = loss_of(chosen)
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"the loss became {loss.item()}")
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if schedule is not None:
            schedule.step()


def train(
    networks: Sequence[nn.Module],
    n: int,
    loss_of: Callable[[Tensor], Tensor],
    budget: Budget,
    seed: int,
) -> None:
    """Train on n samples for all steps of a budget."""
    parameters = [parameter for network in networks for parameter in network.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=budget.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, budget.steps)
    order = itertools.islice(batches(n, budget.batch_size, seed), budget.steps)
    descend(order, loss_of, optimiser, schedule)


def batches(n: int, size: int, seed: int) -> Iterator[Tensor]:
    """Indices of batches, without end; the last, smaller batch of an epoch is left out.

    Example:
        >>> [len(batch) for batch in itertools.islice(batches(10, 4, 0), 3)]
        [4, 4, 4]
    """
    generator, size = torch.Generator().manual_seed(seed), min(size, n)
    while True:
        yield from torch.randperm(n, generator=generator)[: n // size * size].split(size)


def train_head(
    features: Tensor, labels: Tensor, criterion: ContrastiveLoss, budget: Budget, seed: int
) -> Callable[[Tensor], Tensor]:
    """Train a head on labelled features and return what embeds others."""
    scaled = Scaled.to(features)
    torch.manual_seed(seed)
    network = head(features.shape[1], budget)
    inputs = scaled(features)

    def loss_of(chosen: Tensor) -> Tensor:
        loss: Tensor = criterion(network(inputs[chosen]), labels[chosen])
        return loss

    train([network], len(inputs), loss_of, budget, seed)

    @torch.no_grad()
    def embed(others: Tensor) -> Tensor:
        return normalize(network(scaled(others)), dim=1)

    return embed


@dataclass(frozen=True)
class Scaled:
    """Features with mean zero and, together, variance one."""

    mean: Tensor
    std: Tensor

    @classmethod
    def to(cls, features: Tensor) -> Scaled:
        """As these ones are."""
        return cls(features.mean(0), (features - features.mean(0)).std())

    def __call__(self, features: Tensor) -> Tensor:
        """Others, likewise."""
        return (features - self.mean) / self.std


def class_accuracies(predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The classes there are, and the share of each that was recognised."""
    classes, codes = labels.unique(return_inverse=True)
    right = (predicted == labels).double()
    hits = right.new_zeros(len(classes)).index_add(0, codes, right)
    return classes, hits / codes.bincount()
