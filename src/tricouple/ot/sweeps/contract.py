"""What sweeps, gradients and engine agree on: couplings, which solve, and plans, the solutions."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.numeric import Patch, ScoreGradient, divide_or_zero, on_host


@dataclass(frozen=True)
class Masses:
    """Imposed marginals."""

    marginals: Tensor  # all axes in one vector, wide dtype
    sizes: tuple[int, ...]  # lengths of the axes
    dtype: torch.dtype  # the dtype of the coupling

    def of(self, *few: slice) -> Masses:
        """Those of some samples of each axis."""
        axes = zip(self.marginals.split(self.sizes), few, strict=True)
        parts = [part[own] for part, own in axes]
        return Masses(torch.cat(parts), tuple(map(len, parts)), self.dtype)

    @cached_property
    def _flat(self) -> Tensor:
        return self.marginals.to(self.dtype)

    @cached_property
    def values(self) -> tuple[Tensor, ...]:
        """The masses of each axis."""
        values: tuple[Tensor, ...] = self._flat.split(self.sizes)
        return values

    @cached_property
    def inverses(self) -> tuple[Tensor, ...]:
        """Their inverses, 0 for no mass."""
        inverse = divide_or_zero(torch.ones_like(self._flat), self._flat)
        inverses: tuple[Tensor, ...] = inverse.split(self.sizes)
        return inverses


Received = dict[int, Tensor]
"""By axis, what a plan carries there."""


class Plan(Protocol):
    """A transport plan P = exp(Σ potentials + log-kernel) of two or three marginals."""

    def marginal(self, axis: int) -> Tensor:
        """The plan's own marginal on an axis."""

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """Carry weights on one axis through the plan to the other axes.

        For each other axis: ``Σ weights · P`` summed over all axes but that one. With a sink, also
        add ``∂/∂score Σ weights · marginal_axis`` to it.
        """


class GradientSink:
    """Remembers terms of the gradient with respect to the N×M scores, in vectors."""

    def __init__(self, forces: Callable[[Sequence[Any]], ScoreGradient]) -> None:
        self._forces = forces
        self._terms: list[Any] = []

    def add(self, term: Any) -> None:
        """Add a term, as the coupling writes them."""
        self._terms.append(term)

    def total(self) -> ScoreGradient:
        """The sum of all terms, in one pass."""
        return self._forces(self._terms)


class DenseSink(GradientSink):
    """Adds whole matrices of score gradients."""

    def __init__(self, like: Tensor) -> None:
        self._sum = torch.zeros_like(like)

    def add(self, term: Tensor) -> None:
        """Add one N×M term."""
        self._sum += term

    def total(self) -> ScoreGradient:
        """The sum so far."""
        return [Patch(slice(0, len(self._sum)), self._sum)]


