"""The table of contenders over several processes: our losses, and peers' that gather.

Every contender compares N×N pairs: N samples with themselves (two views of N/2 where the peer takes
views), or N pairs of two sets.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tricouple.experiments.bench.contenders import neg_mmiot, push_pull
from tricouple.experiments.bench.problem import Problem, make_batch
from tricouple.losses import BothDirections, InfoNCE
from tricouple.torchvision_ops import declare_missing

declare_missing()  # peers import torchvision


@dataclass(frozen=True)
class Share:
    """What one process has of a batch."""

    rank: int
    world: int
    embeddings: Tensor  # (n, d)
    partners: Tensor  # other views of the same samples, (n, d)
    labels: Tensor  # their classes, (n,)
    identities: Tensor  # their numbers in the batch of all processes, (n,)

    @classmethod
    def of(cls, rank: int, world: int, size: int, problem: Problem) -> Share:
        """The rows of a rank; all ranks draw the same batch."""
        batch, other = (make_batch(size, replace(problem, seed=problem.seed + k)) for k in range(2))
        own = slice(size * rank // world, size * (rank + 1) // world)
        embeddings = batch.embeddings[own].clone()
        partners = embeddings + 0.5 * other.embeddings[own]
        return cls(rank, world, embeddings, partners, batch.labels[own], torch.arange(size)[own])


@dataclass(frozen=True)
class Gathered:
    """One competitor."""

    name: str  # unique, as shown in tables
    build: Callable[[Share, Problem], Callable[..., Tensor]]  # a criterion of what it takes
    module: str = ""  # which it needs, of another library
    pairs: bool = False  # it takes two sets of N, otherwise one set of N with labels
    whole: bool = False  # every process computes the loss of the whole batch

    @property
    def installed(self) -> bool:
        """Whether what it needs can be imported."""
        return not self.module or find_spec(self.module.partition(".")[0]) is not None

    def bytes_at_most(self, size: int, world: int) -> int:
        """A generous bound on the memory of all processes together."""
        return 4 * size**2 * (14 * world if self.whole else 8)

    def prepare(self, share: Share, problem: Problem) -> Callable[[], object]:
        """Return a call that evaluates the loss and the gradients of this process's own rows."""
        criterion = self.build(share, problem)
        embeddings = share.embeddings.clone().requires_grad_()
        if not self.pairs:
            return lambda: torch.autograd.grad(criterion(embeddings, share.labels), embeddings)
        both = embeddings, share.partners.clone().requires_grad_()
        return lambda: torch.autograd.grad(criterion(*both), both)


def both_directions(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """Our three-marginal loss from images to texts and back."""
    criterion = BothDirections(neg_mmiot(problem, group="world"))
    return lambda images, texts: criterion(images, texts, share.identities)


def clip_loss(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``ClipLoss`` of open_clip, own rows only, with the gradient of what was gathered."""
    from open_clip.loss import ClipLoss

    ranks = {"rank": share.rank, "world_size": share.world}
    criterion = ClipLoss(local_loss=True, gather_with_grad=True, **ranks)

    def loss(images: Tensor, texts: Tensor) -> Tensor:
        units = normalize(images, dim=1), normalize(texts, dim=1)
        value: Tensor = criterion(*units, 1 / problem.temperature)
        return value

    return loss


def nt_xent(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``NTXentLoss`` of lightly: own rows are two views of half as many samples."""
    from lightly.loss import NTXentLoss

    criterion = NTXentLoss(problem.temperature, gather_distributed=True)

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        value: Tensor = criterion(*embeddings.chunk(2))
        return value

    return loss


def sup_con(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``SupConLoss`` of pytorch-metric-learning, gathered."""
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    criterion: Callable[..., Tensor] = DistributedLossWrapper(SupConLoss(problem.temperature))
    return criterion


def ranking(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``MultipleNegativesRankingLoss`` of sentence-transformers, of embeddings that are there."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model: Any = nn.Identity()
    criterion = MultipleNegativesRankingLoss(
        model, scale=1 / problem.temperature, gather_across_devices=True
    )

    def loss(queries: Tensor, documents: Tensor) -> Tensor:
        value: Tensor = criterion.compute_loss_from_embeddings([queries, documents], share.labels)
        return value

    return loss


def ours(make: Callable[..., Callable[..., Tensor]], **options: Any) -> Any:
    """One of our losses over all processes."""
    return lambda share, problem: make(problem, group="world", **options)


OURS, BOTH, CLIP = "NegMMIOT", "NegMMIOT, both directions", "ClipLoss (open_clip)"

GATHERED = (
    Gathered(OURS, ours(neg_mmiot)),
    Gathered(BOTH, both_directions, pairs=True),
    Gathered("PushPull", ours(push_pull)),
    Gathered("InfoNCE", ours(lambda problem, **options: InfoNCE(problem.temperature, **options))),
    Gathered(CLIP, clip_loss, "open_clip.loss", pairs=True),
    Gathered("NTXentLoss (lightly)", nt_xent, "lightly.loss"),
    Gathered("SupConLoss (PML)", sup_con, "pytorch_metric_learning.losses", whole=True),
    Gathered(
        "MultipleNegativesRankingLoss (ST)",
        ranking,
        "sentence_transformers.sentence_transformer.losses",
        pairs=True,
    ),
)

BY_NAME = {contender.name: contender for contender in GATHERED}
