"""Triplets with a hinge for ψ, exactly and by sorting (mathematics §9).

In units of ε the margin of a triplet is t = x_ij − x_ik, x = c·s, and its kernel

    K = e^{δt} · min(1, e^{t − γ}),

γ the margin of the hinge and δ its slope beyond. With the scores of an anchor in ascending order
the negatives that a positive satisfies, t > γ, come first: a sum over negatives is a sum over
those, whose kernel is e^{δt}, and one over the others but the positive itself, whose kernel is
e^{(1+δ)t − γ}. Both are products of a number of j and running sums over k: O(M) for an anchor once
it is sorted. A sum over positives is the same with the signs of the scores, and so their order,
reversed. Everything that sweeps and gradients need is one trilinear form and its derivatives,

    T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk.

At the kink, t = γ within a few roundings of s, a triplet counts as not satisfied.

Rows are sorted and summed in C (c/hinge.h), in doubles where a row fits them and otherwise with
numbers of any size; on devices and without the compiled module in PyTorch (hinge_torch.py).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tricouple.numeric import on_host
from tricouple.ot import native
from tricouple.ot.any_shaping import PairWeights
from tricouple.ot.forms import Term, log_scaling
from tricouple.ot.hinge_torch import SortedRows
from tricouple.ot.rows import Vectors, Weights
from tricouple.ot.scores import Scores
from tricouple.shaping import Hinge

# Roundings of s within which t is at the margin.
_ROUNDINGS = 4.25
# Entries of rows that PyTorch sorts and sums together, with about 20 matrices beside them.
_BLOCK = 1 << 16
_DEVICE_BLOCK = 1 << 22

_Given = Mapping[str, Tensor | None]


@dataclass(frozen=True)
class CompiledRows:
    """Sorted rows of some anchors, in C; see c/hinge.h."""

    x: Tensor  # c·s less the median of each row, sorted, without the own entry, shape (R, M)
    column: Tensor  # that each came from, int32, shape (R, M)
    low: Tensor  # the first negative that each does not satisfy, int32, shape (R, M)
    width: Tensor  # twice the largest |x| of a row, shape (R,)
    own: Tensor  # shape (R,)
    factor: float  # c
    hinge: Hinge  # ψ/ε as a function of t/ε
    work: Tensor  # of a pass; fresh memory would cost a page fault every 4 KiB

    @classmethod
    def of(
        cls, s: Tensor, own: Tensor, factor: float | Tensor, hinge: Hinge, rounding: float
    ) -> CompiledRows:
        """Sort; x takes the place of s. For ``rounding`` see SortedRows."""
        (n, m), threads, factor = s.shape, native.threads(4 * s.numel()), float(factor)
        column, low = (native.empty_matrix(s, n, m, dtype=torch.int32) for _ in range(2))
        width = s.new_empty(n, dtype=torch.float64)
        work = width.new_empty(6 * (1 + threads) * m + 27 * threads * (m + 32))
        arrays = s, own, column, low, width, work
        native.call("hinge_sort", s, n, m, threads, hinge.margin, factor, rounding, *arrays)
        return cls(s, column, low, width, own, factor, hinge, work)

    def positives(self, log_mass: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        """``log Σ_jk e^{f+g} K`` of rows; ``log Σ_ik e^{φ+g} K`` with the φ that it asks for."""
        sums, columns = torch.empty_like(log_mass), torch.empty_like(f)
        self._call(f, g, {"log_mass": log_mass, "sums": sums, "to_f": columns}, logs=True)
        return sums, columns

    def negatives(self, phi: Tensor, f: Tensor, g: Tensor) -> Tensor:
        """``log Σ_ij e^{φ+f} K`` of each negative; g says about what it will be."""
        columns = torch.empty_like(f)
        self._call(f, g, {"phi": phi, "to_g": columns}, logs=True)
        return columns

    def push(self, potentials: Vectors, axis: int, weights: Tensor, into: Tensor | None) -> Vectors:
        """Weights on an axis, carried to the others, whose own entry is not filled; and forces."""
        phi, f, g = potentials
        outs = [torch.empty_like(potential) for potential in potentials]
        given = {("weight", "wf", "wg")[axis]: weights, "phi": phi, "into": into}
        wanted = dict(zip(("sums", "to_f", "to_g"), outs, strict=True))
        del wanted[("sums", "to_f", "to_g")[axis]]
        self._call(f, g, {**given, **wanted})
        return outs

    def costs(self, plus: Tensor, minus: Tensor) -> tuple[Tensor, Tensor]:
        """``Σ_jk plus_j minus_k ψ(x_j − x_k)`` of each row, and its derivative by x."""
        (n, m), threads = self.x.shape, native.threads(self.x.numel())
        sums, gradient = plus.new_empty(n), torch.empty_like(self.x)
        numbers = n, m, threads, self.hinge.margin, self.hinge.slope
        arrays = self.x, self.column, self.low, self.own, plus.contiguous(), minus.contiguous()
        native.call("hinge_costs", self.x, *numbers, *arrays, sums, gradient, self.work)
        return sums, gradient

    def _call(
        self, f: Tensor, g: Tensor, given: Mapping[str, Tensor | None], *, logs: bool = False
    ) -> None:
        """A pass over the rows; see hinge_form in c/hinge.h for what may be given."""
        (n, m), threads = self.x.shape, native.threads(self.x.numel())
        numbers = n, m, int(logs), threads, self.hinge.margin, self.hinge.slope, self.factor
        arrays = self.x, self.column, self.low, self.own, self.width
        vectors = given.get("phi"), given.get("weight"), f, given.get("wf"), g, given.get("wg")
        ends = (given.get(name) for name in ("log_mass", "sums", "to_f", "to_g", "into"))
        native.call("hinge_rows", self.x, *numbers, *arrays, *vectors, *ends, self.work)


Rows = CompiledRows | SortedRows


@dataclass
class HingeForm:
    """K_ijk = e^{δt} min(1, e^{t − γ}), t = c (s_ij − s_ik), for j ≠ k, neither of them own_i."""

    scores: Scores
    factor: float | Tensor  # c = 1/(τε)
    hinge: Hinge  # ψ/ε as a function of t/ε
    _stored: list[tuple[slice, Rows]] = field(default_factory=list)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        n, m = self.scores.shape
        return (n, m, m)

    def sweep(
        self, potentials: Vectors, log_masses: Vectors, *, watch: bool = False
    ) -> tuple[Vectors, Tensor | None]:
        """Anchors and positives in one pass over the rows, then negatives in another (§9)."""
        before, f, g = potentials
        group, sums = self.scores.group, torch.empty_like(before)
        columns = torch.full_like(f, -torch.inf)
        for block, rows in self._rows():  # marginals 1 and 2
            sums[block], found = rows.positives(log_masses[0][block], f, g)
            columns = torch.logaddexp(columns, found)
        if group is not None:
            group.log_sum_(columns)
        phi, f = log_scaling(log_masses[0], sums), log_scaling(log_masses[1], columns)
        columns = torch.full_like(g, -torch.inf)
        for block, rows in self._rows():  # marginal 3
            columns = torch.logaddexp(columns, rows.negatives(phi[block], f, g))
        if group is not None:
            group.log_sum_(columns)
        error = None
        if watch:
            error = ((before + sums).exp() - log_masses[0].exp()).abs().sum()
            error = error if group is None else group.sum_(error)
        return [phi, f, log_scaling(log_masses[2], columns)], error

    def push(self, potentials: Vectors, weights: Weights, into: Tensor | None = None) -> Vectors:
        """For each axis the weights of the other axes, carried through the plan."""
        outs = [torch.zeros_like(potential) for potential in potentials]
        for block, rows in self._rows():
            target = None if into is None else into[block]
            for axis, found in _pushed(block, rows, potentials, weights, target):
                for other in {0, 1, 2} - {axis}:
                    (outs[0][block] if other == 0 else outs[other]).add_(found[other])
        if self.scores.group is not None:
            outs[1:] = self.scores.group.sum_(torch.stack(outs[1:]))
        return outs

    def gradient(self, terms: Sequence[Term]) -> Iterator[tuple[slice, Tensor]]:
        """The sum of the terms, in tiles."""
        for block, rows in self._rows():
            total = torch.zeros_like(rows.x, dtype=self.scores.dtype)
            for potentials, weights in terms:
                for _ in _pushed(block, rows, potentials, weights, total):
                    pass
            yield block, total

    def costs(self, weights: PairWeights) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Σ_jk plus_ij minus_ik C_ijk/ε of each row, and its derivative with respect to s."""
        for block, rows in self._rows():
            sums, gradient = rows.costs(*weights(block))
            yield block, sums, (gradient * self.factor).to(self.scores.dtype)

    def _rows(self) -> Iterator[tuple[slice, Rows]]:
        """Sorted rows: stored, or sorted again at each use."""
        if not (self.scores.keep or self.scores.references is None):
            yield from self._sorted()
            return
        if not self._stored:
            self._stored = list(self._sorted())
            if self._stored:
                self.scores.__dict__.pop("matrix", None)  # x takes the place of s
        yield from self._stored

    def _sorted(self) -> Iterator[tuple[slice, Rows]]:
        """Rows of each tile of scores: in C all, else as many as are summed together."""
        rounding = _ROUNDINGS * torch.finfo(self.scores.dtype).eps
        for tile, scores in self.scores.tiles():
            kind = CompiledRows if native.in_c(scores) else SortedRows
            entries = _BLOCK if on_host(scores) else _DEVICE_BLOCK
            step = (
                len(scores) if native.in_c(scores) else max(1, entries // max(1, scores.shape[1]))
            )
            for number, s in enumerate(scores.split(step)):
                start = tile.start + number * step
                block = slice(start, start + len(s))
                yield block, kind.of(s, self.scores.own[block], self.factor, self.hinge, rounding)


def _pushed(
    block: slice, rows: Rows, potentials: Vectors, weights: Weights, into: Tensor | None
) -> Iterator[tuple[int, Vectors]]:
    """T is linear in each of its arguments: one evaluation for each axis with weights."""
    there = [potentials[0][block], *potentials[1:]]
    for axis, given in enumerate(weights):
        if given is not None:
            yield axis, rows.push(there, axis, given[block] if axis == 0 else given, into)
