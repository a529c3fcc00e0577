"""The sums of ``hinge`` in compiled code: scores sorted once, scalings in float64, all threads.

Everything that sweeps and gradients need is one trilinear form of three vectors,

    T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk,

and its derivatives with respect to them and to the scores (``hinge_form`` in ``_hinge.h``).
"""

from __future__ import annotations

import collections
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import Loan, Storage
from tricouple.numeric import Patch, ScoreGradient, row_blocks
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import GradientSink, History, Masses, Solution
from tricouple.ot.sweeps.hinge import HingeSink, HingeTriplet, Term, Weights
from tricouple.ot.sweeps.kernels import Similarities
from tricouple.ot.sweeps.threads import in_threads
from tricouple.ot.sweeps.triplet_log import LogTripletPlan
from tricouple.shaping import Hinge

# Columns that the indices of sorted scores can count.
COLUMNS = 2**16 - 4

# The largest distance of two scores of an anchor whose exponentials a dtype holds.
_WIDEST = {torch.float32: 170.0, torch.float64: 1200.0}

# Logarithms of the products of scalings and kernels that float64 holds, none of them underflowing.
_HELD = 650.0

# What j ≠ k excludes, relative to the marginals, that may be subtracted in float64.
_EXCLUDED = {torch.float32: 1e8, torch.float64: 1e4}

# Entries of a tile, which several float64 matrices accompany.
_TILE = 1 << 16

# Entries below which a second thread does not pay.
_SMALL = 1 << 15


class SortedTile(NamedTuple):
    """Sorted scores of some anchors (see ``_hinge.h``), each of shape (rows, M)."""

    rows: slice
    x: Tensor
    place: Tensor
    low: Tensor
    high: Tensor

    def part(self, rows: slice) -> SortedTile:
        """Some of its rows."""
        first = self.rows.start
        anchors = slice(first + rows.start, first + rows.stop)
        return SortedTile(anchors, *(array[rows] for array in self[1:]))


class Derivatives(NamedTuple):
    """Of the trilinear form, with respect to A, f and g."""

    anchors: Tensor
    positives: Tensor
    negatives: Tensor


