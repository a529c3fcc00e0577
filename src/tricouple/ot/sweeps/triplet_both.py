"""Triplet plans from one set to another and back, both at once (mathematics §7).

Sums over one set for the one plan are sums over the other set for the other plan. So the two are a
single plan of all samples with the symmetric kernel ``[[0, E], [Eᵀ, 0]]``: half of it is stored,
every entry is used for both, and what processes send each other is sent once. Only what "j ≠ k"
excludes is summed over each set for itself.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import OwnGradient, Patch, ScoreGradient
from tricouple.ot.sweeps.contract import (
    Coupling,
    GradientSink,
    History,
    Masses,
    Plan,
    Received,
    Solution,
)
from tricouple.ot.sweeps.kernels import Kernels
from tricouple.ot.sweeps.triplet import ScaledTriplet, trustworthy
from tricouple.ot.sweeps.triplet_adjoint import Anchors, Exclusion, Scalings


class BothExclusion(Exclusion):
    """What "j ≠ k" takes from the sums, where the references of a sample are the other set."""

    def __init__(self, kernels: Kernels, first: int) -> None:
        super().__init__(kernels, within=False)
        self.first = first

    def around(self, values: Tensor) -> Tensor:
        """For every anchor the sum of the values of the other set."""
        ahead, behind = values[: self.first], values[self.first :]
        return torch.cat([behind.sum().expand_as(ahead), ahead.sum().expand_as(behind)])

    def anchors(self, a: Tensor) -> Anchors:
        """Anchors with scaling a."""
        excluded = self.row * a
        return Anchors(a, excluded, self.column * self.around(excluded))

    def one_way(self, near: slice, far: slice) -> Exclusion:
        """That of the anchors of one set alone."""
        one = copy.copy(self)
        one.row, one.column = self.row[near], self.column[far]
        return one


class BothTriplet(ScaledTriplet):
    """Entropic three-marginal transport from a first set to a second, and back, by scaling."""

    def __init__(self, kernels: Kernels, first: int, cancellation: float) -> None:
        super().__init__(kernels, within=False, cancellation=cancellation)
        self.first = first  # how many samples the first set has

    @cached_property
    def exclusion(self) -> BothExclusion:
        """What j ≠ k takes away."""
        return BothExclusion(self.kernels, self.first)

    def _trusted(self, scalings: Scalings, masses: Masses) -> bool:
        """Whether both ways can be."""
        a, b, h, r_plus, r_minus = scalings
        return all(
            trustworthy(
                self.exclusion.one_way(near, far),
                Scalings(a[:, near], b[:, far], h[:, far], r_plus[..., near], r_minus[..., near]),
                masses.of(near, far, far),
                self.cancellation,
            )
            for near, far in ways(self.first)
        )


def ways(first: int) -> tuple[tuple[slice, slice], tuple[slice, slice]]:
    """Anchors and references of the way there and of the way back."""
    ahead, behind = slice(0, first), slice(first, None)
    return (ahead, behind), (behind, ahead)


def both_ways(there: Sequence[Tensor], back: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """Vectors of both ways, by axis: of anchors, and of the references that the other way has."""
    (a, *others), (a_back, *others_back) = there, back
    pairs = zip(others_back, others, strict=True)
    return torch.cat([a, a_back]), *(torch.cat(list(pair)) for pair in pairs)


class InTurn(Coupling):
    """The same by two couplings, from the first set to the second, and then back."""

    def __init__(self, there: Coupling, back: Coupling, first: int) -> None:
        self.couplings, self.first = (there, back), first
        self.dtype, self.shard = there.dtype, there.shard

    def release(self) -> None:
        """Give up the matrices of both."""
        for coupling in self.couplings:
            coupling.release()

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when one cannot be trusted."""
        found: list[tuple[Solution, list[Tensor]]] = []
        for coupling, (near, far) in zip(self.couplings, ways(self.first), strict=True):
            own = masses.of(near, far, far)
            solution = coupling.solve(own, n_iters, tol)
            if solution is None:
                return None
            found.append((solution, list(solution.potentials.split(own.sizes))))
        (there, ahead), (back, behind) = found
        potentials = torch.cat(both_ways(ahead, behind))
        history = BothHistory((there.history, back.history), self.first)
        plans = BothPlan((there.plan(), back.plan()))
        return Solution(self, potentials, lambda: plans, history, there.n_sweeps)


@dataclass(frozen=True)
class BothPlan:
    """The plan of each way."""

    plans: tuple[Plan, Plan]

    def marginal(self, axis: int) -> Tensor:
        """The marginals of both."""
        there, back = (plan.marginal(axis) for plan in self.plans)
        return torch.cat([there, back] if axis == 0 else [back, there])

    def push(self, axis: int, weights: Tensor, sink: GradientSink | None = None) -> Received:
        """Nobody asks."""
        raise NotImplementedError


@dataclass(frozen=True)
class BothHistory:
    """The sweeps of each way."""

    histories: tuple[History, History]
    first: int

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """The gradients of both, in the places that they have among all samples."""
        a, b, h = cotangents
        parts = [
            (history.adjoint([a[near], b[far], h[far]]), near.start, far.start)
            for history, (near, far) in zip(self.histories, ways(self.first), strict=True)
        ]
        if not any(isinstance(gradient, OwnGradient) for gradient, _, _ in parts):
            return self._moved(parts)
        sides: list[tuple[Iterable[Patch], int, int]] = []
        rows: list[slice] = []
        for gradient, near, far in parts:
            assert isinstance(gradient, OwnGradient)
            assert gradient.references is not None
            sides += [(gradient.anchors, near, far), (gradient.references, far, near)]
            rows.append(_moved(gradient.rows[0], near, 0))
        return OwnGradient(self._moved(sides), rows)

    def _moved(self, parts: Iterable[tuple[Iterable[Patch], int, int]]) -> Iterator[Patch]:
        for patches, near, far in parts:
            for rows, values, columns in patches:
                yield Patch(_moved(rows, near, 0), values, _moved(columns, far, values.shape[1]))


def _moved(few: slice, by: int, length: int) -> slice:
    if few.stop is None:  # all of them
        return slice(by, by + length)
    return slice(few.start + by, few.stop + by)
