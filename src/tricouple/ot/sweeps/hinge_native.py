"""The sums of ``hinge`` in compiled code: scores sorted once, scalings in float64, all threads.

Everything that sweeps and gradients need is one trilinear form of three vectors,

    T(A, f, g) = Σ_ijk A_i f_j g_k K_ijk,

and its derivatives with respect to them and to the scores (``hinge_form`` in ``_hinge.h``).
"""

from __future__ import annotations

import collections
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import Loan, Storage, empty_matrix
from tricouple.numeric import Patch, ScoreGradient, row_blocks
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Goal, GradientSink, History, Masses, Received, Solution
from tricouple.ot.sweeps.hinge import HingeTriplet, Weights
from tricouple.ot.sweeps.kernels import Similarities
from tricouple.ot.sweeps.triplet_log import LogTripletPlan, Term
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

# Entries of a pass, or of a sort, for which a thread pays.
_SHARE = 1 << 15


@dataclass(frozen=True)
class SortedTile:
    """Sorted scores of some anchors: x, place, low and high of ``_hinge.h``, each (rows, M)."""

    rows: slice
    arrays: Sequence[Tensor]

    def part(self, rows: slice) -> SortedTile:
        """Some of its rows."""
        first = self.rows.start
        anchors = slice(first + rows.start, first + rows.stop)
        return SortedTile(anchors, [array[rows] for array in self.arrays])

    @cached_property
    def shares(self) -> list[Share]:
        """What each thread has of a pass."""
        return [Share.of(self, rows) for rows in _shares(self.arrays[0])]


class Share(NamedTuple):
    """Some rows of a tile, as compiled code sees them."""

    first: int  # row
    anchor: int  # the same among all anchors
    shape: tuple[int, int]
    addresses: list[int]

    @classmethod
    def of(cls, tile: SortedTile, rows: slice) -> Share:
        """Those rows."""
        shape = rows.stop - rows.start, tile.arrays[0].shape[1]
        addresses = [_at(array, rows.start) for array in tile.arrays]
        return cls(rows.start, tile.rows.start + rows.start, shape, addresses)


class Three(NamedTuple):
    """Scalings e^φ, e^f and e^g, or a stack of them; derivatives with respect to A, f and g."""

    a: Tensor  # of the anchors
    b: Tensor  # of the positives
    h: Tensor  # of the negatives