class Coupling(ABC):
    """Kernels that can be scaled to marginals, and whose plans can be differentiated."""

    dtype: torch.dtype  # the dtype that it is computed in
    shard: Shard | None = None  # the processes that share its kernels, if there are several

    @abstractmethod
    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted."""

    def sink(self) -> GradientSink:
        """A new, empty collector of score gradients."""
        return GradientSink(self.forces)

    def forces(self, terms: Sequence[Any]) -> ScoreGradient:
        """The score gradient of all that its plans were pushed with."""
        raise NotImplementedError

    def agreed(self, decision: bool) -> bool:
        """A decision on how to go on, which all processes must take alike."""
        return decision if self.shard is None else self.shard.agree(decision)

    def release(self) -> None:  # noqa: B027 (most have nothing to give)
        """Give up the matrices until they are needed again."""


class History(Protocol):
    """What a run of sweeps remembers: vectors, never matrices."""

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """The gradient of the sweeps with respect to the scores.

        Args:
            cotangents: Gradients of a scalar with respect to the final log-scalings.
        """


@dataclass(frozen=True)
class Solution:
    """What a run of Sinkhorn sweeps leaves behind."""

    coupling: Coupling  # the coupling that was solved
    potentials: Tensor  # log-scalings, all axes in one vector, wide dtype
    plan: Callable[[], Plan]  # makes the final plan
    history: History  # every update on the way to it
    n_sweeps: int | Tensor  # sweeps done


class Stage(NamedTuple):
    """One update of one potential: the axis it solved, and the plan right after it."""

    axis: int
    plan: Plan
    late: Tensor | None = None  # whether it came after the end and changed nothing


class Goal:
    """The end of sweeping: of the loop on the host, of all change on a device.

    A device is not asked whether the goal is reached. Its sweeps go on, and change nothing more:
    the shapes of all that is kept do not depend on when that was.
    """

    def __init__(self, tol: float | None, masses: Masses, agreed: Callable[[bool], bool]) -> None:
        self._tol, self._masses, self._agreed = tol, masses, agreed
        self.late: Tensor | None = None  # whether it is reached, where only the device knows
        self._late_sweeps: int | Tensor = 0

    def reached(self, *marginals: Callable[[], Tensor]) -> bool:
        """Whether to leave the loop: the L1 errors of the first marginals are small enough."""
        if self._tol is None:
            return False
        met: Tensor | None = None
        for marginal, mass in zip(marginals, self._masses.values, strict=False):
            below = (marginal() - mass).abs().sum() <= self._tol
            if on_host(below):
                if not self._agreed(bool(below)):
                    return False
            else:
                met = below if met is None else below & met
        if met is None:
            return True
        self.late = met if self.late is None else met | self.late
        self._late_sweeps = self._late_sweeps + self.late.long()
        return False

    def until(self, before: Tensor, after: Tensor) -> Tensor:
        """What an update leads to, or what was before it if the goal was reached already."""
        return after if self.late is None else torch.where(self.late, before, after)

    def sweeps(self, number: int) -> int | Tensor:
        """How many of all sweeps counted."""
        return number - self._late_sweeps


@dataclass(frozen=True)
class Stages:
    """A history as a list of updates."""

    coupling: Coupling
    masses: Masses
    stages: Sequence[Stage]

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the updates backwards (mathematics §4, unrolled).

        An update sets ``potential = log(imposed) − log(sum over the other axes)``. Right after it
        the plan has the imposed marginal, so the derivatives of that log-sum are the plan's
        conditional probabilities: weights ``cotangent / imposed`` pushed through the plan.
        """
        sink = self.coupling.sink()
        gradients = dict(enumerate(cotangents))
        for axis, plan, late in reversed(self.stages):
            # The update overwrote this potential: nothing flows to its old value.
            gradient = gradients.pop(axis)
            if late is not None:  # all flows to it
                gradients[axis] = gradient * late
                gradient = gradient * ~late
            weights = -gradient * self.masses.inverses[axis]
            for other, pushed in plan.push(axis, weights, sink).items():
                gradients[other] = gradients[other] + pushed if other in gradients else pushed
        return sink.total()


def log_scaling(log_mass: Tensor, log_sum: Tensor) -> Tensor:
    """``log_mass − log_sum``, and −∞ wherever the mass is zero, whatever the sum."""
    return torch.where(log_mass == -torch.inf, log_mass, log_mass - log_sum)


def finite(logs: Tensor) -> Tensor:
    """Empty sums: keep differences with them −∞ instead of NaN."""
    return torch.where(logs == -torch.inf, 0.0, logs)


def log_total(logs: Tensor, shard: Shard | None) -> Tensor:
    """The logarithm of the sum over processes, if there are several, of what has these."""
    if shard is None:
        return logs
    top = finite(shard.max_(logs.clone()))
    return shard.sum_(torch.exp(logs - top)).log_().add_(top)


def marginal_of(potential: Tensor, log_sums: Tensor) -> Tensor:
    """The masses of an axis, from the logarithms of its sums."""
    return torch.exp(potential + log_sums)
