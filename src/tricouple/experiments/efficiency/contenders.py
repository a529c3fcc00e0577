"""The table of contenders: what is measured, on which task, up to which size."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from tricouple.experiments.efficiency import peers
from tricouple.experiments.efficiency.problem import Batch, Problem
from tricouple.losses import IOT, NegMMIOT, PushPull
from tricouple.ot import sinkhorn, triplet_sinkhorn

LOSS = "loss: value and gradient"
TRIPLET_PLAN = "triplet plan: potentials"
PAIR_PLAN = "pair plan: matrix"

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
    """

    name: str
    task: str
    prepare: Prepare
    package: str = ""
    cubic: bool = False

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
        return 4 * size**2 * 20


def prepare_neg_mmiot(batch: Batch, problem: Problem, gradient: str) -> Callable[[], object]:
    """Our three-marginal loss, with any of its gradients."""
    criterion = NegMMIOT(
        temperature=problem.temperature,
        epsilon=problem.epsilon,
        n_iters=problem.n_iters,
        gradient=gradient,
    )
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_push_pull(batch: Batch, problem: Problem) -> Callable[[], object]:
    """Our two pairwise plans."""
    criterion = PushPull(
        temperature=problem.temperature,
        epsilon_pos=problem.epsilon,
        epsilon_neg=problem.epsilon,
        n_iters=problem.n_iters,
    )
    return peers.value_and_gradient(lambda x: criterion(x, batch.labels), batch)


def prepare_iot(batch: Batch, problem: Problem) -> Callable[[], object]:
    """One pairwise plan."""
    criterion = IOT(epsilon=problem.epsilon, n_iters=problem.n_iters)
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
        from tricouple.experiments.efficiency import ott_peer

        function: Prepare = getattr(ott_peer, name)
        return function(batch, problem)

    return prepare


CONTENDERS = (
    Contender("NegMMIOT", LOSS, partial(prepare_neg_mmiot, gradient="unrolled")),
    Contender("NegMMIOT implicit", LOSS, partial(prepare_neg_mmiot, gradient="implicit")),
    Contender("NegMMIOT envelope", LOSS, partial(prepare_neg_mmiot, gradient="envelope")),
    Contender("PushPull", LOSS, prepare_push_pull),
    Contender("IOT", LOSS, prepare_iot),
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
