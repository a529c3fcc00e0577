"""Forms: what a plan's kernel is, and how its rows are summed.

A plan of A axes is P = exp(Σ potentials) · K, known by its potentials (log-scalings), one float64
vector per axis; the solver does the rest. Pairs and linear triplets are one form: their rows are
softmaxes, of the positives and, for triplets, of the negatives (rows.py).

Of several processes each has the rows of its own anchors: potentials and weights of the first axis
are those of its own rows, of the other axes those of all references.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple.ot import native, rows
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores

Updated = tuple[Tensor, Tensor, Tensor | None]
"""Of some rows: φ, the logarithms of an axis' columns, and of the row masses before φ was set."""


class Term(NamedTuple):
    """A part of a gradient: that of Σ w · marginals with respect to s, at these potentials."""

    potentials: Vectors
    weights: Weights

    def add_to(self, form: Any, block: slice, part: Any, into: Tensor) -> None:
        """Some rows of ∂/∂s."""
        form.push_rows(block, part, *self.of_rows(block), into)

    def of_rows(self, block: slice) -> tuple[Vectors, Weights]:
        """Potentials and weights, of the first axis those of some rows."""
        first = self.weights[0]
        mine = [None if first is None else first[block], *self.weights[1:]]
        return [self.potentials[0][block], *self.potentials[1:]], mine


@dataclass
class Forces:
    """∂L/∂s as far as kernels do not have it: a matrix, or terms of it where there is no room."""

    scores: Scores
    values: Tensor | None = None
    terms: list[Any] = field(default_factory=list)  # with an ``add_to`` like that of a ``Term``

    def matrix(self) -> Tensor | None:
        """The N×M matrix that ``push`` adds to; None where terms are kept instead."""
        s = self.scores
        if s.keep and self.values is None:
            self.values = native.empty_matrix(s.anchors, *s.shape, dtype=s.dtype).zero_()
        return self.values

    def push(self, form: Form, potentials: Vectors, weights: Weights) -> Vectors:
        """``form.push``, and its ∂/∂s."""
        into = self.matrix()
        if into is None:
            self.terms.append(Term(potentials, weights))
        return form.push(potentials, weights, into)


@dataclass
class Form(ABC):
    """A kernel K whose rows are independent: what the solver asks for is added up over them."""

    scores: Scores

    @abstractmethod
    def parts(self) -> Iterator[tuple[slice, Any]]:
        """Some rows at a time, with what the kernel needs to know of them."""

    @abstractmethod
    def update(
        self, block: slice, part: Any, potentials: Vectors, log_mass: Tensor | None
    ) -> Updated:
        """Set φ, where masses are given, and sum the columns of positives; else of negatives."""

    @abstractmethod
    def push_rows(
        self, block: slice, part: Any, potentials: Vectors, weights: Weights, into: Tensor | None
    ) -> Vectors:
        """``push`` of some rows, whose potentials, weights and forces these are."""

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Set one potential after the other so that its marginal is right (mathematics §2).

        Anchors and positives take one pass over the rows, negatives another. With ``watch`` also
        the L1 error of the first marginal before the sweep.
        """
        after = [potentials[0].clone(), *potentials[1:]]
        error = after[0].new_zeros(()) if watch else None
        for axis in range(1, len(after)):
            columns = torch.full_like(after[axis], -torch.inf)
            for block, part in self.parts():
                mass = log_masses[0][block] if axis == 1 else None
                there = [after[0][block], *after[1:]]
                after[0][block], found, before = self.update(block, part, there, mass)
                columns = torch.logaddexp(columns, found)
                if error is not None and before is not None and mass is not None:
                    error += (before.exp() - mass.exp()).abs().sum()
            if self.scores.group is not None:
                self.scores.group.log_sum_(columns)
            after[axis] = log_scaling(log_masses[axis], columns)
        return after, None if error is None else self.scores.shared(error)

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the *other* axes, carried through the plan.

        With ``into``, (N, M), ∂/∂s of Σ w · marginals is added to it.
        """
        term = Term(potentials, weights)
        outs = [torch.zeros_like(potential) for potential in potentials]
        for block, part in self.parts():
            target = None if into is None else into[block]
            outs[0][block], *found = self.push_rows(block, part, *term.of_rows(block), target)
            for out, more in zip(outs[1:], found, strict=True):
                out += more
        return [outs[0], *self.scores.shared(torch.stack(outs[1:]))]

    def gradient(self, terms: Sequence[Any]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, in tiles that the next one overwrites."""
        scores, m = self.scores, self.scores.shape[1]
        for block, part in self.parts():
            total = scores.anchors.new_zeros(block.stop - block.start, m, dtype=scores.dtype)
            for term in terms:
                term.add_to(self, block, part, total)
            yield block, total


@dataclass
class Linear(Form):
    """K_ij = exp(c s_ij), two axes, or K_ijk = exp(c s_ij − c s_ik), j ≠ k, three; never own_i."""

    sharpness: float | Tensor  # |c|
    axes: int
    sign: int = 1  # of c; −1 for a pair plan that repels

    @property
    def c(self) -> float | Tensor:
        """The factor of s."""
        return self.sharpness if self.sign > 0 else -self.sharpness

    def parts(self) -> Iterator[tuple[slice, Tensor]]:
        """Tiles of s."""
        return self.scores.tiles()

    def update(
        self, block: slice, part: Tensor, potentials: Vectors, log_mass: Tensor | None
    ) -> Updated:
        """rows.update; for marginal 3 with −c, and f and g exchanged."""
        c, own = self.c, self.scores.own[block]
        if log_mass is None:
            c, potentials = -c, [potentials[axis] for axis in (0, 2, 1)]
        return rows.update(c, part, own, potentials, log_mass)

    def push_rows(
        self, block: slice, part: Tensor, potentials: Vectors, weights: Weights, into: Tensor | None
    ) -> Vectors:
        """rows.push."""
        return rows.push(self.c, part, self.scores.own[block], potentials, weights, into)


def log_scaling(log_mass: Tensor, log_sum: Tensor) -> Tensor:
    """Log p − log Σ, and −∞ without mass."""
    return torch.where(log_mass > -torch.inf, log_mass - log_sum, -torch.inf)
