"""The table of contenders: what is measured, on which task, up to which size."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

from tricouple.experiments.bench import peers
from tricouple.experiments.bench.problem import Batch, Problem
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
            return 4 * size**3 * (6 * problem.n_iters + 10)
        return 4 * min(size, LARGEST_STORED) ** 2 * 20  # beyond that only what streams is run


def prepare_neg_mmiot(batch: Batch, problem: Problem, **options: Any) -> Callable[[], object]:
    """Our three-marginal loss, with any of its options."""
    criterion = NegMMIOT(
        temperature=problem.temperature,
        epsilon=problem.epsilon,
        n_iters=problem.n_iters,
        **options,
    )
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_push_pull(batch: Batch, problem: Problem, **options: Any) -> Callable[[], object]:
    """Our two pairwise plans."""
    criterion = PushPull(
        temperature=problem.temperature,
        epsilon_pos=problem.epsilon,
        epsilon_neg=problem.epsilon,
        n_iters=problem.n_iters,
        **options,
    )
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_iot(batch: Batch, problem: Problem, **options: Any) -> Callable[[], object]:
    """One pairwise plan."""
    criterion = IOT(epsilon=problem.epsilon, n_iters=problem.n_iters, **options)
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_info_nce(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our InfoNCE, which never stores an N×N matrix."""
    criterion = InfoNCE(temperature=problem.temperature)
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_triplet_plan(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our three-marginal plan."""
    similarity = batch.similarities()
    return lambda: triplet_sinkhorn(
        similarity, problem.temperature, problem.epsilon, n_iters=problem.n_iters
    )


def prepare_pair_plan(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our pairwise plan, as a matrix because that is what POT returns."""
    cost = peers.pair_cost(batch)
    return lambda: sinkhorn(cost, problem.epsilon, n_iters=problem.n_iters).dense()


def ott(name: str) -> Prepare:
    """Prepare with a function of `ott_peer`, importing JAX only then."""

    def prepare(batch: Batch, problem: Problem) -> Callable[[], object]:
        from tricouple.experiments.bench import ott_peer

        function: Prepare = getattr(ott_peer, name)
        return function(batch, problem)

    return prepare


CONTENDERS = (
    Contender("NegMMIOT", LOSS, prepare_neg_mmiot),
    Contender("NegMMIOT implicit", LOSS, partial(prepare_neg_mmiot, gradient="implicit")),
    Contender("NegMMIOT envelope", LOSS, partial(prepare_neg_mmiot, gradient="envelope")),
    Contender(
        "NegMMIOT streamed",
        LOSS,
        partial(prepare_neg_mmiot, memory="streamed"),
        smallest=8192,
        largest=math.inf,
    ),
    Contender(
        "NegMMIOT log-sigmoid",
        LOSS,
        partial(prepare_neg_mmiot, shaping="log_sigmoid", memory="matrices"),
        largest=2048,
    ),
    Contender(
        "NegMMIOT log-sigmoid, anchor by anchor",
        LOSS,
        partial(prepare_neg_mmiot, shaping=log_sigmoid),
        largest=512,
    ),
    Contender("PushPull", LOSS, prepare_push_pull),
    Contender(
        "PushPull streamed",
        LOSS,
        partial(prepare_push_pull, memory="streamed"),
        smallest=8192,
        largest=math.inf,
    ),
    Contender("IOT", LOSS, prepare_iot),
    Contender(
        "IOT streamed",
        LOSS,
        partial(prepare_iot, memory="streamed"),
        smallest=8192,
        largest=math.inf,
    ),
    Contender("InfoNCE", LOSS, prepare_info_nce, largest=math.inf),
    Contender("InfoNCE (plain PyTorch)", LOSS, peers.prepare_info_nce),
    Contender(
        "SupConLoss (PML)",
        LOSS,
        peers.prepare_sup_con,
        package="pytorch_metric_learning",
    ),
    Contender("dense Neg-MMIOT (PyTorch)", LOSS, peers.prepare_dense, cubic=True),
    Contender("MMSinkhorn unrolled (OTT-JAX)", LOSS, ott("prepare_loss"), "ott", cubic=True),
    Contender("MMSinkhorn Danskin (OTT-JAX)", LOSS, ott("prepare_danskin"), "ott", cubic=True),
    Contender("triplet_sinkhorn", TRIPLET_PLAN, prepare_triplet_plan),
    Contender(
        "MMSinkhorn plan only (OTT-JAX)", TRIPLET_PLAN, ott("prepare_plan"), "ott", cubic=True
    ),
    Contender("sinkhorn", PAIR_PLAN, prepare_pair_plan),
    Contender("sinkhorn (POT)", PAIR_PLAN, partial(peers.prepare_pot, method="sinkhorn"), "ot"),
    Contender(
        "sinkhorn_log (POT)", PAIR_PLAN, partial(peers.prepare_pot, method="sinkhorn_log"), "ot"
    ),
)

BY_NAME = {contender.name: contender for contender in CONTENDERS}
