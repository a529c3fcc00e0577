"""The fast run: sweeps as products with one kernel E = exp(c (s − middle)) and with 1/E.

Sweeps go on while no difference loses digits; the solver does a sweep that would by rows, and comes
back: an outlier costs the one or two first sweeps that it makes hard. On the CPU many sweeps are
one call in C, and their adjoint is another (c/scaling.h); elsewhere they are products in PyTorch
(scaling_torch.py). The score gradient is E ∘ (left⁺ᵀ right⁺) − 1/E ∘ (left⁻ᵀ right⁻), so plans and
directions that share E are more rows of ``left`` and ``right``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host, wide_dtype
from tricouple.ot import native, scaling_torch
from tricouple.ot.forms import Linear
from tricouple.ot.rows import Vectors
from tricouple.ot.scores import Scores
from tricouple.ot.solver import Forces, Segment

WORST = 0.1  # share that must be left after a subtraction: one digit may go
WIDE_WORST = 1e-7  # if E has more digits than the similarities
# Largest log E that a type has room for, E and 1/E; vectors, float64, have four times that.
RANGE = {torch.float32: 75.0, torch.float64: 150.0}
# Largest |log| of factors of the gradient, whose products are then in range.
ROOM = {torch.float32: 78.0, torch.float64: torch.inf}
CACHED = 1 << 18  # entries of a tile of the gradient that stays in the cache

_Factors = dict[int, list[Tensor]]


@dataclass
class Kernel:
    """E of some scores, and what its runs contribute to the gradient."""

    scores: Scores
    c: float | Tensor  # |c|
    middle: float | Tensor
    dtype: torch.dtype  # of E
    matrix: Tensor | None  # None: streamed, some rows at a time
    kept: Tensor | None = None  # on a device: whether no digits were lost so far
    lefts: _Factors = field(default_factory=lambda: {1: [], -1: []})  # by the sign of c
    rights: _Factors = field(default_factory=lambda: {1: [], -1: []})
    wanted: bool = True  # whether runs are to be differentiated
    _buffer: Tensor | None = None
    _stored: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls, scores: Scores, c: float | Tensor, most: float, *, stored: bool, wanted: bool = True
    ) -> Kernel | None:
        """E in the scores' digits, or in float64 where those have no room; None without room.

        Args:
            scores: The scores.
            c: Their factor, positive.
            most: What the host takes the factor to be at most.
            stored: Whether E is stored, or recomputed tile by tile.
            wanted: Whether runs are to be differentiated.
        """
        like, given = scores.anchors, scores.references is None
        wide = wide_dtype(like.device)
        dtype = scores.dtype if native.in_c(like) else wide
        reach = torch.inf if given else most * 1.01  # of unit vectors
        kernel = cls(scores, c, 0.0, dtype, None, wanted=wanted)
        if not on_host(like):
            kernel.kept = torch.ones((), dtype=torch.bool, device=like.device)
            if not given and reach > RANGE[dtype]:
                return None
            if isinstance(c, Tensor):
                kernel.kept = c * 1.01 <= RANGE[dtype]
        s = scores.product() if stored else None
        if given and s is not None and not on_host(like):
            # The range of a given matrix stays on the device.
            first, last = _ends(s)
            kernel.middle = (first + last) / 2
            kernel.kept = (last - first) / 2 * c <= RANGE[dtype]
        elif reach > RANGE[dtype]:
            tiles = scores.tiles() if s is None else [(slice(None), s)]
            ends = [_ends(tile) for _, tile in tiles]
            low = min((float(end[0]) for end in ends), default=0.0)
            high = max((float(end[1]) for end in ends), default=0.0)
            if scores.group is not None:
                low, high = -scores.group.largest(-low), scores.group.largest(high)
            kernel.middle, reach = (low + high) / 2, float(c) * (high - low) / 2
            kernel.dtype = dtype = dtype if reach <= RANGE[dtype] else wide
            if not reach <= RANGE[dtype]:  # also if it is NaN
                if s is not None and scores.keep:
                    scores.matrix = s  # for sweeps by rows
                return None
        if s is not None:  # E takes the place of s
            kernel.matrix = exponential(s.to(dtype), scores.own, c, kernel.middle)
        return kernel

    @property
    def worst(self) -> float:
        """The smallest share that may be left after a subtraction."""
        return WORST if self.dtype == self.scores.dtype else WIDE_WORST

    @property
    def height(self) -> int:
        """Rows of a tile."""
        n, m = self.scores.shape
        if self.matrix is None or not self.scores.keep:
            return self.scores.height
        return max(1, min(n, CACHED // max(1, m))) if self.matrix.is_cpu else n

    def rows(self, rows: slice) -> Tensor:
        """E of some rows: stored as long as there is room, else in a buffer until the next call."""
        if self.matrix is not None:
            return self.matrix[rows]
        if rows.start in self._stored:
            return self._stored[rows.start]
        scores, (size, m) = self.scores, (rows.stop - rows.start, self.scores.shape[1])
        tile = self.height * m * self.dtype.itemsize
        fits = (len(self._stored) + 2) * tile <= scores.room / 2
        if fits:
            out = native.empty_matrix(scores.anchors, size, m, dtype=self.dtype)
            self._stored[rows.start] = out
        else:
            if self._buffer is None:
                self._buffer = native.empty_matrix(scores.anchors, self.height, m, dtype=self.dtype)
            out = self._buffer[:size]
        if self.dtype == scores.dtype:
            scores.tile(rows, out)
        else:
            out.copy_(scores.tile(rows, scores.anchors.new_empty(size, m, dtype=scores.dtype)))
        return exponential(out, scores.own[rows], self.c, self.middle)

    def blocks(self) -> Iterator[slice]:
        """Rows of tiles; all rows at once if E is stored."""
        n = self.scores.shape[0]
        step = max(1, n if self.matrix is not None else self.height)
        return (slice(start, min(start + step, n)) for start in range(0, n, step))

    def power(self, sign: int, rows: slice) -> Tensor:
        """E (sign 1) or 1/E (−1) of some rows, 0 where E is 0."""
        if sign < 0 and self.matrix is not None:
            return self._inverse[rows]
        tile = self.rows(rows)
        return tile if sign > 0 else torch.where(tile > 0, 1 / tile, 0.0)

    @cached_property
    def _inverse(self) -> Tensor:
        assert self.matrix is not None
        return torch.where(self.matrix > 0, 1 / self.matrix, 0.0)

    def transposed(self) -> Kernel:
        """The kernel of the way back; what it adds to the gradient is for this one."""
        matrix = None
        if self.matrix is not None:
            turned = self.matrix.T
            matrix = (
                native.empty_matrix(turned, *turned.shape).copy_(turned)
                if native.in_c(turned)
                else turned
            )
        kernel = Kernel(self.scores.transposed, self.c, self.middle, self.dtype, matrix, self.kept)
        kernel.lefts, kernel.rights, kernel.wanted = self.rights, self.lefts, self.wanted
        return kernel

    def add(self, sign: int, left: Tensor, right: Tensor) -> None:
        """left: (K, N), right: (K, M): more of ∂L/∂E (sign 1) or ∂L/∂E⁻ (−1)."""
        self.lefts[sign].append(left)
        self.rights[sign].append(right)

    def clear(self) -> None:
        """Forget what runs contributed."""
        for factors in (self.lefts, self.rights):
            for sign in factors:
                factors[sign] = []

    def gradient(self, *, both: bool = False) -> Iterator[tuple[slice, Tensor]]:
        """C (E ∘ left⁺ᵀ right⁺ − 1/E ∘ left⁻ᵀ right⁻) in tiles; or, of ``both``, G + Gᵀ.

        Where E is symmetric one product with the embeddings is then enough; the doubled rank costs
        less than a second one.
        """
        (n, m), like = self.scores.shape, self.scores.anchors
        if not n:  # a process without anchors
            return
        factors: dict[int, tuple[Tensor, Tensor]] = {}
        fits, dtype = True, self.dtype
        for sign in (1, -1):
            left, right = self.lefts[sign], self.rights[sign]
            if both:
                left, right = left + right, right + left
            if left:
                x, y, room = centred(torch.cat(left) * self.c, torch.cat(right))
                factors[sign] = x, y
                fits = fits and (not on_host(like) or bool(room < ROOM[dtype]))
        if not factors:
            return
        if not fits:
            dtype = torch.float64
        parts = {sign: (x.to(dtype), y.to(dtype)) for sign, (x, y) in factors.items()}
        height, compiled = self.height, native.in_c(like)
        buffers = like.new_empty(2 if compiled else 0, height, m, dtype=dtype)
        for start in range(0, n, height):
            rows = slice(start, min(start + height, n))
            if not compiled:
                products = [
                    x[:, rows].T @ y * self.power(sign, rows) * sign
                    for sign, (x, y) in parts.items()
                ]
                yield rows, products[0] if len(products) == 1 else products[0].add_(products[1])
                continue
            near, far = buffers[:, : rows.stop - start]
            for sign, (x, y) in parts.items():
                torch.mm(x[:, rows].T, y, out=near if sign > 0 else far)
            arrays = self.rows(rows).to(dtype), near, far if -1 in parts else None
            numbers = len(near), m, int(1 not in parts), native.threads(near.numel())
            native.call("combine", near, *numbers, *arrays)
            yield rows, near


def _ends(tile: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest entry that is finite."""
    if not tile.numel():
        return tile.new_zeros(()), tile.new_zeros(())
    low, high = torch.aminmax(tile)
    if not on_host(tile) or not float(low) > -torch.inf:
        low = torch.where(tile > -torch.inf, tile, torch.inf).amin()
    return low, high


