"""Forms: what a plan's kernel is. A form offers ``sweep``, ``push`` and ``gradient``.

A plan of A axes is P = exp(Σ potentials) · K, known by its potentials (log-scalings), one float64
vector per axis; the solver does the rest. Pairs and linear triplets are one form: their rows are
softmaxes, of the positives and, for triplets, of the negatives (rows.py). ``LogSigmoid``, ``Hinge``
and ``AnyShaping`` offer the same three functions.

Of several processes each has the rows of its own anchors: potentials and weights of the first axis
are those of its own rows, of the other axes those of all references.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from tricouple.ot import rows
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores


class Term(NamedTuple):
    """A part of a gradient: that of Σ w · marginals with respect to s, at these potentials."""

    potentials: Vectors
    weights: Weights


class Form(Protocol):
    """What the solver asks of a kernel K."""

    scores: Scores

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the axes."""

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Set one potential after the other so that its marginal is right.

        Args:
            potentials: Those of all axes.
            log_masses: Logarithms of the imposed marginals.
            watch: Whether the error of the first marginal before the sweep (L1) is wanted.
        """

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the *other* axes, carried through the plan.

        With ``into``, (N, M), ∂/∂s of Σ w · marginals is added to it.
        """

    def gradient(self, terms: Sequence[Term]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, in tiles that the next one overwrites."""


@dataclass
class Linear:
    """K_ij = exp(c s_ij), two axes, or K_ijk = exp(c s_ij − c s_ik), j ≠ k, three; never own_i."""

    scores: Scores
    sharpness: float | Tensor  # |c|
    axes: int
    sign: int = 1  # of c; −1 for a pair plan that repels

    @property
    def c(self) -> float | Tensor:
        """The factor of s."""
        return self.sharpness if self.sign > 0 else -self.sharpness

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        n, m = self.scores.shape
        return (n, m, m)[: self.axes]

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Anchors and positives in one pass over the tiles, then negatives in another (§2)."""
        phi, f, *others = potentials
        g = others[0] if others else None
        phi, columns, error = self._pass(self.c, phi, f, g, log_masses[0], watch)  # marginals 1, 2
        f = log_scaling(log_masses[1], columns)
        if g is None:
            return [phi, f], error
        _, columns, _ = self._pass(-self.c, phi, g, f, None, False)  # marginal 3
        return [phi, f, log_scaling(log_masses[2], columns)], error

    def _pass(
        self,
        c: float | Tensor,
        phi: Tensor,
        v: Tensor,
        partner: Tensor | None,
        log_mass: Tensor | None,
        watch: bool,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        phi, columns = phi.clone(), torch.full_like(v, -torch.inf)
        error = phi.new_zeros(()) if watch else None
        for block, tile in self.scores.tiles():
            own, mass = self.scores.own[block], None if log_mass is None else log_mass[block]
            phi[block], found, before = rows.update(c, tile, own, phi[block], v, partner, mass)
            columns = torch.logaddexp(columns, found)
            if error is not None and before is not None and mass is not None:
                error += (before.exp() - mass.exp()).abs().sum()
        if self.scores.group is not None:
            self.scores.group.log_sum_(columns)
            if error is not None:
                self.scores.group.sum_(error)
        return phi, columns, error

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the other axes, carried through the plan (rows.push)."""
        outs = [torch.zeros_like(potential) for potential in potentials]
        for block, tile in self.scores.tiles():
            target = None if into is None else into[block]
            found = self._rows(block, tile, potentials, weights, target)
            outs[0][block] = found[0]
            for out, part in zip(outs[1:], found[1:], strict=True):
                out += part
        if self.scores.group is not None:
            outs[1:] = self.scores.group.sum_(torch.stack(outs[1:]))
        return outs

    def _rows(
        self,
        block: slice,
        tile: Tensor,
        potentials: Vectors,
        weights: Weights,
        into: Tensor | None,
    ) -> Vectors:
        there = [potentials[0][block], *potentials[1:]]
        mine = [None if weights[0] is None else weights[0][block], *weights[1:]]
        return rows.push(self.c, tile, self.scores.own[block], there, mine, into, self.c)

    def gradient(self, terms: Sequence[Term]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, in tiles."""
        for block, tile in self.scores.tiles():
            total = torch.zeros_like(tile)
            for potentials, weights in terms:
                self._rows(block, tile, potentials, weights, total)
            yield block, total


def log_scaling(log_mass: Tensor, log_sum: Tensor) -> Tensor:
    """Log p − log Σ, and −∞ without mass."""
    return torch.where(log_mass > -torch.inf, log_mass - log_sum, -torch.inf)
