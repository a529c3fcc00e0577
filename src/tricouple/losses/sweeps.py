"""What all losses on a coupling have in common: how it is solved, differentiated and stored."""

from __future__ import annotations

from dataclasses import dataclass

from tricouple import checks
from tricouple.losses.batch import Batch
from tricouple.memory import MEMORY_MODES, MemoryPlan, plan_memory
from tricouple.ot.gradients import GRADIENTS
from tricouple.ot.potentials import Settings
from tricouple.ot.solvers import SolverFactory
from tricouple.ot.sweeps.balanced import can_be_halved
from tricouple.ot.sweeps.similarities import Products


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
