"""The tables of contenders: what is measured, on which task, up to which size.

Over several processes, our losses meet those of peers that gather. Every contender there compares
N×N pairs: N samples with themselves (two views of N/2 where the peer takes views), or N pairs of
two sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import log_softmax, normalize

from tricouple import IOT, BothDirections, InfoNCE, NegMMIOT, PushPull
from tricouple.ot import sinkhorn, triplet_sinkhorn
from tricouple.shaping import Hinge, log_sigmoid
from tricouple_lab.experiments.bench.problem import Batch, Criterion, Problem, make_batch

LOSS = "loss: value and gradient"
TRIPLET_PLAN = "triplet plan: potentials"
PAIR_PLAN = "pair plan: matrix"

# Batches that are hard to couple.
HARD = ("outlier", "collapsed", "two clusters", "duplicated")

# Beyond this N×N matrices are a burden.
LARGEST_STORED = 8192

Prepare = Callable[[Batch, Problem], Callable[[], object]]


@dataclass(frozen=True)
class Contender:
    """One competitor."""

    name: str  # unique, as shown in tables
    task: str  # contenders are comparable within a task
    # Does all that is not to be measured (inputs, compilation) and returns the call that is.
    prepare: Prepare
    package: str = ""  # the importable module it needs, empty for tricouple and torch
    cubic: bool = False  # whether it holds N×N×N tensors
    smallest: int = 0  # the smallest size it is of interest for
    largest: float = LARGEST_STORED  # the largest size it is run at

    @property
    def installed(self) -> bool:
        """Whether the package it needs can be imported."""
        return not self.package or find_spec(self.package) is not None

    def bytes_at_most(self, size: int, problem: Problem) -> int:
        """Return a generous bound on its memory at a size, to stay clear of swapping.

        The cubic ones keep, for backward, two tensors for each of the three updates of a sweep.
        """
        if self.cubic:
            return 4 * size**3 * (6 * problem.n_iters + 20)
        return 4 * min(size, LARGEST_STORED) ** 2 * 20  # beyond that only what streams is run


def loss(name: str, build: Callable[[Problem], Criterion], **about: Any) -> Contender:
    """Return a contender for value and gradient of the criterion that `build` makes."""

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        return batch.value_and_gradient(build(problem))

    return Contender(name, LOSS, prepare, **about)


def neg_mmiot(problem: Problem, **options: Any) -> NegMMIOT:
    """Our three-marginal loss."""
    return NegMMIOT(problem.temperature, problem.epsilon, problem.n_iters, **options)


def push_pull(problem: Problem, **options: Any) -> PushPull:
    """Our two pairwise plans."""
    epsilon = problem.epsilon
    return PushPull(problem.temperature, epsilon, epsilon, problem.n_iters, **options)


def iot(problem: Problem, **options: Any) -> IOT:
    """One pairwise plan."""
    return IOT(problem.epsilon, problem.n_iters, **options)


def prepare_hard(batch: Batch, problem: Problem, name: str) -> Callable[[], object]:
    """Our three-marginal loss on what is left of a batch when an encoder fails."""
    embeddings, centre = batch.embeddings, normalize(batch.embeddings[:1], dim=1)
    near = centre + 0.1 * normalize(embeddings, dim=1)  # cosines of 0.99
    number = torch.arange(len(embeddings))[:, None]
    changed = {
        "outlier": torch.where(number == 0, -near, near),
        "collapsed": near,
        "two clusters": torch.where(number % 2 == 0, near, near - 2 * centre),
        "duplicated": embeddings[number[:, 0] // 4],
    }[name]
    return Batch(changed, batch.labels).value_and_gradient(neg_mmiot(problem))


def prepare_triplet_plan(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our three-marginal plan."""
    similarity = batch.similarities()
    return lambda: triplet_sinkhorn(
        similarity, problem.temperature, problem.epsilon, n_iters=problem.n_iters
    )


