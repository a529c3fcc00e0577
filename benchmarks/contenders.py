"""Who is measured: our losses and plans, the published algorithm, other libraries. One row each."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import log_softmax, normalize

import tricouple as tc
from benchmarks import memory
from benchmarks.problem import Batch, Problem, gradient

# Tasks: contenders are comparable within one.
LOSS = "loss: value and gradient"
TRIPLET_PLAN = "triplet plan: potentials"
PAIR_PLAN = "pair plan: matrix"
STEP = "training step"
OURS = "NegMMIOT"
SMOOTH, HINGE = f"{OURS} log-sigmoid", f"{OURS} hinge"
ANCHORS = f"{SMOOTH}, anchor by anchor"
SUP_CON = "pytorch_metric_learning.losses.SupConLoss"
LARGEST_STORED = 8192  # above, N×N matrices take gigabytes

Call = Callable[[], Any]
Criterion = Callable[..., Tensor]


@dataclass(frozen=True)
class Contender:
    """A row of the table of contenders."""

    name: str
    task: str
    # Does what is not measured (inputs, compilation), returns the call that is.
    prepare: Callable[[Batch, Problem], Call]
    module: str = ""  # of another library
    cubic: bool = False  # whether it holds N×N×N tensors
    smallest: int = 0  # sizes at which it runs
    largest: float = LARGEST_STORED
    matrices: int = 20  # N×N float32 that it holds at most; larger batches are streamed

    def obstacle(self, size: int, problem: Problem) -> str:
        """Return why it cannot run at a size, so that nothing swaps; empty if it can."""
        if self.module and find_spec(self.module.partition(".")[0]) is None:
            return "not installed"
        needed = 4 * min(size, LARGEST_STORED) ** 2 * self.matrices
        if self.cubic:  # for backward, two tensors for each of three updates per iteration
            needed = 4 * size**3 * (6 * problem.n_iters + 20)
        free = memory.available_bytes()
        if needed <= free:
            return ""
        return f"skipped: may need {needed / 2**30:.0f} GiB, {free / 2**30:.0f} GiB are free"


def peer(path: str, *arguments: Any, **options: Any) -> Any:
    """Call what is at a path, imported only then."""
    module, _, name = path.rpartition(".")
    return getattr(import_module(module), name)(*arguments, **options)


def ours(problem: Problem, name: str, **options: Any) -> Criterion:
    """Return one of our losses."""
    tau, epsilon, n_iters = problem.temperature, problem.epsilon, problem.n_iters
    arguments: dict[str, tuple[Any, ...]] = {
        "NegMMIOT": (tau, epsilon, n_iters),
        "PushPull": (tau, epsilon, epsilon, n_iters),
        "IOT": (epsilon, n_iters),
        "InfoNCE": (tau,),
    }
    criterion: Criterion = getattr(tc, name)(*arguments[name], **options)
    return criterion


def dense_neg_mmiot(problem: Problem, embeddings: Tensor, labels: Tensor) -> Tensor:
    """Neg-MMIOT as published: the N×N×N kernel in memory, autograd through every iteration."""
    n = len(labels)
    unit = normalize(embeddings, dim=1)
    similarity = unit @ unit.T / problem.temperature
    cost = similarity[:, None, :] - similarity[:, :, None]  # (i, j, k)
    same, other = labels[:, None] == labels[None, :], ~torch.eye(n, dtype=torch.bool)
    distinct = other[:, :, None] & other[:, None, :] & other[None, :, :]
    log_kernel = (-cost / problem.epsilon).masked_fill(~distinct, -torch.inf)
    log_mass = -math.log(n)
    f, g, h = (log_kernel.new_zeros(n) for _ in range(3))
    for _ in range(problem.n_iters):
        f = log_mass - torch.logsumexp(log_kernel + g[:, None] + h, dim=(1, 2))
        g = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + h, dim=(0, 2))
        h = log_mass - torch.logsumexp(log_kernel + f[:, None, None] + g[:, None], dim=(0, 1))
    log_plan = log_kernel + f[:, None, None] + g[:, None] + h
    # P̃ is uniform on the admissible triplets A: KL = −log|A| − mean over A of log P.
    chosen = log_plan[distinct & same[:, :, None] & ~same[:, None, :]]
    return -math.log(len(chosen)) - chosen.mean()


def plain_info_nce(problem: Problem, embeddings: Tensor, labels: Tensor) -> Tensor:
    """InfoNCE with class labels, as one would write it in a training script."""
    unit = normalize(embeddings, dim=1)
    itself = torch.eye(len(labels), dtype=torch.bool)
    logits = (unit @ unit.T / problem.temperature).masked_fill(itself, -torch.inf)
    positives = (labels[:, None] == labels[None, :]) & ~itself
    log_probabilities = log_softmax(logits, dim=1).masked_fill(~positives, 0.0)
    counts = positives.sum(1)
    anchors = counts > 0
    return -(log_probabilities.sum(1)[anchors] / counts[anchors]).mean()


def triplet_plan(batch: Batch, p: Problem) -> Call:
    """Our plan of three marginals."""
    s = batch.similarities()
    return lambda: tc.ot.triplet_sinkhorn(s, p.temperature, p.epsilon, n_iters=p.n_iters)


def pair_plan(batch: Batch, problem: Problem) -> Call:
    """Our plan of pairs, as a matrix because POT returns one."""
    cost = batch.pair_cost()
    return lambda: tc.ot.sinkhorn(cost, problem.epsilon, n_iters=problem.n_iters).dense()


def pot_plan(batch: Batch, problem: Problem, method: str) -> Call:
    """POT's Sinkhorn on torch tensors; tolerance 0, so that all iterations are done."""
    cost = batch.pair_cost()
    masses = 2 * [torch.full((len(cost),), 1.0 / len(cost))]
    how = {"method": method, "numItermax": problem.n_iters, "stopThr": 0.0, "warn": False}
    sinkhorn = import_module("ot").sinkhorn
    return lambda: sinkhorn(*masses, cost, problem.epsilon, **how)


