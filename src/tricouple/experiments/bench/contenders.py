"""The table of contenders: what is measured, on which task, up to which size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

from tricouple.experiments.bench.problem import Batch, Criterion, Problem
from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple.ot import sinkhorn, triplet_sinkhorn
from tricouple.shaping import Hinge, log_sigmoid

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

    def step() -> Tensor:
        plan: Tensor = ot.sinkhorn(
            uniform,
            uniform,
            cost,
            problem.epsilon,
            method=method,
            numItermax=problem.n_iters,
            stopThr=0.0,
            warn=False,
        )
        return plan

    return step


def ott(name: str, task: str, function: str) -> Contender:
    """Return a contender that a function of `ott_peer` prepares, importing JAX only then."""

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        from tricouple.experiments.bench import ott_peer

        prepared: Prepare = getattr(ott_peer, function)
        return prepared(batch, problem)

    return Contender(f"MMSinkhorn {name} (OTT-JAX)", task, prepare, "ott", cubic=True)


STREAMED: dict[str, Any] = {"smallest": LARGEST_STORED, "largest": math.inf}

CONTENDERS = (
    loss("NegMMIOT", neg_mmiot),
    loss("NegMMIOT implicit", partial(neg_mmiot, gradient="implicit")),
    loss("NegMMIOT envelope", partial(neg_mmiot, gradient="envelope")),
    loss("NegMMIOT streamed", partial(neg_mmiot, memory="streamed"), **STREAMED),
    loss(
        "NegMMIOT log-sigmoid",
        partial(neg_mmiot, shaping="log_sigmoid", memory="matrices"),
        largest=2048,
    ),
    loss(
        "NegMMIOT hinge",
        partial(neg_mmiot, shaping=Hinge(margin=0.5), memory="matrices"),
        largest=2048,
    ),
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
    ott("Danskin", LOSS, "prepare_danskin"),
    Contender("triplet_sinkhorn", TRIPLET_PLAN, prepare_triplet_plan),
    ott("plan only", TRIPLET_PLAN, "prepare_plan"),
    Contender("sinkhorn", PAIR_PLAN, prepare_pair_plan),
    *(
        Contender(f"{name} (POT)", PAIR_PLAN, partial(prepare_pot, method=name), "ot")
        for name in ("sinkhorn", "sinkhorn_log")
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}
