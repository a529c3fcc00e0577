"""Triplets with a hinge for ψ, exactly and by sorting (mathematics §9).

In units of ε the margin of a triplet is t = x_ij − x_ik, x = c·s, and its kernel

    K = e^{δt} · min(1, e^{t − γ}),

γ the margin of the hinge and δ its slope beyond. All that is needed is one trilinear form and its
derivatives, T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk. At the kink, t = γ within a few roundings of s, a
triplet counts as not satisfied. Rows are sorted and summed in C (c/hinge.h), in doubles or where
these have no room with numbers of any size; without the compiled module a hinge is as any ψ.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.ot import native
from tricouple.ot.any_shaping import AnyShaping, parts_of
from tricouple.ot.forms import Form, Updated, log_scaling
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores, Tiles
from tricouple.shaping import Hinge

# Roundings of s within which t is at the margin.
_ROUNDINGS = 4.25


class Rows:
    """Sorted rows of some anchors, in C; see c/hinge.h."""

    def __init__(
        self,
        s: Tensor,
        own: Tensor,
        factor: float | Tensor,
        hinge: Hinge,
        work: Tensor,
    ) -> None:
        """Sort; x takes the place of s; ``work`` is scratch."""
        (n, m), threads = s.shape, native.threads(4 * s.numel())
        # Each row without its own entry: c·s less its median, and the columns that they came from;
        # the first negative that each does not satisfy; twice the largest |x|.
        self.x, self.own, self.factor, self.hinge = s, own, float(factor), hinge
        self.column, self.low = (native.empty_matrix(s, n, m, dtype=torch.int32) for _ in range(2))
        self.width = s.new_empty(n, dtype=torch.float64)
        self.work = work
        rounding = _ROUNDINGS * torch.finfo(s.dtype).eps
        numbers = n, m, threads, hinge.margin, self.factor, rounding
        arrays = s, own, self.column, self.low, self.width, self.work
        native.call("hinge_sort", s, *numbers, *arrays)

    def update(self, potentials: Vectors, log_mass: Tensor | None) -> Updated:
        """``Form.update``: marginals 1 and 2 with ``log_mass``, 3 without; g is a guess there."""
        phi, columns, none = potentials[0], torch.empty_like(potentials[1]), (None, None, None)
        if log_mass is None:
            self._pass(True, potentials, none, None, None, None, columns, None)
            return phi, columns, None
        sums = torch.empty_like(phi)
        self._pass(True, potentials, none, log_mass, sums, columns, None, None)
        return log_scaling(log_mass, sums), columns, phi + sums

    def push(self, potentials: Vectors, axis: int, weights: Tensor, into: Tensor | None) -> Vectors:
        """Weights on an axis, carried to the others, whose own entry is not filled; and forces."""
        outs = [torch.empty_like(potential) for potential in potentials]
        given = [weights if k == axis else None for k in range(3)]
        wanted = [None if k == axis else out for k, out in enumerate(outs)]
        self._pass(False, potentials, given, None, *wanted, into)
        return outs

    def costs(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_jk plus_j minus_k ψ(x_j − x_k)`` of each row, and its derivative by x."""
        (n, m), threads = self.x.shape, native.threads(self.x.numel())
        sums, gradient = plus.new_empty(n), torch.empty_like(self.x)
        numbers = n, m, threads, self.hinge.margin, self.hinge.slope
        arrays = self.x, self.column, self.low, self.own, plus.contiguous(), minus.contiguous()
        native.call("hinge_costs", self.x, *numbers, *arrays, sums, gradient, self.work)
        return sums, gradient

    def _pass(
        self, logs: bool, potentials: Vectors, weights: Weights, *ends: Tensor | None
    ) -> None:
        """A pass over the rows; ends: log_mass, sums, to_f, to_g (c/hinge.h) and forces."""
        (n, m), threads = self.x.shape, native.threads(self.x.numel())
        numbers = n, m, int(logs), threads, self.hinge.margin, self.hinge.slope, self.factor
        arrays = self.x, self.column, self.low, self.own, self.width
        vectors = [x for pair in zip(potentials, weights, strict=True) for x in pair]
        native.call("hinge_rows", self.x, *numbers, *arrays, *vectors, *ends, self.work)


def hinge_form(
    scores: Scores, factor: float | Tensor, hinge: Hinge, budget: float
) -> HingeForm | AnyShaping:
    """The form of ``Hinge.over(ε)``: sorted rows in C, elsewhere as any ψ, in O(N³)."""
    if native.in_c(scores.anchors):
        return HingeForm(scores, factor, hinge)
    rounding = _ROUNDINGS * torch.finfo(scores.dtype).eps

    def psi(t: Tensor) -> Tensor:  # at the kink not satisfied
        return torch.clamp(hinge.margin + factor * rounding - t, min=0.0) - hinge.slope * t

    return AnyShaping(scores, factor, psi, 1.0, budget)


@dataclass
class HingeForm(Form):
    """K_ijk = e^{δt} min(1, e^{t − γ}), t = c (s_ij − s_ik), for j ≠ k, neither of them own_i."""

    factor: float | Tensor  # c = 1/(τε)
    hinge: Hinge  # ψ/ε as a function of t/ε
    _stored: list[tuple[slice, Rows]] = field(default_factory=list)

    def update(
        self, block: slice, part: Rows, potentials: Vectors, log_mass: Tensor | None
    ) -> Updated:
        """By sums over sorted rows."""
        return part.update(potentials, log_mass)

    def push_rows(
        self, block: slice, part: Rows, potentials: Vectors, weights: Weights, into: Tensor | None
    ) -> Vectors:
        """T is linear in each of its arguments: one evaluation for each axis with weights."""
        outs = [torch.zeros_like(potential) for potential in potentials]
        for axis, given in enumerate(weights):
            if given is not None:
                found = part.push(potentials, axis, given, into)
                for other in {0, 1, 2} - {axis}:
                    outs[other] += found[other]
        return outs

    def cost_rows(self, part: Rows, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """As in ``AnyShaping``."""
        sums, gradient = part.costs(plus, minus)
        return sums, gradient * self.factor

    def parts(self) -> Iterator[tuple[slice, Rows]]:
        """Sorted rows: stored, or sorted again at each use."""
        if self.scores.keep or self.scores.references is None:
            if not self._stored:
                s = self.scores.taken(self.scores.shape[0], self.scores.dtype)  # x takes its place
                self._stored = list(self._sorted([(slice(0, len(s)), s)]))
            return iter(self._stored)
        return self._sorted(self.scores.tiles())

    def _sorted(self, tiles: Tiles) -> Iterator[tuple[slice, Rows]]:
        """A tile of rows at a time."""
        like, m, height = self.scores.anchors, self.scores.shape[1], self.scores.height
        # Scratch of a pass of any rows; fresh memory would cost a page fault every 4 KiB.
        threads = native.threads(4 * height * m)
        size = 6 * (1 + threads) * m + 27 * threads * (m + 32)
        work = like.new_empty(size, dtype=torch.float64)
        for block, s in parts_of(tiles, height):
            yield block, Rows(s, self.scores.own[block], self.factor, self.hinge, work)
