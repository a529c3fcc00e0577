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
from typing import Any

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host, wide_dtype
from tricouple.ot import native, scaling_torch
from tricouple.ot.forms import Forces, Linear
from tricouple.ot.rows import Number, Vectors
from tricouple.ot.scaling_torch import reciprocal
from tricouple.ot.scores import Scores, blocks

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
    wanted: bool  # whether runs are to be differentiated
    calm: bool  # whether factors of the gradient have room in any case
    there: Kernel | None = None  # that of the way there, if this one is of the way back
    # ∂L/∂E (sign 1) and ∂L/∂E⁻ (−1) as sums of products, (K, N) and (K, M).
    factors: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)
    # In PyTorch what column o has of them, (N,) and (M,).
    alone: dict[int, list[tuple[Tensor, Tensor]]] = field(default_factory=dict)

    @classmethod
    def of(cls, scores: Scores, c: Number, most: float, wanted: bool) -> Kernel | None:
        """E in the scores' digits, or in float64 where those have no room; None without room.

        ``most`` is what the host takes c, positive, to be at most.
        """
        like, host = scores.anchors, on_host(scores.anchors)
        wide = wide_dtype(like.device)
        dtype = scores.dtype if native.in_c(like) else wide
        middle: Number = 0.0
        reach = c * 1.01  # of unit vectors
        if scores.references is None or (host and most * 1.01 > RANGE[dtype]):
            low, high = _range(scores)
            middle, reach = (low + high) / 2, (high - low) / 2 * c
        elif most * 1.01 > RANGE[dtype]:
            return None
        calm = scores.references is not None and most * 1.01 <= CALM
        if not host:
            kept = torch.as_tensor(reach <= RANGE[dtype], device=like.device)
            return cls(scores, c, middle, dtype, kept, wanted, calm)
        dtype = dtype if reach <= RANGE[dtype] else wide
        if not reach <= RANGE[dtype]:  # also if it is NaN
            return None
        return cls(scores, float(c), float(middle), dtype, None, wanted, calm)

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
            if not native.in_c(turned):
                return turned
            return native.empty_matrix(turned, n, m).copy_(turned)
        if scores.keep and self.whole:  # E takes the place of s
            return self._exponential(scores.taken().to(self.dtype), slice(0, n))
        height = scores.height
        stored = n if self.whole else int(scores.stored // (m * height)) * height
        matrix = native.empty_matrix(scores.anchors, stored, m, dtype=self.dtype)
        for rows in blocks(stored, height):
            self._exponential(scores.tile(rows, matrix[rows]), rows)
        return matrix

    @cached_property
    def apart(self) -> Tensor:
        """The reference least like the anchors, which one outlier is."""
        scores, mine = self.scores, self.scores.shared(self.scores.anchors.sum(0))
        return (mine if scores.references is None else scores.references @ mine).argmin()

    @cached_property
    def sides(self) -> Tensor:
        """1 where a reference is not apart, and where it is, (M, 2)."""
        apart = torch.arange(self.scores.shape[1], device=self.apart.device) == self.apart
        return torch.stack([~apart, apart], 1).to(self.dtype)

    @cached_property
    def meets(self) -> Tensor:
        """0 where an anchor is the one apart, whose own terms are large there, else 1, (N,)."""
        at, has = self.own
        return 1 - self.sides[at, 1] * has

    def split(self, values: Tensor) -> Tensor:
        """Values that are not apart, and that are, (M, 2)."""
        return values[:, None] * self.sides

    @cached_property
    def own(self) -> tuple[Tensor, Tensor]:
        """The entry of each anchor with itself, and whether there is one."""
        return self.scores.own.clamp(min=0), self.scores.own >= 0

    @cached_property
    def inverse(self) -> Tensor:
        """1/E, 0 where E is 0."""
        if self.there is not None and self.whole:
            return self.there.inverse.T
        return reciprocal(self.matrix)

    @cached_property
    def _buffer(self) -> Tensor:
        (_, m), height = self.scores.shape, self.scores.height
        return native.empty_matrix(self.scores.anchors, height, m, dtype=self.dtype)

    def rows(self, rows: slice) -> Tensor:
        """E of some rows: stored, or in a buffer until the next call."""
        if rows.stop <= len(self.matrix):
            return self.matrix[rows]
        tile = self.scores.tile(rows, self._buffer[: rows.stop - rows.start])
        return self._exponential(tile, rows)

    def _exponential(self, s: Tensor, rows: slice) -> Tensor:
        return exponential(s, self.scores.own[rows], self.c, self.middle)

    def transposed(self) -> Kernel:
        """The kernel of the way back; what it adds to the gradient is for this one."""
        return replace(self, scores=self.scores.transposed, there=self, factors={}, alone={})

    def add(self, sign: int, left: Tensor, right: Tensor) -> None:
        """left: (K, N), right: (K, M): more of ∂L/∂E (sign 1) or ∂L/∂E⁻ (−1)."""
        if self.there is None:
            self.factors.setdefault(sign, []).append((left, right))
        else:
            self.there.add(sign, right, left)

    def gradient(self, *, both: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """C (E ∘ left⁺ᵀ right⁺ − 1/E ∘ left⁻ᵀ right⁻) in tiles; or, of ``both``, G + Gᵀ.

        Where E is symmetric one product with the embeddings is then enough.
        """
        factors, dtype = {}, self.dtype
        while self.factors:  # they are freed one after the other
            sign, pairs = self.factors.popitem()
            left, right = pairs[0]
            if len(pairs) > 1:
                left, right = (torch.cat(sides) for sides in zip(*pairs, strict=True))
            factors[sign] = [left, right] if self.calm else _centred(left, right)
            if not self.calm and on_host(left) and not all(map(_has_room, factors[sign])):
                dtype = torch.float64
        for sides in factors.values():
            left, right = (side.to(dtype) for side in sides)
            if both:
                left, right = torch.cat([left, right]), torch.cat([right, left])
            sides[:] = left.mul_(self.c), right
        (_, m), height, like = self.scores.shape, self.scores.height, self.scores.anchors
        buffers = {sign: native.empty_matrix(like, height, m, dtype=dtype) for sign in factors}
        for rows in self.scores.blocks() if factors else ():
            e, products = self.rows(rows).to(dtype), {}
            for sign, (left, right) in factors.items():
                out = products[sign] = buffers[sign][: len(e)]
                torch.mm(left[:, rows].T, right, out=out)
                if not native.in_c(e):
                    inverse = self.inverse[rows] if self.whole else reciprocal(e)
                    out.mul_(e if sign > 0 else -inverse)
            if native.in_c(e):
                ends = e, products.get(1), products.get(-1)
                native.call("combine", e, *e.shape, native.threads(e.numel()), *ends)
            elif len(products) == 2:
                products[1].add_(products[-1])
            yield rows, products.get(1, out)


def _range(scores: Scores) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry that is finite, on all processes."""
    ends = scores.anchors.new_full((2,), -torch.inf, dtype=scores.dtype)
    for _, tile in scores.tiles():
        low, high = torch.aminmax(tile)
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
    ) -> tuple[Any, bool]:
        """As many sweeps, at most ``most``, as keep their digits; whether no more are needed."""
        if not native.in_c(masses[0]):
            return scaling_torch.sweeps(self, masses, start, most, tol, later)
        n, m = self.kernel.scores.shape
        sizes = (n, m, n) if self.form.axes == 2 else (n, m, m, n, n, m)
        history = [masses[0].new_empty(most + 1, size) for size in sizes]
        for vector, scaling in zip(history, self.scalings(start), strict=False):
            vector[0] = scaling
        done = CompiledSweeps(self, torch.cat(masses), later, history)
        reals = -1.0 if tol is None else tol, self.worst
        found = done.call("solve", most, reals, history)
        done.number = found if found >= 0 else -1 - found
        return (done if done.number else None), found >= 0

    @property
    def worst(self) -> float:
        """The smallest share that may be left after a subtraction."""
        return WORST if self.kernel.dtype == self.kernel.scores.dtype else WIDE_WORST

    def envelope(self, potentials: Vectors, total: Tensor) -> bool:
        """Leave −total ∂/∂s of the plan's mass with the kernel; False where digits would be lost.

        Of triplets ∂/∂s is c (E ∘ (a r⁻) bᵀ − 1/E ∘ (a r⁺) hᵀ): what j ≠ k excludes cancels.
        """
        a, *others = self.scalings(potentials)
        kernel, left = self.kernel, (-total * a)[None]
        if self.form.axes == 2:
            kernel.add(self.form.sign, left, others[0][None])
            return True
        if not on_host(a):
            return False
        (b, h), (at, has) = others, kernel.own
        near, far = torch.empty_like(a), torch.empty_like(a)
        for rows in kernel.scores.blocks():
            e = kernel.rows(rows)
            for out, matrix, scaling in ((near, e, b), (far, reciprocal(e), h)):
                most = scaling.max()
                out[rows] = (matrix @ (scaling / most).to(e.dtype)).to(most) * most
        met = b * h
        kept = near * far - (met.sum() - met[at] * has)
        lost = (~(kept >= self.worst * near * far)).sum(dtype=a.dtype)
        if bool(kernel.scores.shared(lost) > 0):  # the same on all processes
            return False
        kernel.add(1, left * far, b[None])
        kernel.add(-1, left * near, h[None])
        return True

    def scalings(self, potentials: Vectors) -> Vectors:
        """For E."""
        return [(potentials[0] + self._shift).exp(), *(other.exp() for other in potentials[1:])]

    def potentials(self, scalings: Vectors) -> Vectors:
        """The logarithms of scalings for E, but for what E lacks."""
        return [scalings[0].log() - self._shift, *(other.log() for other in scalings[1:])]

    @property
    def _shift(self) -> Number:
        """Log of what E lacks of the kernel of pairs."""
        return self.form.c * self.kernel.middle if self.form.axes == 2 else 0.0


@dataclass
class CompiledSweeps:
    """Some sweeps of a run, done in C: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    masses: Tensor  # of all axes
    later: bool  # whether there were others before
    history: Vectors  # a, b, h, r⁺, r⁻, outside or u, v, r; before the first sweep and after each
    number: int = 0

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        return self.run.potentials([x[self.number] for x in self.history[: self.run.form.axes]])

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        kernel, form, t, zeros = self.run.kernel, self.run.form, self.number, self.masses.new_zeros
        n, m = kernel.scores.shape
        parts = [part.clone() for part in cotangents]
        if form.axes == 2:
            left, right = zeros(2 * t, n), zeros(2 * t, m)
            self.call("adjoint", t, (), [*self.history, *parts, left, right])
            kernel.add(form.sign, left, right)
        else:
            (near, far), (b, h) = zeros(2, 2 * t + 2, n), zeros(2, 2 * t + 2, m)
            rests = zeros(2, 2 * t + 1, n)
            self.call("adjoint", t, (), [*self.history, *parts, near, b, far, h, *rests])
            kernel.add(1, near, b)
            kernel.add(-1, far, h)
        parts[0].zero_()  # nothing depends on the first potential of the start
        return parts

    def call(self, what: str, sweeps: int, reals: tuple[float, ...], arrays: Vectors) -> int:
        """Call the compiled function for pairs or for triplets; it may ask for rows of E."""
        kernel, form, like = self.run.kernel, self.run.form, self.masses
        scores, (n, m) = kernel.scores, kernel.scores.shape
        threads = native.threads(n * m)
        message, spare = like.new_empty(2 * m + 3), like.new_empty(2 * m + 2 * n)
        work = like.new_empty((1 + threads) * m, dtype=kernel.dtype)

        def fetch(first: int, size: int) -> int:
            return kernel.rows(slice(first, first + size)).data_ptr()

        def reduce(length: int, _: int) -> int:  # over processes
            scores.shared(message[:length])
            return 1

        whole, alone = kernel.whole, scores.group is None
        source = kernel.matrix if whole else None, None if whole else fetch
        apart = int(kernel.apart) if form.axes == 3 else -1
        numbers = n, m, form.sign, sweeps, int(self.later), scores.height, threads, apart
        ends = None if alone else reduce, scores.own, like, *arrays, message, spare, work
        name = f"{'pair' if form.axes == 2 else 'triplet'}_{what}"
        return native.call(name, work, *numbers, *reals, *source, *ends)
