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
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import tricouple as tc
from tricouple_lab.data.images.sets import stratified

MARGIN = 0.5  # of the hinge, in cosines
VALIDATION = 0.2  # of the training set

Head = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """A loss at any sharpness."""

    name: str  # in tables
    build: Callable[[float], nn.Module]  # the loss at c, called with embeddings and labels
    bounded: bool = False  # whether the repulsion of a negative is bounded (mathematics §8)


class RINCE(nn.Module):
    """``−e^{q·cs⁺}/q + (λ(e^{cs⁺} + Σ e^{cs⁻}))^q/q``, the mean over positive pairs.

    Args:
        sharpness: c.
        q: 0 is InfoNCE, 1 wholly robust.
        weight: λ, of the negatives.
    """

    def __init__(self, sharpness: float, q: float = 0.5, weight: float = 0.025) -> None:
        super().__init__()
        self.c, self.q, self.weight = sharpness, q, weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """The mean over positive pairs, in logarithms until the last step; 0 without triplets."""
        scores = self.c * _cosines(embeddings)
        positive, negative = _masks(labels)
        if not bool(positive.any() and negative.any()):
            return scores.sum() * 0
        others = scores.masked_fill(~negative, -torch.inf).logsumexp(1, keepdim=True)
        rows, columns = positive.nonzero(as_tuple=True)
        own = scores[rows, columns]
        every = torch.logaddexp(own, others[rows, 0]) + math.log(self.weight)
        # Relative to the largest term: the loss is scaled by a constant, and does not overflow.
        top = self.q * self.c
        robust = torch.exp(self.q * every - top) - torch.exp(self.q * own - top)
        return robust.mean() / self.q


