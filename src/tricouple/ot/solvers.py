"""Which solvers are tried for a coupling, in which order."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Protocol

from tricouple.memory import MemoryPlan
from tricouple.numeric import wide_dtype
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.balanced import can_be_halved
from tricouple.ot.sweeps.native_triplet import NativeTriplet
from tricouple.ot.sweeps.pair_log import LogPair
from tricouple.ot.sweeps.pair_scaled import ScaledPair
from tricouple.ot.sweeps.plan import Kernel, Masses, Solution
from tricouple.ot.sweeps.similarities import Similarities
from tricouple.ot.sweeps.triplet_anchors import careful_shaped
from tricouple.ot.sweeps.triplet_log import careful_linear
from tricouple.ot.sweeps.triplet_log_sigmoid import careful_log_sigmoid, scaled_log_sigmoid
from tricouple.ot.sweeps.triplet_scaled import scaled_linear
from tricouple.shaping import Shaping

# Streamed sweeps have no logarithms to fall back on, but twice the digits: of sixteen, six may go.
WIDE_CANCELLATION = 1e6


class Solver(Kernel, Protocol):
    """A kernel that finds its own scalings."""

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted."""


class SolverFactory(Protocol):
    """Makes a solver of similarities, the factor that turns them into scores, and the setting."""

    def __call__(
        self, similarities: Similarities, factor: float, /, *, within: bool
    ) -> Solver | None:
        """Build the kernel; None if that would be no help after the solver before."""


def pair(memory: MemoryPlan) -> tuple[SolverFactory, ...]:
    """Solvers of pairwise plans: fast first; the last one never gives up."""
    if not memory.streamed:
        return ScaledPair, partial(_whole, ScaledPair), LogPair
    tiled = partial(ScaledPair, memory=memory)
    return tiled, partial(_wide, tiled), _refuse


def linear_triplet(memory: MemoryPlan) -> tuple[SolverFactory, ...]:
    """Solvers of triplet plans for linear ψ."""
    if not memory.streamed:
        return _fast_linear, partial(_whole, scaled_linear), careful_linear
    tiled = partial(scaled_linear, memory=memory)
    return tiled, partial(_wide, partial(tiled, cancellation=WIDE_CANCELLATION)), _refuse


def log_sigmoid_triplet(
    epsilon: float, tolerance: float, memory: MemoryPlan
) -> tuple[SolverFactory, ...]:
    """Solvers for log-sigmoid shaping, by quadrature to a tolerance on the kernel."""
    power = 1 / epsilon
    fast = partial(
        scaled_log_sigmoid,
        power=power,
        tolerance=tolerance,
        budget=0 if memory.streamed else memory.budget,
        tile_entries=memory.tile_entries,
    )
    if not memory.streamed:
        return fast, partial(careful_log_sigmoid, power=power, tolerance=tolerance)
    return fast, partial(_wide, partial(fast, cancellation=WIDE_CANCELLATION)), _refuse


def shaped_triplet(psi: Shaping, epsilon: float, memory_budget: float) -> tuple[SolverFactory, ...]:
    """The solver for any ψ: exact, over a few anchors at a time."""
    return (partial(careful_shaped, psi=psi, epsilon=epsilon, memory_budget=memory_budget),)


def _fast_linear(similarities: Similarities, sharpness: float, /, *, within: bool) -> Solver:
    """Compiled for small batches, PyTorch for large."""
    make = NativeTriplet if native.suits(similarities) else scaled_linear
    return make(similarities, sharpness, within=within)


def _whole(
    make: Callable[..., Solver], similarities: Similarities, factor: float, /, *, within: bool
) -> Solver | None:
    """On whole matrices what was not trusted on halves."""
    if native.suits(similarities) or not can_be_halved(similarities, within=within):
        return None
    return make(similarities, factor, within=within, halved=False)


def _wide(
    make: SolverFactory, similarities: Similarities, factor: float, /, *, within: bool
) -> Solver | None:
    return make(similarities.widened(wide_dtype(similarities.like.device)), factor, within=within)


def _refuse(similarities: Similarities, factor: float, /, *, within: bool) -> Solver:
    raise ValueError(
        f"the plan of {similarities.shape[0]}×{similarities.shape[1]} similarities at sharpness "
        f"{abs(factor):.4g} is too sharp for streamed sweeps, even in float64: use a larger "
        'epsilon or temperature, or memory="matrices"'
    )
