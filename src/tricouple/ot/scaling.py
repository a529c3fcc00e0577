"""The fast run: sweeps as products with one kernel E = exp(c (s − middle)) and with 1/E.

Sweeps go on while no difference loses digits; the solver does a sweep that would by rows. On the
CPU many sweeps are one call in C, and their adjoint is another (c/scaling.h); elsewhere they are
products in PyTorch (scaling_torch.py). The score gradient is E ∘ (left⁺ᵀ right⁺) − 1/E ∘
(left⁻ᵀ right⁻), so plans and directions that share E are more rows of ``left`` and ``right``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host, wide_dtype
from tricouple.ot import native, scaling_torch
from tricouple.ot.forms import Forces, Linear
from tricouple.ot.rows import Number, Vectors
from tricouple.ot.scaling_torch import reciprocal
from tricouple.ot.scores import Scores

WORST = 0.1  # share that must be left after a subtraction: one digit may go
WIDE_WORST = 1e-7  # if E has more digits than the similarities
# Largest log E that a type has room for, E and 1/E; vectors, float64, have four times that.
RANGE = {torch.float32: 75.0, torch.float64: 150.0}
CALM = 12.0  # up to here also factors of the gradient are numbers of float32, as they are


@dataclass
class Kernel:
    """E of some scores, and what its runs contribute to the gradient."""

    scores: Scores
    c: Number  # |c|
    middle: Number
    dtype: torch.dtype  # of E
    kept: Tensor | None  # on a device: whether no digits were lost so far
    calm: bool  # whether factors of the gradient have room in any case
    there: Kernel | None = None  # that of the way there, if this one is of the way back
    # ∂L/∂E (sign 1) and ∂L/∂E⁻ (−1) as sums of products, (K, N) and (K, M).
    factors: dict[int, list[Vectors]] = field(default_factory=dict)

    @classmethod
    def of(cls, scores: Scores, c: Number, most: float) -> Kernel | None:
        """E in the scores' digits, or in float64 where those have no room; None without room.

        ``most`` is what the host takes c, positive, to be at most.
        """
        like, given, most = scores.anchors, scores.references is None, 1.01 * most
        host, wide = on_host(like), wide_dtype(like.device)
        dtype = scores.dtype if native.in_c(like) else wide
        middle: Number = 0.0
        reach = c * 1.01  # of unit vectors
        if given or (host and most > RANGE[dtype]):
            low, high = _range(scores)
            middle, reach = (low + high) / 2, (high - low) / 2 * c
        elif most > RANGE[dtype]:
            return None
        kept = None if host else torch.as_tensor(reach <= RANGE[dtype], device=like.device)
        if host:
            dtype = dtype if reach <= RANGE[dtype] else wide
            if not reach <= RANGE[dtype]:  # also if it is NaN
                return None
            c, middle = float(c), float(middle)
        return cls(scores, c, middle, dtype, kept, not given and most <= CALM)

    @property
    def whole(self) -> bool:
        """Whether all of E is stored."""
        n, m = self.scores.shape
        return n * m <= self.scores.stored

    @cached_property
    def matrix(self) -> Tensor:
        """E: all of its rows, or as many tiles of them as are stored."""
        scores, (n, m) = self.scores, self.scores.shape
        if self.there is not None and self.whole:
            turned = self.there.matrix.T
            return (
                native.empty_matrix(turned, n, m).copy_(turned) if native.in_c(turned) else turned
            )
        stored = n if self.whole else int(scores.stored // (m * scores.height)) * scores.height
        return self._exponential(scores.taken(stored, self.dtype), slice(0, stored))

    @cached_property
    def inverse(self) -> Tensor:
        """1/E, 0 where E is 0."""
        if self.there is not None and self.whole:
            return self.there.inverse.T
        return reciprocal(self.matrix)

    @cached_property
    def _buffer(self) -> Tensor:
        like, (_, m) = self.scores.anchors, self.scores.shape
        return native.empty_matrix(like, self.scores.height, m, dtype=self.dtype)

    def rows(self, rows: slice) -> Tensor:
        """E of some rows: stored, or in a buffer until the next call."""
        if rows.stop <= len(self.matrix):
            return self.matrix[rows]
        tile = self.scores.tile(rows, self._buffer[: rows.stop - rows.start])
        return self._exponential(tile, rows)

    def _exponential(self, s: Tensor, rows: slice) -> Tensor:
        return exponential(s, self.scores.own[rows], self.c, self.middle)

    @cached_property
    def own(self) -> tuple[Tensor, Tensor]:
        """The entry of each anchor with itself, and 1 where there is one, else 0, (N,)."""
        return self.scores.own.clamp(min=0), (self.scores.own >= 0).to(self.dtype)

    @cached_property
    def apart(self) -> Tensor:
        """O, the reference least like the anchors, which one outlier is, (1,)."""
        scores, mine = self.scores, self.scores.shared(self.scores.anchors.sum(0))
        likeness = mine if scores.references is None else scores.references @ mine
        return likeness.argmin(0, keepdim=True)

    @cached_property
    def others(self) -> Tensor:
        """0 at o, else 1, (M,)."""
        ones = self.scores.anchors.new_ones(self.scores.shape[1], dtype=self.dtype)
        return ones.index_fill(0, self.apart, 0.0)

    @cached_property
    def edges(self) -> dict[int, Tensor]:
        """Column o of E (sign 1) and of 1/E (−1), (N,)."""
        tiles = (self.rows(rows)[:, self.apart] for rows in self.scores.blocks())
        edge = torch.cat([self.others[:0, None], *tiles])[:, 0]
        return {1: edge, -1: reciprocal(edge)}

    def transposed(self) -> Kernel:
        """The kernel of the way back; what it adds to the gradient is for this one."""
        return replace(self, scores=self.scores.transposed, there=self, factors={})

    def add(self, sign: int, left: Tensor, right: Tensor) -> None:
        """left: (K, N), right: (K, M): more of ∂L/∂E (sign 1) or ∂L/∂E⁻ (−1)."""
        if self.there is None:
            self.factors.setdefault(sign, []).append([left, right])
        else:
            self.there.add(sign, right, left)

    def gradient(self, *, both: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """C (E ∘ left⁺ᵀ right⁺ − 1/E ∘ left⁻ᵀ right⁻) in tiles; or, of ``both``, G + Gᵀ.

        Where E is symmetric, the columns before a tile's rows are those of tiles before: left out.
        """
        factors: dict[int, Vectors] = {}
        dtype, like = self.dtype, self.scores.anchors
        (_, m), height = self.scores.shape, self.scores.height
        for sign, pairs in self.factors.items():
            factors[sign] = [torch.cat(sides) for sides in zip(*pairs, strict=True)]
            if not self.calm:
                factors[sign] = _centred(*factors[sign])
                if on_host(like) and not all(map(_has_room, factors[sign])):
                    dtype = torch.float64
        self.factors.clear()
        for sign, sides in factors.items():
            left, right = (side.to(dtype) for side in sides)
            if both:
                left, right = torch.cat([left, right]), torch.cat([right, left])
            out = native.empty_matrix(like, height * m, dtype=dtype)
            factors[sign] = [left.mul_(self.c), right, out]
        for rows in self.scores.blocks() if factors else ():
            e, products, first = self.rows(rows).to(dtype), {}, rows.start * both
            for sign, (left, right, out) in factors.items():
                tile = out[: len(e) * (m - first)].view(len(e), m - first)
                products[sign] = torch.mm(left[:, rows].T, right[:, first:], out=tile)
            near, far = (products.get(sign) for sign in (1, -1))
            if native.in_c(e):
                threads = native.threads(e.numel())
                native.call("combine", e, *e.shape, first, threads, e, near, far)
            else:
                inverse = self.inverse[rows] if self.whole else reciprocal(e)
                near = None if near is None else near.mul_(e[:, first:])
                far = None if far is None else far.mul_(inverse[:, first:]).neg_()
                near = far if near is None or far is None else near.add_(far)
            yield rows, products[max(products)]


def _range(scores: Scores) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry that is finite, on all processes."""
    ends = scores.anchors.new_full((2,), -torch.inf, dtype=scores.dtype)
    for rows, tile in scores.tiles():
        low, high = torch.aminmax(fill_own(tile, scores.own[rows], 0.0))
        if not on_host(tile) or not float(low) > -torch.inf:
            low = torch.where(tile > -torch.inf, tile, torch.inf).amin()
        ends = torch.maximum(ends, torch.stack([-low, high]))
    if scores.group is not None:
        scores.group.max_(ends)
    return -ends[0], ends[1]