def prepare_pair_plan(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our pairwise plan, as a matrix because that is what POT returns."""
    cost = batch.pair_cost()
    return lambda: sinkhorn(cost, problem.epsilon, n_iters=problem.n_iters).dense()


# --- the published algorithm, and contenders from elsewhere ---------------------------------------


def dense_neg_mmiot(problem: Problem) -> Criterion:
    """Neg-MMIOT as published: the N×N×N kernel in memory, autograd through every sweep."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        n = len(labels)
        unit = normalize(embeddings, dim=1)
        similarity = unit @ unit.T / problem.temperature
        cost = similarity[:, None, :] - similarity[:, :, None]  # (i, j, k)

        same = labels[:, None] == labels[None, :]
        other = ~torch.eye(n, dtype=torch.bool)
        distinct = other[:, :, None] & other[:, None, :] & other[None, :, :]
        admissible = distinct & same[:, :, None] & ~same[:, None, :]

        log_kernel = (-cost / problem.epsilon).masked_fill(~distinct, -torch.inf)
        log_mass = -torch.log(torch.tensor(float(n)))
        f, g, h = (log_kernel.new_zeros(n) for _ in range(3))
        for _ in range(problem.n_iters):
            f = log_mass - torch.logsumexp(log_kernel + g[:, None] + h, dim=(1, 2))
            g = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + h, dim=(0, 2))
            h = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + g[:, None], dim=(0, 1))
        log_plan = log_kernel + f[:, None, None] + g[:, None] + h
        # P̃ is uniform on the admissible triplets: KL = −log|A| − mean over A of log P.
        chosen = log_plan[admissible]
        return -torch.log(torch.tensor(float(len(chosen)))) - chosen.mean()

    return loss


def plain_info_nce(problem: Problem) -> Criterion:
    """InfoNCE with class labels, as one would write it in a training script."""

    def loss(embeddings: Tensor, labels: Tensor) -> Tensor:
        unit = normalize(embeddings, dim=1)
        itself = torch.eye(len(labels), dtype=torch.bool)
        logits = (unit @ unit.T / problem.temperature).masked_fill(itself, -torch.inf)
        positives = (labels[:, None] == labels[None, :]) & ~itself
        log_probabilities = log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
        counts = positives.sum(1)
        anchors = counts > 0
        return -(log_probabilities.sum(1)[anchors] / counts[anchors]).mean()

    return loss


def sup_con(problem: Problem) -> Criterion:
    """``SupConLoss`` of pytorch-metric-learning."""
    from pytorch_metric_learning.losses import SupConLoss

    criterion: Criterion = SupConLoss(temperature=problem.temperature)
    return criterion


def prepare_pot(batch: Batch, problem: Problem, method: str) -> Callable[[], Tensor]:
    """POT's Sinkhorn on torch tensors, with all sweeps run: its tolerance is set to zero."""
    import ot

    cost = batch.pair_cost()
    uniform = torch.full((len(cost),), 1.0 / len(cost))
    options = {"method": method, "numItermax": problem.n_iters, "stopThr": 0.0, "warn": False}
    return lambda: ot.sinkhorn(uniform, uniform, cost, problem.epsilon, **options)


def ott(name: str, task: str, function: str, **options: Any) -> Contender:
    """Return a contender that a function of `ott_peer` prepares, importing JAX only then."""

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        from tricouple_lab.experiments.bench import ott_peer

        prepared: Callable[..., Callable[[], object]] = getattr(ott_peer, function)
        return prepared(batch, problem, **options)

    return Contender(f"MMSinkhorn {name} (OTT-JAX)", task, prepare, "ott", cubic=True)


STORED = partial(neg_mmiot, memory="matrices")
STREAMED: dict[str, Any] = {"smallest": LARGEST_STORED, "largest": math.inf}