class ClassAveraged(nn.Module):
    """InfoNCE whose denominator is a sum over classes of means, so that all classes weigh alike."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        self.c = sharpness

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """``−log e^{cs⁺} / Σ_y mean_{j in y} e^{cs_j}``, the mean over positives and anchors.

        It is 0 for a batch without triplets.
        """
        scores = self.c * _cosines(embeddings)
        positive, negative = _masks(labels)
        if not bool(positive.any() and negative.any()):
            return scores.sum() * 0
        known = positive | negative
        same = (positive | torch.eye(len(scores), dtype=torch.bool)).to(scores)
        # How many samples of its class a reference has beside it in a row (without the anchor).
        size = same.sum(1)[None] - positive.to(scores)
        denominator = (scores - size.log()).masked_fill(~known, -torch.inf).logsumexp(1)
        count = positive.sum(1)
        pull = (scores * positive).sum(1) / count.clamp(min=1)
        return (denominator - pull)[count > 0].mean()


def _cosines(embeddings: Tensor) -> Tensor:
    """The cosines of all pairs, shape (N, N)."""
    unit = normalize(embeddings, dim=1)
    return unit @ unit.T


def _masks(labels: Tensor) -> tuple[Tensor, Tensor]:
    """Positives and negatives of each anchor, shape (N, N)."""
    same = labels[:, None] == labels
    own = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    return same & ~own, ~same


def _hinge(c: float) -> tc.NegMMIOT:
    shaping = tc.shaping.Hinge(margin=MARGIN * c)  # τ = 1/c
    return tc.NegMMIOT(sharpness=c, epsilon=1.0, shaping=shaping, empty="zero")


def _of(loss: Callable[..., nn.Module], **settings: Any) -> Callable[[float], Any]:
    return lambda c: loss(sharpness=c, empty="zero", **settings)


_LOG_SIGMOID = _of(tc.NegMMIOT, epsilon=1.0, shaping="log_sigmoid")
_TARGET, _CLASSES = (_of(tc.PushPull, marginals=words) for words in ("target", "classes"))

METHODS = {
    "infonce": Method("InfoNCE", _of(tc.InfoNCE)),
    "iot": Method("IOT", _of(tc.IOT)),
    "pushpull": Method("PushPull", _of(tc.PushPull), bounded=True),
    "neg_mmiot": Method("Neg-MMIOT", _of(tc.NegMMIOT), bounded=True),
    "log_sigmoid": Method("Neg-MMIOT, log-sigmoid ψ", _LOG_SIGMOID, bounded=True),
    "hinge": Method("Neg-MMIOT, hinge ψ", _hinge, bounded=True),
    "rince": Method("RINCE", RINCE),
    "bcl": Method("class-averaged InfoNCE (BCL)", ClassAveraged),
    "pushpull_target": Method("PushPull, target marginals", _TARGET, bounded=True),
    "pushpull_classes": Method("PushPull, class marginals", _CLASSES, bounded=True),
}


# --- a head on frozen features, the same steps with every loss ------------------------------------


@dataclass(frozen=True)
class Budget:
    """What every run of a study has."""

    steps: int = 300  # of the optimiser
    batch_size: int = 256  # samples in a batch, shuffled epoch after epoch
    learning_rate: float = 1e-3  # of AdamW, falling to zero along a cosine
    hidden: int = 256  # width of the hidden layer
    dim: int = 64  # of the embeddings


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


def batches(n: int, size: int, seed: int) -> Iterator[Tensor]:
    """Indices of batches, without end; the last, smaller batch of an epoch is left out.

    Example:
        >>> [len(batch) for batch in itertools.islice(batches(10, 4, 0), 3)]
        [4, 4, 4]
    """
    generator, size = torch.Generator().manual_seed(seed), min(size, n)
    while True:
        yield from torch.randperm(n, generator=generator)[: n // size * size].split(size)


def train_heads(
    features: Sequence[Tensor], loss_of: Callable[..., Tensor], budget: Budget, seed: int
) -> list[Head]:
    """Train a head for each kind of features and return what embeds others of that kind.

    ``loss_of(chosen, *heads)`` is the loss of a batch of indices into the first kind; heads embed
    the features of any indices.
    """
    scales = [_scale(own) for own in features]
    inputs = [scale(own) for scale, own in zip(scales, features, strict=True)]
    torch.manual_seed(seed)
    networks = [
        nn.Sequential(
            nn.Linear(own.shape[1], budget.hidden), nn.ReLU(), nn.Linear(budget.hidden, budget.dim)
        )
        for own in features
    ]

    def head(network: nn.Module, own: Tensor) -> Head:
        return lambda chosen: network(own[chosen])

    def embedder(network: nn.Module, scale: Head) -> Head:
        return torch.no_grad()(lambda others: normalize(network(scale(others)), dim=1))

    heads = [head(*both) for both in zip(networks, inputs, strict=True)]
    parameters = [parameter for network in networks for parameter in network.parameters()]
    optimiser = torch.optim.AdamW(parameters, lr=budget.learning_rate, fused=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, budget.steps)
    order = itertools.islice(batches(len(inputs[0]), budget.batch_size, seed), budget.steps)
    descend(order, lambda chosen: loss_of(chosen, *heads), optimiser, schedule)
    return [embedder(*both) for both in zip(networks, scales, strict=True)]


def train_head(
    features: Tensor, labels: Tensor, criterion: nn.Module, budget: Budget, seed: int
) -> Head:
    """Train a head on labelled features and return what embeds others."""

    def loss_of(chosen: Tensor, head: Head) -> Tensor:
        loss: Tensor = criterion(head(chosen), labels[chosen])
        return loss

    return train_heads([features], loss_of, budget, seed)[0]


def _scale(features: Tensor) -> Head:
    """What gives these features mean zero and, together, variance one, and others likewise."""
    mean = features.mean(0)
    std = (features - mean).std()
    return lambda others: (others - mean) / std


def held_out(labels: Tensor, seed: int) -> Tensor:
    """Which samples are for choosing c: a mask, a fifth of every class."""
    return stratified(labels, round(VALIDATION * len(labels)), seed)


def class_accuracies(predicted: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The classes there are, and the share of each that was recognised."""
    classes, codes = labels.unique(return_inverse=True)
    right = (predicted == labels).double()
    hits = right.new_zeros(len(classes)).index_add(0, codes, right)
    return classes, hits / codes.bincount()