def exponential(s: Tensor, own: Tensor, c: Number, middle: Number) -> Tensor:
    """E in the place of s."""
    if native.in_c(s):
        numbers = *s.shape, native.threads(s.numel()), float(c), float(middle)
        native.call("kernel", s, *numbers, s, own, s)
        return s
    return fill_own(s.sub_(middle).mul_(c).exp_(), own, 0.0)


def _centred(left: Tensor, right: Tensor) -> Vectors:
    """The same product; the logarithms of each right vector's entries are centred at 0."""
    size = right.abs()
    high = size.amax(1, keepdim=True)
    low = torch.where(size > 0, size, torch.inf).amin(1, keepdim=True)
    middle = torch.where(high > 0, low.sqrt() * high.sqrt(), 1.0)
    return [left * middle, right / middle]


def _has_room(values: Tensor) -> bool:
    """Whether products of these numbers, zeros apart, are numbers of float32."""
    size = values.abs()
    return bool(((size < 1e34) & ((size > 1e-34) | (size == 0))).all())


@dataclass
class Scaling:
    """The fast run of a linear form."""

    kernel: Kernel
    form: Linear

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[FastSweeps | None, bool]:
        """As many sweeps, at most ``most``, as keep their digits; whether no more are needed."""
        kernel, scalings = self.kernel, self.scalings(start)
        done = FastSweeps(self, masses, later, [])
        if not native.in_c(masses[0]):
            if tol is not None:  # is watched by rows
                return None, False
            kept = scaling_torch.solve(done, most, scalings)
            if not on_host(kept):
                kernel.kept = kept if kernel.kept is None else kept & kernel.kept
                return done, True
            return (done if bool(kept) else None), bool(kept)
        n, m = kernel.scores.shape
        sizes = (n, m, n) if self.form.axes == 2 else (n, m, m, n, n, m)
        done.history = [masses[0].new_empty(most + 1, size) for size in sizes]
        for vectors, first in zip(done.history, scalings, strict=False):
            vectors[0] = first
        reals = -1.0 if tol is None else tol, self.worst
        found = done.call("solve", most, reals, done.history)
        done.number = found if found >= 0 else -1 - found
        done.history = [vectors[: done.number + 1] for vectors in done.history]
        return (done if done.number else None), found >= 0

    @property
    def worst(self) -> float:
        """The smallest share that may be left after a subtraction."""
        return WORST if self.kernel.dtype == self.kernel.scores.dtype else WIDE_WORST

    def scalings(self, potentials: Vectors) -> Vectors:
        """For E."""
        return [(potentials[0] + self._shift).exp(), *(other.exp() for other in potentials[1:])]

    @property
    def _shift(self) -> Number:
        """Log of what E lacks of the kernel of pairs."""
        return self.form.c * self.kernel.middle if self.form.axes == 2 else 0.0