class NativeHinge(HingeTriplet):
    """Entropic three-marginal transport with a hinge, in float64 scalings, on the CPU.

    Args:
        source: s, shape (N, M), on the CPU.
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
        within: bool,
        *,
        storage: Storage,
        dtype: torch.dtype,
        shard: Shard | None = None,
    ) -> None:
        entries = min(storage.tile_entries, _TILE)
        super().__init__(source, factor, hinge, within, tile_entries=entries, shard=shard)
        self.scores, self.storage = self.like.new_empty(0, dtype=dtype), storage
        self._widest = self.like.new_zeros(1)
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
        if not float(self._widest) <= _WIDEST[self.scores.dtype]:
            return None
        for self._apart in (False, True):
            sweeps = self._sweeps(masses, n_iters, tol)
            held, harmless = self._trusts(masses, sweeps)
            if self.agreed(held and (self._apart or harmless)):
                break
        else:
            return None
        plans = [
            LogTripletPlan(self, *logs) for logs in zip(*(s.log() for s in sweeps), strict=True)
        ]
        history: History = NativeHistory(self, masses, sweeps)
        if self.storage.streamed:  # without room for a gradient that is filled on the way
            history = super().history(masses, plans)
        last = plans[-1]
        potentials = torch.cat([last.phi, last.f, last.g])
        return Solution(self, potentials, lambda: last, history, len(plans) - 1)

    def _sweeps(self, masses: Masses, n_iters: int, tol: float | None) -> Three:
        """The scalings at the start and after every sweep, stacks of shape (sweeps + 1, …)."""
        mass_a, mass_b, mass_h = masses.values
        all_scalings = [Three(*map(torch.ones_like, masses.values))]
        goal, none = Goal(tol, masses, self.agreed), mass_b.new_zeros(())

        def anchors() -> Tensor:
            return all_scalings[-1].a * self.total(found.a)

        def positives() -> Tensor:
            return all_scalings[-1].b * self.form(*all_scalings[-1], positives=True).b

        for sweep in range(n_iters):
            a, (_, b, h) = torch.zeros_like(mass_a), all_scalings[-1]
            found = self.form(a, b, h, mass=mass_a, positives=True)  # marginal 1
            if sweep > 0 and goal.reached(anchors, positives):
                break
            a = self.total(a)
            # Marginal 2, marginal 3; no mass, no scaling, whatever the sums.
            b = torch.where(mass_b > 0, mass_b / found.b, none)
            sums = self.form(a, b, h, negatives=True).h
            h = torch.where(mass_h > 0, mass_h / sums, none)
            all_scalings.append(Three(a, b, h))
        return Three(*map(torch.stack, zip(*all_scalings, strict=True)))

    def _trusts(self, masses: Masses, sweeps: Three) -> tuple[bool, bool]:
        """Whether no product of scalings and kernel came near underflow or overflow.

        And whether what j ≠ k excludes, e^{−γ} a_i b_j h_j, was not too much to be subtracted
        (mathematics §2, trust).
        """
        reach = (1 + self.hinge.slope) * float(self._widest) + self.hinge.margin
        (a, b, h), (per_a, per_b, per_h) = (s[1:] for s in sweeps), masses.inverses
        logs = torch.cat([a, b, h], 1).log_()
        held = (
            logs.masked_fill_(logs == -torch.inf, 0.0).abs_().max() + reach <= _HELD
        )  # no mass: 0
        both = torch.stack([sweeps.b[:-1] * sweeps.h[:-1], b * sweeps.h[:-1], b * h])
        both *= math.exp(-self.hinge.margin)
        share = torch.maximum(both * per_b, both * per_h).amax(2)
        excluded = torch.maximum((a * per_a).amax(1) * both.sum(2), a.sum(1) * share)
        return bool(held), bool(excluded.max() <= _EXCLUDED[self.scores.dtype])

    def push(
        self, plan: LogTripletPlan, axis: int, weights: Tensor, sink: GradientSink | None
    ) -> Received:
        """Products with the pair marginals; the gradient waits until all of it is asked for."""
        found = self.form(*_weighted(plan, axis, weights), positives=axis != 1, negatives=axis != 2)
        if sink is not None:
            sink.add((plan, axis, weights))
        scalings = plan.phi.exp(), plan.f.exp(), plan.g.exp()
        received = [found[0] if axis == 0 else self.total(found[0]), *found[1:]]
        return {other: scalings[other] * received[other] for other in range(3) if other != axis}

    def forces(self, terms: Sequence[Term]) -> ScoreGradient:
        """``∂/∂x Σ weights · marginal_axis`` of the terms' plans, summed, a tile at a time."""
        forms = [_weighted(*term) for term in terms]
        for part in self._parts():
            gradient = torch.zeros_like(part.arrays[0])
            for a, f, g in forms:
                self._add(part, a, f, g, gradient=gradient)
            yield Patch(part.rows, gradient)

    def costs(self, weights: Weights) -> Tensor:
        """``Σ_ijk plus_ij minus_ik ψ(x_ij − x_ik)/ε``."""
        total = self.like.new_zeros(())  # a list of sums between tiles would spoil the heap
        for part in self._parts():
            total += self._costs(part, weights).sum()
        return self.total(total)

    def with_costs(
        self, gradient: ScoreGradient, weights: Weights, scale: Tensor
    ) -> Iterator[Patch]:
        """A gradient and that of ``scale · costs``: they nearly cancel, so they are added first."""
        for patch in gradient:
            first = patch.rows.start
            for part in self._parts([patch.rows]):
                here = slice(part.rows.start - first, part.rows.stop - first)
                self._costs(part, weights, float(scale), patch.values[here])
            yield patch

    def _costs(
        self, tile: SortedTile, weights: Weights, scale: float = 0.0, gradient: Tensor | None = None
    ) -> Tensor:
        plus, minus = weights(tile.rows, self.scores.dtype)
        costs = plus.new_empty(len(plus), dtype=torch.float64)
        work = costs.new_empty(len(tile.shares), 6 * plus.shape[1] + 8)

        calls = []
        for thread, share in enumerate(tile.shares):
            rows = (_at(array, share.first) for array in (plus, minus, costs, gradient))
            calls.append(self._call(share, (*rows, _at(work, thread)), numbers=(scale,)))
        native.shared(native.compiled.hinge_costs, calls)
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
    ) -> Three:
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
        return Three(sums, to_f, to_g)

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
        work = f.new_empty(len(tile.shares), 15 * (len(f) + 31))

        calls = []
        for thread, share in enumerate(tile.shares):
            vectors = _at(a, share.anchor), _at(f), _at(g), _at(other), _at(mass, share.anchor)
            ends = _at(sums, share.anchor), _at(columns[0], thread), _at(columns[1], thread)
            arrays = *vectors, *ends, _at(gradient, share.first), _at(work, thread)
            calls.append(self._call(share, arrays, int(self._apart)))
        native.shared(native.compiled.hinge_form, calls)

    def _call(
        self, share: Share, arrays: Sequence[int], *flags: int, numbers: tuple[float, ...] = ()
    ) -> tuple[float, ...]:
        """The arguments of a call."""
        own = share.anchor if self.within else -1
        hinge = self.hinge.margin, self.hinge.slope, *numbers
        bytes_each = self.scores.element_size()
        return bytes_each, *share.shape, own, *flags, *hinge, *share.addresses, *arrays

    def tiles(self, blocks: Sequence[slice] | None = None) -> Iterator[SortedTile]:
        """All anchors at once if they are stored, else some at a time; or the blocks asked for."""
        if self.storage.streamed or self.anchors.start == self.anchors.stop:
            yield from self._sorted(blocks)
            return
        if self._stored is None:
            shape = self.anchors.stop - self.anchors.start, self.source.shape[1]
            loans = [Loan(1, self.scores, *shape), Loan(3, _indices(self.scores, 0), *shape)]
            arrays = [array for loan in loans for array in loan.matrices]
            collections.deque(self._sorted(None, arrays), maxlen=0)
            self._stored = SortedTile(self.anchors, arrays), loans
        tile = self._stored[0]
        yield from [tile] if blocks is None else map(tile.part, map(self._place, blocks))

    def _parts(self, blocks: Sequence[slice] | None = None) -> Iterator[SortedTile]:
        """The same, some rows at a time."""
        for tile in self.tiles(blocks):
            for rows in row_blocks(len(tile.arrays[0]), self.source.shape[1], self.tile_entries):
                yield tile.part(rows)

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
        source, kind = self.source.widened(), self.scores
        scores = self.like.new_empty(height, m)
        room = [] if arrays else [kind.new_empty(height, m), *_indices(kind, height, m)]
        for block in blocks:
            n_rows = block.stop - block.start
            place = self._place(block) if arrays else slice(0, n_rows)
            tile = SortedTile(block, [array[place] for array in arrays or room])
            self._sort(source.tile(block, scores[:n_rows]), tile)
            yield tile

    def _sort(self, similarity: Tensor, tile: SortedTile) -> None:
        shares = [Share.of(tile, rows) for rows in _shares(similarity)]
        work = self.like.new_empty(len(shares), 4 * similarity.shape[1] + 16)
        widest = self._widest.repeat(len(shares))

        calls = []
        for thread, share in enumerate(shares):
            own = share.anchor if self.within else -1
            numbers = self.scores.element_size(), *share.shape, own, self.hinge.margin, self.factor
            arrays = _at(similarity, share.first), *share.addresses, _at(widest, thread)
            calls.append((*numbers, *arrays, _at(work, thread)))
        native.shared(native.compiled.hinge_sort, calls)
        self._widest = widest.amax(0, keepdim=True)


