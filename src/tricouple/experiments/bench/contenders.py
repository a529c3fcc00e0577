"""The table of contenders: what is measured, on which task, up to which size."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any

from tricouple.experiments.bench import peers
from tricouple.experiments.bench.problem import Batch, Criterion, Problem
from tricouple.losses import IOT, InfoNCE, NegMMIOT, PushPull
from tricouple.ot import sinkhorn, triplet_sinkhorn
from tricouple.shaping import log_sigmoid

LOSS = "loss: value and gradient"
TRIPLET_PLAN = "triplet plan: potentials"
PAIR_PLAN = "pair plan: matrix"

# Beyond this N×N matrices are a burden.
LARGEST_STORED = 8192

Prepare = Callable[[Batch, Problem], Callable[[], object]]


@dataclass(frozen=True)
class Contender:
    """One competitor.

    Attributes:
        name: Unique, as shown in tables.
        task: Contenders are comparable within a task.
        prepare: Does all that is not to be measured (inputs, compilation) and returns the call
            that is.
        package: The importable module it needs, empty for tricouple and torch.
        cubic: Whether it holds N×N×N tensors.
        smallest: The smallest size it is of interest for.
        largest: The largest size it is run at.
    """

    name: str
    task: str
    prepare: Prepare
    package: str = ""
    cubic: bool = False
    smallest: int = 0
    largest: float = LARGEST_STORED

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


def loss(
    name: str,
    build: Callable[..., Criterion],
    options: Mapping[str, Any] = MappingProxyType({}),
    **about: Any,
) -> Contender:
    """Return a contender for value and gradient.

    Args:
        name: As shown in tables.
        build: Makes the criterion for a problem.
        options: Further arguments of `build`.
        **about: What else a contender has.
    """

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        return batch.value_and_gradient(build(problem, **options))

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


def info_nce(problem: Problem) -> InfoNCE:
    """Our InfoNCE, which never stores an N×N matrix."""
    return InfoNCE(problem.temperature)


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


def ott(name: str, task: str, function: str) -> Contender:
    """Return a contender that a function of `ott_peer` prepares, importing JAX only then."""

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        from tricouple.experiments.bench import ott_peer

        prepared: Prepare = getattr(ott_peer, function)
        return prepared(batch, problem)

    return Contender(f"MMSinkhorn {name} (OTT-JAX)", task, prepare, "ott", cubic=True)


def pot(method: str) -> Contender:
    """Return a contender from POT, by the name of its method."""
    return Contender(f"{method} (POT)", PAIR_PLAN, partial(peers.prepare_pot, method=method), "ot")


STREAMED: dict[str, Any] = {
    "options": {"memory": "streamed"},
    "smallest": LARGEST_STORED,
    "largest": math.inf,
}

CONTENDERS = (
    loss("NegMMIOT", neg_mmiot),
    loss("NegMMIOT implicit", neg_mmiot, {"gradient": "implicit"}),
    loss("NegMMIOT envelope", neg_mmiot, {"gradient": "envelope"}),
    loss("NegMMIOT streamed", neg_mmiot, **STREAMED),
    loss(
        "NegMMIOT log-sigmoid",
        neg_mmiot,
        {"shaping": "log_sigmoid", "memory": "matrices"},
        largest=2048,
    ),
    loss(
        "NegMMIOT log-sigmoid, anchor by anchor",
        neg_mmiot,
        {"shaping": log_sigmoid},
        largest=512,
    ),
    loss("PushPull", push_pull),
    loss("PushPull streamed", push_pull, **STREAMED),
    loss("IOT", iot),
    loss("IOT streamed", iot, **STREAMED),
    loss("InfoNCE", info_nce, largest=math.inf),
    loss("InfoNCE (plain PyTorch)", peers.info_nce),
    loss("SupConLoss (PML)", peers.sup_con, package="pytorch_metric_learning"),
    loss("dense Neg-MMIOT (PyTorch)", peers.dense_neg_mmiot, cubic=True),
    ott("unrolled", LOSS, "prepare_loss"),
    ott("Danskin", LOSS, "prepare_danskin"),
    Contender("triplet_sinkhorn", TRIPLET_PLAN, prepare_triplet_plan),
    ott("plan only", TRIPLET_PLAN, "prepare_plan"),
    Contender("sinkhorn", PAIR_PLAN, prepare_pair_plan),
    pot("sinkhorn"),
    pot("sinkhorn_log"),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}