def loss(name: str, build: Callable[[Problem], Criterion], **about: Any) -> Contender:
    """Return a contender for value and gradient of the criterion that ``build`` makes."""
    return Contender(name, LOSS, lambda b, p: gradient(build(p), b[0], marks=b[1]), **about)


def our(
    name: str, loss_name: str = OURS, *, size: Any = (0, LARGEST_STORED), **how: Any
) -> Contender:
    """Return a contender for one of our losses."""
    return loss(name, partial(ours, name=loss_name, **how), smallest=size[0], largest=size[1])


def ott(name: str, task: str, function: str, **how: Any) -> Contender:
    """Return a contender that a function of ``ott_peer`` prepares."""
    prepare = partial(peer, f"benchmarks.ott_peer.{function}", **how)
    return Contender(f"MMSinkhorn {name} (OTT-JAX)", task, prepare, "ott", cubic=True)


STREAMED: dict[str, Any] = {"memory": "streamed", "size": (LARGEST_STORED, math.inf)}
SHAPED: dict[str, Any] = {"memory": "matrices", "size": (0, 2048)}
CONTENDERS = (
    our("NegMMIOT"),
    our("NegMMIOT implicit", gradient="implicit"),
    our("NegMMIOT envelope", gradient="envelope"),
    our("NegMMIOT streamed", **STREAMED),
    our(SMOOTH, shaping="log_sigmoid", **SHAPED),
    our(HINGE, shaping=tc.shaping.Hinge(0.5), **SHAPED),
    our(ANCHORS, shaping=tc.shaping.log_sigmoid, size=(0, 512)),
    our("PushPull", "PushPull"),
    our("PushPull streamed", "PushPull", **STREAMED),
    our("IOT", "IOT"),
    our("IOT streamed", "IOT", **STREAMED),
    our("InfoNCE", "InfoNCE", size=(0, math.inf)),
    loss("InfoNCE (plain PyTorch)", partial(partial, plain_info_nce)),
    loss("SupConLoss (PML)", lambda p: peer(SUP_CON, p.temperature), module=SUP_CON),
    loss("dense Neg-MMIOT (PyTorch)", partial(partial, dense_neg_mmiot), cubic=True),
    ott("unrolled", LOSS, "prepare_loss"),
    ott("Danskin", LOSS, "prepare_loss", use_danskin=True),
    Contender("triplet_sinkhorn", TRIPLET_PLAN, triplet_plan),
    ott("plan only", TRIPLET_PLAN, "prepare_plan"),
    Contender("sinkhorn", PAIR_PLAN, pair_plan),
    *(Contender(f"{how} (POT)", PAIR_PLAN, partial(pot_plan, method=how), "ot")
      for how in ("sinkhorn", "sinkhorn_log")),
)  # fmt: skip
BY_NAME = {contender.name: contender for contender in CONTENDERS}