CONTENDERS = (
    loss("NegMMIOT", neg_mmiot),
    loss("NegMMIOT implicit", partial(neg_mmiot, gradient="implicit")),
    loss("NegMMIOT envelope", partial(neg_mmiot, gradient="envelope")),
    loss("NegMMIOT streamed", partial(neg_mmiot, memory="streamed"), **STREAMED),
    loss("NegMMIOT log-sigmoid", partial(STORED, shaping="log_sigmoid"), largest=2048),
    loss("NegMMIOT hinge", partial(STORED, shaping=Hinge(margin=0.5)), largest=2048),
    loss(
        "NegMMIOT log-sigmoid, anchor by anchor",
        partial(neg_mmiot, shaping=log_sigmoid),
        largest=512,
    ),
    *(
        Contender(f"NegMMIOT, {name}", LOSS, partial(prepare_hard, name=name), largest=2048)
        for name in HARD
    ),
    loss("PushPull", push_pull),
    loss("PushPull streamed", partial(push_pull, memory="streamed"), **STREAMED),
    loss("IOT", iot),
    loss("IOT streamed", partial(iot, memory="streamed"), **STREAMED),
    loss("InfoNCE", lambda problem: InfoNCE(problem.temperature), largest=math.inf),
    loss("InfoNCE (plain PyTorch)", plain_info_nce),
    loss("SupConLoss (PML)", sup_con, package="pytorch_metric_learning"),
    loss("dense Neg-MMIOT (PyTorch)", dense_neg_mmiot, cubic=True),
    ott("unrolled", LOSS, "prepare_loss"),
    ott("Danskin", LOSS, "prepare_loss", use_danskin=True),
    Contender("triplet_sinkhorn", TRIPLET_PLAN, prepare_triplet_plan),
    ott("plan only", TRIPLET_PLAN, "prepare_plan"),
    Contender("sinkhorn", PAIR_PLAN, prepare_pair_plan),
    *(
        Contender(f"{name} (POT)", PAIR_PLAN, partial(prepare_pot, method=name), "ot")
        for name in ("sinkhorn", "sinkhorn_log")
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}


# --- over several processes -----------------------------------------------------------------------


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
    """One competitor over several processes."""

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
    return lambda images, texts: criterion(
        normalize(images, dim=1), normalize(texts, dim=1), 1 / problem.temperature
    )


def nt_xent(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``NTXentLoss`` of lightly: own rows are two views of half as many samples."""
    from lightly.loss import NTXentLoss

    criterion = NTXentLoss(problem.temperature, gather_distributed=True)
    return lambda embeddings, labels: criterion(*embeddings.chunk(2))


def gathered_sup_con(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``SupConLoss`` of pytorch-metric-learning, gathered."""
    from pytorch_metric_learning.losses import SupConLoss
    from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

    criterion: Callable[..., Tensor] = DistributedLossWrapper(SupConLoss(problem.temperature))
    return criterion


def ranking(share: Share, problem: Problem) -> Callable[..., Tensor]:
    """``MultipleNegativesRankingLoss`` of sentence-transformers, of embeddings that are there."""
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    model = nn.Identity()
    options = {"scale": 1 / problem.temperature, "gather_across_devices": True}
    criterion = MultipleNegativesRankingLoss(model, **options)
    return lambda *sets: criterion.compute_loss_from_embeddings(list(sets), share.labels)


def ours(make: Callable[..., Callable[..., Tensor]], **options: Any) -> Any:
    """One of our losses over all processes."""
    return lambda share, problem: make(problem, group="world", **options)


OURS, CLIP = "NegMMIOT", "ClipLoss (open_clip)"

_GATHERED = (
    Gathered(OURS, ours(neg_mmiot)),
    Gathered("NegMMIOT, both directions", both_directions, pairs=True),
    Gathered("PushPull", ours(push_pull)),
    Gathered("InfoNCE", ours(lambda problem, **options: InfoNCE(problem.temperature, **options))),
    Gathered(CLIP, clip_loss, "open_clip.loss", pairs=True),
    Gathered("NTXentLoss (lightly)", nt_xent, "lightly.loss"),
    Gathered("SupConLoss (PML)", gathered_sup_con, "pytorch_metric_learning.losses", whole=True),
    Gathered(
        "MultipleNegativesRankingLoss (ST)",
        ranking,
        "sentence_transformers.sentence_transformer.losses",
        pairs=True,
    ),
)
GATHERED = {contender.name: contender for contender in _GATHERED}