@dataclass
class FastSweeps:
    """Some sweeps of a run: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    masses: Vectors
    later: bool  # whether there were others before
    # Before the first sweep and after each: a, b, h, r⁺, r⁻, outside (c/scaling.h) or u, v, r;
    # in PyTorch u, v, or what a sweep of scaling_torch returns.
    history: Vectors
    number: int = 0

    @property
    def potentials(self) -> Vectors:
        """After the last sweep: logarithms of scalings for E, but for what E lacks."""
        first, *others = (vectors[-1].log() for vectors in self.history[: self.run.form.axes])
        return [first - self.run._shift, *others]

    def adjoint(self, cotangents: Vectors, forces: Forces | None = None) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        kernel, sign, zeros = self.run.kernel, self.run.form.sign, self.masses[0].new_zeros
        if not native.in_c(self.masses[0]):
            parts, factors = scaling_torch.adjoint(self, cotangents)
        else:
            (n, m), t = kernel.scores.shape, len(self.history[0]) - 1
            parts = list(cotangents)  # overwritten
            rank, signs = (2 * t, [sign]) if len(parts) == 2 else (2 * t + 2, [1, -1])
            factors = {which: [zeros(rank, n), zeros(rank, m)] for which in signs}
            rests = zeros(2, rank - 1, n) if len(parts) == 3 else ()  # of column o
            ends = [side for sides in factors.values() for side in sides]
            self.call("adjoint", t, (), [*self.history, *parts, *ends, *rests])
            parts[0].zero_()  # nothing depends on the first potential of the start
        for which, (left, right) in factors.items():
            kernel.add(which, left, right)
        return parts

    def envelope(self, total: Tensor) -> None:
        """Leave −total ∂/∂s of the plan's mass with the kernel.

        The last update's own part of the adjoint: without other masses nothing is carried on.
        """
        masses = [*map(torch.zeros_like, self.masses[:-1]), self.masses[-1]]
        history = [vectors[-2:] for vectors in self.history]
        last = replace(self, masses=masses, later=False, history=history, number=1)
        last.adjoint([total * mass for mass in masses])

    def call(self, what: str, sweeps: int, reals: tuple[float, ...], arrays: Vectors) -> int:
        """Call the compiled function for pairs or for triplets; it may ask for rows of E."""
        kernel, form, masses = self.run.kernel, self.run.form, torch.cat(self.masses)
        scores, (n, m) = kernel.scores, kernel.scores.shape
        threads = native.threads(n * m)
        message, spare = masses.new_empty(2 * m + 3), masses.new_empty(2 * m + 2 * n)
        work = masses.new_empty((1 + threads) * m, dtype=kernel.dtype)

        def fetch(first: int, size: int) -> int:
            return kernel.rows(slice(first, first + size)).data_ptr()

        def reduce(length: int, _: int) -> int:  # over processes
            scores.shared(message[:length])
            return 1

        whole, alone = kernel.whole, scores.group is None
        source = kernel.matrix if whole else None, None if whole else fetch
        apart = int(kernel.apart) if form.axes == 3 else -1
        numbers = n, m, form.sign, sweeps, int(self.later), scores.height, threads, apart
        ends = None if alone else reduce, scores.own, masses, *arrays, message, spare, work
        name = f"{'pair' if form.axes == 2 else 'triplet'}_{what}"
        return native.call(name, work, *numbers, *reals, *source, *ends)
