"""What losses on a coupling share: how it is solved, and KL from a pair target to its plan."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple import checks
from tricouple.losses.batch import Batch
from tricouple.memory import IN_MATRICES, MEMORY_MODES, MemoryPlan, plan_memory
from tricouple.numeric import expectation, uniform
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.potentials import Settings, embedded_potentials, solve_potentials
from tricouple.ot.solvers import SolverFactory, pair
from tricouple.ot.sweeps.balanced import can_be_halved
from tricouple.ot.sweeps.similarities import Products
from tricouple.relations import UniformPairs


@dataclass(frozen=True)
class Sweeps:
    """The options of a coupling that are the same for every loss.

    Attributes:
        n_iters: Sinkhorn sweeps, at most.
        tol: Stop sweeping when the marginal error (L1) is below this.
        gradient: ``"unrolled"``, ``"implicit"`` or ``"envelope"``.
        marginals: ``"uniform"`` or ``"target"``.
        memory: ``"auto"``, ``"matrices"`` or ``"streamed"``.
        memory_budget: Bytes.
    """

    n_iters: int
    tol: float | None
    gradient: str
    marginals: str
    memory: str
    memory_budget: float

    def __post_init__(self) -> None:
        checks.sweeps(self.n_iters, self.tol)
        checks.one_of("gradient", self.gradient, GRADIENTS)
        checks.one_of("marginals", self.marginals, ("uniform", "target"))
        checks.one_of("memory", self.memory, MEMORY_MODES)
        checks.positive_number("memory_budget", self.memory_budget)

    def memory_of(self, batch: Batch, *, matrices: int) -> MemoryPlan:
        """How a batch is computed that needs so many N×M matrices, or halves of them."""
        similarities = Products(batch.anchors, batch.references)
        halved = can_be_halved(similarities, within=batch.within)
        return plan_memory(
            self.memory,
            self.memory_budget,
            similarities.shape,
            batch.anchors,
            matrices=matrices / 2 if halved else matrices,
        )

    def settings(
        self, solvers: tuple[SolverFactory, ...], sizes: tuple[int, ...], batch: Batch
    ) -> Settings:
        """The settings of one coupling."""
        return Settings(solvers, sizes, batch.within, self.n_iters, self.tol, self.gradient)

    def __str__(self) -> str:
        return (
            f"n_iters={self.n_iters}, gradient={self.gradient!r}, marginals={self.marginals!r}, "
            f"memory={self.memory!r}"
        )


@dataclass(frozen=True)
class PairDivergence:
    """``KL(P̃ ‖ P)`` and the log-scalings of P.

    Attributes:
        value: The divergence, a scalar in wide dtype.
        potentials: Log-scalings of rows and columns, wide dtype.
    """

    value: Tensor
    potentials: tuple[Tensor, ...]


def pair_divergence(
    batch: Batch,
    target: UniformPairs,
    sharpness: float | Tensor,
    sweeps: Sweeps,
    *,
    costs: Tensor | None = None,
) -> PairDivergence:
    """Solve the plan with kernel ``exp(sharpness · s)`` and compare the target with it.

    ``KL(P̃‖P) = −log|pairs| − sharpness·⟨P̃, s⟩ − Σ ⟨target marginal, log-scaling⟩``.

    Args:
        batch: The batch, with cosines s.
        target: P̃.
        sharpness: Positive for transport, negative for anti-transport.
        sweeps: How to solve.
        costs: Take these, shape (N, M), for s.
    """
    rows, columns = target.pairs.marginals
    masses = torch.cat([rows, columns])
    sizes = (len(rows), len(columns))
    imposed = uniform(sizes, masses) if sweeps.marginals == "uniform" else masses
    solvers = pair(IN_MATRICES if costs is not None else sweeps.memory_of(batch, matrices=1))
    settings = sweeps.settings(solvers, sizes, batch)
    if costs is None:
        potentials = embedded_potentials(
            batch.anchors, batch.references, sharpness, imposed, settings
        )
        mean = batch.inner(target.pairs)  # O(N·d) work
    else:
        potentials, _ = solve_potentials(costs, sharpness, imposed, settings)
        mean = costs[target.pairs.mask()].to(masses.dtype).mean()
    value = -math.log(target.size) - sharpness * mean - expectation(masses, potentials)
    return PairDivergence(value, potentials.split(sizes))
