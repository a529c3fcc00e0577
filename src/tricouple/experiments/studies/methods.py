"""What the studies compare: losses at a sharpness c, and the small head that each of them trains.

Neg-MMIOT with a linear ψ is PushPull (mathematics §8), so it has no row of its own. A saturating ψ
has ε = 1 here and τ = 1/c: its largest slope, over ε, is then c. Two baselines that are no losses
of ours: RINCE (Chuang and others 2022), a robust InfoNCE, and the class-averaged InfoNCE of BCL
(Zhu and others 2022).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from tricouple.losses.base import ContrastiveLoss
from tricouple.losses.batch import Batch

MARGIN = 0.5  # of the hinge, in cosines


@dataclass(frozen=True)
class Method:
    """A loss at any sharpness.

    Attributes:
        name: In tables.
        build: The loss at c.
        bounded: Whether the repulsion of a negative is bounded (mathematics §8).
    """

    name: str
    build: Callable[[float], ContrastiveLoss]
    bounded: bool = False


class RINCE(ContrastiveLoss):
    """``−e^{q·cs⁺}/q + (λ(e^{cs⁺} + Σ e^{cs⁻}))^q/q``, the mean over positive pairs.

    Args:
        sharpness: c.
        q: 0 is InfoNCE, 1 wholly robust.
        weight: λ, of the negatives.
    """

    def __init__(self, sharpness: float, q: float = 0.5, weight: float = 0.025) -> None:
        super().__init__(empty="zero")
        self.c, self.q, self.weight = sharpness, q, weight

    def compute(self, batch: Batch) -> Tensor:
        """The mean over positive pairs, in logarithms until the last step."""
        scores = self.c * batch.similarity()
        positive, negative = _masks(batch)
        others = scores.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
        rows, columns = positive.nonzero(as_tuple=True)
        own = scores[rows, columns]
        every = torch.logaddexp(own, others[rows, 0]) + torch.tensor(self.weight).log()
        # Relative to the largest term: the loss is scaled by a constant, and does not overflow.
        top = self.q * self.c
        robust = torch.exp(self.q * every - top) - torch.exp(self.q * own - top)
        return robust.mean() / self.q


class ClassAveraged(ContrastiveLoss):
    """InfoNCE whose denominator is a sum over classes of means, so that all classes weigh alike."""

    def __init__(self, sharpness: float) -> None:
        super().__init__(empty="zero")
        self.c = sharpness

    def compute(self, batch: Batch) -> Tensor:
        """``−log e^{cs⁺} / Σ_y mean_{j in y} e^{cs_j}``, the mean over positives and anchors."""
        scores = self.c * batch.similarity()
        positive, negative = _masks(batch)
        known = positive | negative
        same = (positive | torch.eye(len(scores), dtype=torch.bool)).to(scores)
        # How many samples of its class a reference has beside it in a row (without the anchor).
        size = same.sum(1)[None] - positive.to(scores)
        denominator = (scores - size.log()).masked_fill(~known, -torch.inf).logsumexp(1)
        count = positive.sum(1)
        pull = (scores * positive).sum(1) / count.clamp(min=1)
        return (denominator - pull)[count > 0].mean()


def _masks(batch: Batch) -> tuple[Tensor, Tensor]:
    """Positives and negatives of each anchor, shape (N, N)."""
    positive = batch.relation.positives().pairs.mask()
    own = torch.eye(len(positive), dtype=torch.bool, device=positive.device)
    return positive, ~positive & ~own


def _hinge(c: float) -> tc.NegMMIOT:
    shaping = tc.shaping.Hinge(margin=MARGIN * c)  # τ = 1/c
    return tc.NegMMIOT(sharpness=c, epsilon=1.0, shaping=shaping, empty="zero")


def _log_sigmoid(c: float) -> tc.NegMMIOT:
    return tc.NegMMIOT(sharpness=c, epsilon=1.0, shaping="log_sigmoid", empty="zero")


def _push_pull(c: float, marginals: str = "uniform") -> tc.PushPull:
    return tc.PushPull(sharpness=c, marginals=marginals, empty="zero")


METHODS = {
    "infonce": Method("InfoNCE", lambda c: tc.InfoNCE(sharpness=c, empty="zero")),
    "iot": Method("IOT", lambda c: tc.IOT(sharpness=c, empty="zero")),
    "pushpull": Method("PushPull", _push_pull, bounded=True),
    "neg_mmiot": Method(
        "Neg-MMIOT", lambda c: tc.NegMMIOT(sharpness=c, empty="zero"), bounded=True
    ),
    "log_sigmoid": Method("Neg-MMIOT, log-sigmoid ψ", _log_sigmoid, bounded=True),
    "hinge": Method("Neg-MMIOT, hinge ψ", _hinge, bounded=True),
    "rince": Method("RINCE", RINCE),
    "bcl": Method("class-averaged InfoNCE (BCL)", ClassAveraged),
    "pushpull_target": Method(
        "PushPull, target marginals", lambda c: _push_pull(c, "target"), bounded=True
    ),
    "pushpull_classes": Method(
        "PushPull, class marginals", lambda c: _push_pull(c, "classes"), bounded=True
    ),
}


# --- a head on frozen features, the same steps with every loss ------------------------------------


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