def _indices(like: Tensor, *shape: int) -> Tensor:
    """Room for three indices of two bytes."""
    return like.new_empty(3, *shape, dtype=torch.int16)


def _shares(matrix: Tensor) -> list[slice]:
    """Rows for each thread, if they are enough."""
    n_rows = len(matrix)
    number = max(1, min(torch.get_num_threads(), n_rows, matrix.numel() // _SHARE))
    ends = [n_rows * thread // number for thread in range(number + 1)]
    return [slice(start, stop) for start, stop in pairwise(ends)]


def _at(array: Tensor | None, row: int = 0) -> int:
    """Where a row of an array starts; 0 for none."""
    if array is None:
        return 0
    return native.address(array) + row * array.stride(0) * array.element_size()


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
    sweeps: Three

    def adjoint(self, cotangents: Sequence[Tensor]) -> ScoreGradient:
        """Walk the sweeps backwards, two passes each (see ``Stages.adjoint``).

        The update of a sends through the same sums as that of b before it: they share a pass.
        """
        coupling, (per_a, per_b, per_h) = self.coupling, self.masses.inverses
        grad_a, grad_b, grad_h = cotangents
        n_rows, m = coupling.anchors.stop - coupling.anchors.start, coupling.source.shape[1]
        gradient = empty_matrix(coupling.scores, n_rows, m).zero_()  # no loan: gone before the rest
        scalings = list(zip(*(stack.unbind() for stack in self.sweeps), strict=True))
        for t in reversed(range(1, len(scalings))):
            (a, b, h), (_, b0, h0) = scalings[t], scalings[t - 1]
            # Marginal 3 set h: through P²³ to b and through P¹³ to a.
            found = coupling.form(a, b, h * grad_h * -per_h, positives=True, gradient=gradient)
            grad_a, grad_b = grad_a + a * found.a, grad_b + b * found.b
            # Marginal 2 set b: through P²³ to h₀ and through P¹² to a; then marginal 1 set a:
            # through P¹² to b₀ and through P¹³ to h₀.
            more = t > 1  # nothing depends on the start
            found = coupling.form(
                a, b * grad_b * -per_b, h0, other=b0, mass=per_a, sums=grad_a,
                positives=more, negatives=more, gradient=gradient,
            )  # fmt: skip
            grad_a = torch.zeros_like(grad_a)
            grad_b, grad_h = b0 * found.b, h0 * found.h
        if n_rows:
            yield Patch(coupling.anchors, gradient)