def exponential(s: Tensor, own: Tensor, c: float | Tensor, middle: float | Tensor) -> Tensor:
    """E in the place of s."""
    if native.in_c(s):
        numbers = *s.shape, native.threads(s.numel()), float(c), float(middle)
        native.call("kernel", s, *numbers, s, own, s)
        return s
    return fill_own(s.sub_(middle).mul_(c).exp_(), own, 0.0)


def centred(left: Tensor, right: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The same product, and the largest |log| of its factors.

    The logarithms of each right vector's entries are centred at 0.
    """
    low, high = _log_ends(right)
    middle = (low + high) / 2
    left, right = left * middle.exp(), right * (-middle).exp()
    ends = _log_ends(left)
    return (
        left,
        right,
        torch.stack([(high - low).amax() / 2, -ends[0].amin(), ends[1].amax()]).amax(),
    )


def _log_ends(values: Tensor) -> tuple[Tensor, Tensor]:
    """Log of the smallest and of the largest size of each row, (K, 1), zeros apart."""
    size = values.abs()
    high = size.amax(1, keepdim=True)
    low = torch.where(size > 0, size, torch.inf).amin(1, keepdim=True)
    some = high > 0
    return torch.where(some, low, 1.0).log(), torch.where(some, high, 1.0).log()


@dataclass
class Scaling:
    """The fast run of a linear form."""

    kernel: Kernel
    form: Linear

    def sweeps(
        self, masses: Vectors, start: Vectors, most: int, tol: float | None, later: bool
    ) -> tuple[Segment | None, bool]:
        """As many sweeps, at most ``most``, as keep their digits."""
        if not native.in_c(masses[0]):
            return scaling_torch.sweeps(self, masses, start, most, tol, later)
        done = CompiledSweeps(self, torch.cat(masses), later)
        ended = done.solve(start, most, tol)
        return (done if done.number else None), ended

    @property
    def sign(self) -> int:
        """Which of E and 1/E a pair plan has."""
        return self.form.sign

    def shift(self) -> float | Tensor:
        """Log of what E lacks of the kernel of pairs: c · middle."""
        return self.sign * self.kernel.c * self.kernel.middle if self.form.axes == 2 else 0.0


@dataclass
class CompiledSweeps:
    """Some sweeps of a run, done in C: a segment as ``solver.Sweep`` is, but of several."""

    run: Scaling
    masses: Tensor  # of all axes
    later: bool  # whether there were others before
    number: int = 0
    history: Vectors = field(default_factory=list)  # a, b, h, r⁺, r⁻, outside or u, v, r

    def __post_init__(self) -> None:
        kernel, like = self.run.kernel, self.masses
        n, m = kernel.scores.shape
        self.threads = native.threads(n * m)
        self.message, self.spare = like.new_empty(2 * m + 3), like.new_empty(2 * m + n)
        self.work = like.new_empty((1 + self.threads) * m, dtype=kernel.dtype)

    def solve(self, start: Vectors, most: int, tol: float | None) -> bool:
        """Sweep; whether it ended because no more sweeps are needed (c/scaling.h)."""
        kernel, form = self.run.kernel, self.run.form
        (n, m), limit = kernel.scores.shape, -1.0 if tol is None else tol
        first = (start[0] + self.run.shift()).exp()
        rows = first.new_empty(form.axes, most + 1, n)
        columns = first.new_empty(1 if form.axes == 2 else 3, most + 1, m)
        rows[0, 0], columns[0, 0] = first, start[1].exp()
        numbers = most, int(self.later), kernel.height, self.threads, limit
        if form.axes == 2:
            self.history = [rows[0], columns[0], rows[1]]
            ends = self.masses, *self.history, self.message, self.work
            found = self._call("pair_solve", self.run.sign, *numbers, *self._source(), *ends)
        else:
            columns[1, 0] = start[2].exp()
            self.history = [rows[0], columns[0], columns[1], rows[1], rows[2], columns[2]]
            ends = kernel.scores.own, self.masses, *self.history, self.message, self.spare
            arrays = *self._source(), *ends, self.work
            found = self._call("triplet_solve", *numbers, kernel.worst, *arrays)
        self.number = found if found >= 0 else -1 - found
        return found >= 0

    @property
    def potentials(self) -> Vectors:
        """After the last sweep."""
        found = [vector[self.number].log() for vector in self.history[: self.run.form.axes]]
        found[0] -= self.run.shift()
        return found

    def adjoint(self, cotangents: Vectors, forces: Forces) -> Vectors:
        """∂L/∂E± as factors, left with the kernel (mathematics §4, unrolled)."""
        kernel, t, mass = self.run.kernel, self.number, self.masses
        n, m = kernel.scores.shape
        parts = [part.clone() for part in cotangents]
        numbers = t, int(self.later), kernel.height, self.threads
        if self.run.form.axes == 2:
            left, right = mass.new_zeros(2 * t, n), mass.new_zeros(2 * t, m)
            ends = *self.history[:2], *parts, left, right, self.message, self.work
            self._call("pair_adjoint", self.run.sign, *numbers, *self._source(), mass, *ends)
            kernel.add(self.run.sign, left, right)
        else:
            lp, lm = mass.new_zeros(2, 2 * t + 1, n)
            rp, rm = (torch.cat([x[: t + 1], x.new_zeros(t, m)]) for x in self.history[1:3])
            factors = lp, rp, lm, rm
            ends = mass, *self.history, *parts, *factors, self.message, self.spare, self.work
            self._call("triplet_adjoint", *numbers, *self._source(), kernel.scores.own, *ends)
            kernel.add(1, *factors[:2])
            kernel.add(-1, *factors[2:])
        parts[0].zero_()  # nothing depends on the first potential of the start
        return parts

    def _call(self, name: str, *arguments: Any) -> int:
        return native.call(name, self.work, *self.run.kernel.scores.shape, *arguments)

    def _source(self) -> tuple[Any, ...]:
        """E, or who computes rows of it; and who adds up messages of several processes."""
        kernel, message = self.run.kernel, self.message

        def fetch(first: int, size: int) -> int:
            return kernel.rows(slice(first, first + size)).data_ptr()

        def reduce(length: int, _: int) -> int:
            assert kernel.scores.group is not None
            kernel.scores.group.sum_(message[:length])
            return 1

        streamed, alone = kernel.matrix is None, kernel.scores.group is None
        return kernel.matrix, fetch if streamed else None, None if alone else reduce