class NativeHinge(HingeTriplet):
    """Entropic three-marginal transport with a hinge, in float64 scalings.

    Args:
        source: s, shape (N, M), in float64 on the CPU.
        factor: c = 1/(τε), so that x = c·s.
        hinge: ψ/ε as a function of t/ε.
        within: Anchors are the references: i, j, k distinct. Otherwise only j ≠ k.
        storage: Whether sorted scores are stored, or sorted again a tile at a time in every pass.
        dtype: Of the scores, less the middle of each row, and of the gradient.
        shard: Processes, each of which has its own anchors.
    """

    def __init__(
        self,
        source: Similarities,
        factor: float,
        hinge: Hinge,
        *,
        within: bool,
        storage: Storage,
        dtype: torch.dtype,
        shard: Shard | None = None,
    ) -> None:
        entries = min(storage.tile_entries, _TILE)
        super().__init__(source, factor, hinge, within=within, tile_entries=entries, shard=shard)
        self.like = source.like.new_empty(0, dtype=dtype)
        self.storage = storage
        self._widest = source.like.new_zeros(1, dtype=torch.float64)
        self._stored: tuple[SortedTile, list[Loan]] | None = None
        self._apart = False  # whether k = j is never added, or left out by a difference

    def release(self) -> None:
        """Give up the sorted scores until they are needed again."""
        self._stored = None

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None where float64 cannot hold the scalings, or scores lack digits."""
        if self.hinge.margin > _HELD:
            return None
        collections.deque(self.tiles(), maxlen=0)  # sorted once, it is known how wide they are
        if self.shard is not None:
            self.shard.max_(self._widest)
        if not float(self._widest) <= _WIDEST[self.like.dtype]:
            return None
        self._apart = False
        solution = super().solve(masses, n_iters, tol)
        return super().solve(masses, n_iters, tol) if solution is None and self._apart else solution

    def trusts(self, masses: Masses, plans: Sequence[LogTripletPlan]) -> bool:
        """Whether no product of scalings and kernel came near underflow or overflow.

        And what j ≠ k excludes, e^{−γ} a_i b_j h_j, was not too much to be subtracted; else it is
        to be kept apart (mathematics §2, trust).
        """
        reach = (1 + self.hinge.slope) * float(self._widest) + self.hinge.margin
        per_a, per_b, per_h = masses.inverses
        largest, excluded = [], []
        for before, plan in pairwise(plans):
            logs = torch.cat([plan.phi, plan.f, plan.g])
            largest.append(logs.masked_fill_(logs == -torch.inf, 0.0).abs_().max())  # no mass: 0
            a = plan.phi.exp()
            heaviest, total = (a * per_a).max(), a.sum()
            for f, g in ((before.f, before.g), (plan.f, before.g), (plan.f, plan.g)):
                both = torch.exp(f + g - self.hinge.margin)
                share = torch.maximum(both * per_b, both * per_h).max()
                excluded.append(torch.maximum(heaviest * both.sum(), total * share))
        held = bool(torch.stack(largest).max() + reach <= _HELD)
        if self._apart:
            return held
        limit = _EXCLUDED[self.like.dtype]
        held = held and bool(torch.stack(excluded).max() <= limit)
        self._apart = not self.agreed(held)
        return held

    def history(self, masses: Masses, plans: Sequence[LogTripletPlan]) -> History:
        """With room for a gradient, one that fills it on its way."""
        if self.storage.streamed:
            return super().history(masses, plans)
        return NativeHistory(self, masses, plans)

    def scale_anchors(self, log_mass: Tensor, f: Tensor, g: Tensor) -> tuple[Tensor, ...]:
        """``log Σ_jk e^{f+g} K`` of each anchor, the φ that it asks for, ``log Σ_ik e^{φ+g} K``."""
        a = torch.zeros_like(log_mass)
        found = self.form(a, f.exp(), g.exp(), mass=log_mass.exp(), positives=True)
        sums, a = self.total(torch.stack([found.anchors, a]))
        return sums.log(), a.log(), found.positives.log()

    def negative_sums(self, phi: Tensor, f: Tensor) -> Tensor:
        """``log Σ_ij e^{φ+f} K`` of each negative."""
        b = f.exp()
        return self.form(phi.exp(), b, torch.zeros_like(b), negatives=True).negatives.log()

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> dict[int, Tensor]:
        """Products with the pair marginals; the gradient waits until all of it is asked for."""
        found = self.form(*_weighted(plan, axis, weights), positives=axis != 1, negatives=axis != 2)
        if isinstance(sink, HingeSink):
            sink.add(plan, axis, weights)
        scalings = plan.phi.exp(), plan.f.exp(), plan.g.exp()
        received = [found[0] if axis == 0 else self.total(found[0]), *found[1:]]
        return {other: scalings[other] * received[other] for other in range(3) if other != axis}

    def forces(self, terms: Sequence[Term]) -> ScoreGradient:
        """``∂/∂x Σ weights · marginal_axis`` of the terms' plans, summed, a tile at a time."""
        forms = [_weighted(*term) for term in terms]
        m = self.source.shape[1]
        for tile in self.tiles():
            for rows in row_blocks(len(tile.x), m, self.tile_entries):
                part = tile.part(rows)
                gradient = torch.zeros_like(part.x)
                for a, f, g in forms:
                    self._add(part, a, f, g, gradient=gradient)
                yield Patch(part.rows, gradient)

    def costs(self, weights: Weights) -> Tensor:
        """``Σ_ijk plus_ij minus_ik ψ(x_ij − x_ik)/ε``."""
        total = self.source.like.new_zeros(())  # a list of sums between tiles would spoil the heap
        for tile in self.tiles():
            for rows in row_blocks(len(tile.x), self.source.shape[1], self.tile_entries):
                total += self._costs(tile.part(rows), weights).sum()
        return self.total(total)

    def with_costs(
        self, gradient: ScoreGradient, weights: Weights, scale: Tensor
    ) -> Iterator[Patch]:
        """A gradient and that of ``scale · costs``: they nearly cancel, so they are added first."""
        for patch in gradient:
            for tile in self.tiles([patch.rows]):
                for rows in row_blocks(len(tile.x), self.source.shape[1], self.tile_entries):
                    self._costs(tile.part(rows), weights, float(scale), patch.values[rows])
            yield patch

    def _costs(
        self, tile: SortedTile, weights: Weights, scale: float = 0.0, gradient: Tensor | None = None
    ) -> Tensor:
        plus, minus = (part.to(tile.x.dtype) for part in weights(tile.rows))
        m, shares = plus.shape[1], _shares(plus)
        costs = plus.new_empty(len(plus), dtype=torch.float64)
        work = costs.new_empty(len(shares), 6 * m + 8)

        def share(thread: int) -> None:
            rows = shares[thread]
            force = gradient if gradient is None else gradient[rows]
            arrays = plus[rows], minus[rows], costs[rows], force, work[thread]
            self._call(native.compiled.hinge_costs, tile.part(rows), *arrays, numbers=(scale,))

        in_threads(share, range(len(shares)))
        return costs

    def form(
        self,
        a: Tensor,
        f: Tensor,
        g: Tensor,
        *,
        positives: bool = False,
        negatives: bool = False,
        other: Tensor | None = None,
        mass: Tensor | None = None,
        sums: Tensor | None = None,
        gradient: Tensor | None = None,
    ) -> Derivatives:
        """Derivatives of T(a, f, g), by its anchors and by what is asked for.

        Args:
            a: Shape (N,); filled here if masses are given.
            f: Shape (M,).
            g: Shape (M,).
            positives: Whether the derivative by f is wanted.
            negatives: Whether the derivative by g is wanted.
            other: e of ``hinge_form``.
            mass: Imposed masses of the anchors, or with e their inverses.
            sums: With e, what the anchors received before.
            gradient: To which the derivative by the scores is added, shape (N, M), of this
                process's anchors.
        """
        sums = torch.zeros_like(a) if sums is None else sums
        columns = f.new_zeros(2, torch.get_num_threads(), len(f))
        wanted = [columns[0] if positives else None, columns[1] if negatives else None]
        for tile in self.tiles():
            rows = None if gradient is None else gradient[self._place(tile.rows)]
            self._add(tile, a, f, g, other, mass, sums, wanted, rows)
        to_f, to_g = self.total(columns.sum(1))
        return Derivatives(sums, to_f, to_g)

    def _add(
        self,
        tile: SortedTile,
        a: Tensor,
        f: Tensor,
        g: Tensor,
        other: Tensor | None = None,
        mass: Tensor | None = None,
        sums: Tensor | None = None,
        columns: Sequence[Tensor | None] = (None, None),
        gradient: Tensor | None = None,
    ) -> None:
        """One tile of ``form``, its rows shared by the threads; columns have a row for each."""
        shares = _shares(tile.x)
        work = f.new_empty(len(shares), 15 * (len(f) + 31))

        def share(thread: int) -> None:
            part = tile.part(shares[thread])
            mine = [array if array is None else array[part.rows] for array in (mass, sums)]
            ends = [column if column is None else column[thread] for column in columns]
            ends.append(gradient if gradient is None else gradient[shares[thread]])
            arrays = (a[part.rows], f, g, other, *mine, *ends, work[thread])
            self._call(native.compiled.hinge_form, part, *arrays, flags=(int(self._apart),))

        in_threads(share, range(len(shares)))

    def _call(
        self,
        function: Any,
        tile: SortedTile,
        *arrays: Tensor | None,
        flags: tuple[int, ...] = (),
        numbers: tuple[float, ...] = (),
    ) -> None:
        own = tile.rows.start if self.within else -1
        numbers = (*tile.x.shape, own, *flags, self.hinge.margin, self.hinge.slope, *numbers)
        places = (0 if array is None else native.address(array) for array in (*tile[1:], *arrays))
        function(tile.x.element_size(), *numbers, *places)

    def tiles(self, blocks: Sequence[slice] | None = None) -> Iterator[SortedTile]:
        """All anchors at once if they are stored, else some at a time; or the blocks asked for."""
        if self.storage.streamed or self.anchors.start == self.anchors.stop:
            yield from self._sorted(blocks)
            return
        if self._stored is None:
            shape = self.anchors.stop - self.anchors.start, self.source.shape[1]
            loans = [Loan(1, self.like, *shape), Loan(3, _indices(self.like, 0), *shape)]
            arrays = [array for loan in loans for array in loan.matrices]
            collections.deque(self._sorted(None, arrays), maxlen=0)
            self._stored = SortedTile(self.anchors, *arrays), loans
        tile = self._stored[0]
        yield from [tile] if blocks is None else map(tile.part, map(self._place, blocks))

    def _place(self, rows: slice) -> slice:
        """Where some anchors are among this process's."""
        return slice(rows.start - self.anchors.start, rows.stop - self.anchors.start)

    def _sorted(
        self, blocks: Sequence[slice] | None, arrays: Sequence[Tensor] | None = None
    ) -> Iterator[SortedTile]:
        """Sort, into arrays of all anchors or into a tile that the next one overwrites."""
        m = self.source.shape[1]
        blocks = self.blocks(self.tile_entries) if blocks is None else blocks
        height = max((block.stop - block.start for block in blocks), default=0)
        scores, kind = self.source.like.new_empty(height, m), self.like
        room = [] if arrays else [kind.new_empty(height, m), *_indices(kind, height, m)]
        for block in blocks:
            n_rows = block.stop - block.start
            place = self._place(block) if arrays else slice(0, n_rows)
            own = [array[place] for array in arrays or room]
            tile = SortedTile(block, *own)
            self._sort(self.source.tile(block, scores[:n_rows]), tile)
            yield tile

    def _sort(self, similarity: Tensor, tile: SortedTile) -> None:
        m, shares = similarity.shape[1], _shares(similarity)
        work = similarity.new_empty(len(shares), 4 * m + 16, dtype=torch.float64)
        widest = self._widest.repeat(len(shares))

        def share(thread: int) -> None:
            part = tile.part(shares[thread])
            own = part.rows.start if self.within else -1
            arrays = (similarity[shares[thread]], *part[1:], widest[thread:], work[thread])
            numbers = (len(part.x), m, own, self.hinge.margin, self.factor)
            native.compiled.hinge_sort(tile.x.element_size(), *numbers, *native.addresses(*arrays))

        in_threads(share, range(len(shares)))
        self._widest = widest.amax(0, keepdim=True)


def _indices(like: Tensor, *shape: int) -> Tensor:
    """Room for three indices of two bytes."""
    return like.new_empty(3, *shape, dtype=torch.int16)


def _shares(matrix: Tensor) -> list[slice]:
    """Rows for each thread."""
    n_rows = len(matrix)
    number = min(torch.get_num_threads(), n_rows) if matrix.numel() > _SMALL else 1
    ends = [n_rows * thread // number for thread in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _weighted(plan: LogTripletPlan, axis: int, weights: Tensor) -> list[Tensor]:
    """The scalings of a plan, those of one axis with weights."""
    scalings = [plan.phi.exp(), plan.f.exp(), plan.g.exp()]
    scalings[axis] = scalings[axis] * weights
    return scalings


@dataclass(frozen=True)
class NativeHistory:
    """Every update of the sweeps; the adjoint adds to the gradient as it goes."""

    coupling: NativeHinge
    masses: Masses
    plans: Sequence[LogTripletPlan]

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards, two passes each (see ``Stages.adjoint``).

        The update of a sends through the same sums as that of b before it: they share a pass.
        """
        coupling, (per_a, per_b, per_h) = self.coupling, self.masses.inverses
        grad_a, grad_b, grad_h = cotangents
        n_rows, m = coupling.anchors.stop - coupling.anchors.start, coupling.source.shape[1]
        loan = Loan(1, coupling.like, n_rows, m)
        gradient = loan.matrices[0].zero_()
        scalings = [tuple(map(torch.exp, (plan.phi, plan.f, plan.g))) for plan in self.plans]
        for t in reversed(range(1, len(scalings))):
            (a, b, h), (_, b0, h0) = scalings[t], scalings[t - 1]
            # Marginal 3 set h: through P²³ to b and through P¹³ to a.
            found = coupling.form(a, b, h * grad_h * -per_h, positives=True, gradient=gradient)
            grad_a, grad_b = grad_a + a * found.anchors, grad_b + b * found.positives
            # Marginal 2 set b: through P²³ to h₀ and through P¹² to a; then marginal 1 set a:
            # through P¹² to b₀ and through P¹³ to h₀.
            more = t > 1  # nothing depends on the start
            found = coupling.form(
                a, b * grad_b * -per_b, h0, other=b0, mass=per_a, sums=grad_a,
                positives=more, negatives=more, gradient=gradient,
            )  # fmt: skip
            grad_a = torch.zeros_like(grad_a)
            grad_b, grad_h = b0 * found.positives, h0 * found.negatives
        if n_rows:
            yield Patch(coupling.anchors, gradient)
