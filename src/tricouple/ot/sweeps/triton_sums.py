"""The sums of ``log_tiles`` for CUDA in Triton: similarities are never in memory, not even a tile.

Each kernel forms ``c⟨x_i, y_j⟩`` of some rows and columns with IEEE products in float32, adds
potentials in float64, where large numbers cancel, and takes exponentials of what is left in
float32. Sums are online: the largest exponent so far, and the sum in units of it. Where both
kernels of a triplet plan, exp(c⟨x, y⟩) and its inverse, are asked for, one pass of products serves
both; and the gradient of all sweeps is multiplied by the embeddings tile by tile, as it arises.

This file is loaded where Triton is installed and streamed sums of a float32 batch are asked for on
CUDA; ``TRICOUPLE_TRITON=0`` keeps the PyTorch path.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from tricouple.memory import Storage
from tricouple.numeric import PulledGradient, ScoreGradient
from tricouple.ot.sweeps.kernels import Products
from tricouple.ot.sweeps.log_tiles import Apart, LogTiles, Packed, Side, Term

# Rows, columns and dimensions that a program has at once.
_ROWS, _COLUMNS = 32, 64
_DEPTH = 32

# Dimensions of the gradient that a program has at once.
_WIDTH = 128


def is_right() -> bool:
    """Whether this Triton is 3.2 or newer: in the interpreter of older ones the sums are wrong."""
    return tuple(int(part) for part in triton.__version__.split(".")[:2]) >= (3, 2)


@triton.jit
def dots(x, y, rows, columns, n, m, d, DEPTH: tl.constexpr):
    """⟨x_i, y_j⟩ in float32, 0 beyond the ends."""
    total = tl.zeros((rows.shape[0], columns.shape[0]), tl.float32)
    for start in range(0, d, DEPTH):
        k = start + tl.arange(0, DEPTH)
        left = x + rows[:, None].to(tl.int64) * d + k[None, :]
        right = y + columns[None, :].to(tl.int64) * d + k[:, None]
        a = tl.load(left, mask=(rows[:, None] < n) & (k[None, :] < d), other=0.0)
        b = tl.load(right, mask=(columns[None, :] < m) & (k[:, None] < d), other=0.0)
        total = tl.dot(a, b, total, input_precision="ieee")
    return total


@triton.jit
def log_add(a, b):
    """log(e^a + e^b), −∞ of nothing."""
    top = tl.maximum(a, b)
    top = tl.where(top == -float("inf"), 0.0, top)
    return top + tl.log(tl.exp(a - top) + tl.exp(b - top))


@triton.jit
def joined(logs, columns, top, rest, place):
    """Row sums so far, their largest term apart, and those of some more columns."""
    largest = tl.max(logs, 1)
    where = tl.argmax(logs, 1)
    alone = tl.arange(0, logs.shape[1])[None, :] == where[:, None]
    others = tl.where(alone, -float("inf"), logs)
    second = tl.max(others, 1)
    unit = tl.where(second == -float("inf"), 0.0, second)
    shares = tl.exp((others - unit[:, None]).to(tl.float32))
    beside = unit + tl.log(tl.sum(shares, 1).to(tl.float64))
    # The smaller of both tops joins the rest.
    rest = log_add(log_add(rest, beside), tl.minimum(top, largest))
    place = tl.where(largest > top, tl.min(columns, 0) + where.to(tl.int32), place)
    return tl.maximum(top, largest), rest, place


@triton.jit
def row_kernel(
    x, y, v, index, tops, rests, n, m, d, sign, BOTH: tl.constexpr,
    WITHIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``log Σ_j exp(±s_ij + v_j)`` with the largest term apart (mathematics §2, trust).

    Of both signs, if asked for: v, and what is written, has a second row for the other one.
    """
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    top = tl.full((ROWS,), -float("inf"), tl.float64)
    rest = tl.full((ROWS,), -float("inf"), tl.float64)
    place = tl.zeros((ROWS,), tl.int32)
    other_top, other_rest, other_place = top, rest, place
    for start in range(0, m, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        scores = dots(x, y, rows, columns, n, m, d, DEPTH).to(tl.float64) * sign
        nobody = columns[None, :] >= m
        if WITHIN:
            nobody = nobody | (rows[:, None] == columns[None, :])
        logs = scores + tl.load(v + columns, mask=columns < m, other=0.0)[None, :]
        logs = tl.where(nobody, -float("inf"), logs)
        top, rest, place = joined(logs, columns, top, rest, place)
        if BOTH:
            logs = tl.load(v + m + columns, mask=columns < m, other=0.0)[None, :] - scores
            logs = tl.where(nobody, -float("inf"), logs)
            other_top, other_rest, other_place = joined(
                logs, columns, other_top, other_rest, other_place
            )
    here = rows < n
    tl.store(index + rows, place.to(tl.int64), mask=here)
    tl.store(tops + rows, top, mask=here)
    tl.store(rests + rows, rest, mask=here)
    if BOTH:
        tl.store(index + n + rows, other_place.to(tl.int64), mask=here)
        tl.store(tops + n + rows, other_top, mask=here)
        tl.store(rests + n + rows, other_rest, mask=here)


@triton.jit
def column_kernel(
    x, y, weight, apart, at, v, totals, out,
    n, m, d, sign, TRIPLETS: tl.constexpr,
    WITHIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``log Σ_i exp(±s_ij + weight_i)``, for triplets times all but j of the other kernel's sum."""
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    top = tl.full((COLUMNS,), -float("inf"), tl.float64)
    total = tl.zeros((COLUMNS,), tl.float64)
    for start in range(0, n, ROWS):
        rows = start + tl.arange(0, ROWS)
        here = rows < n
        scores = dots(x, y, rows, columns, n, m, d, DEPTH).to(tl.float64) * sign
        logs = scores + tl.load(weight + rows, mask=here, other=-float("inf"))[:, None]
        left = tl.full((ROWS, COLUMNS), 1.0, tl.float32)
        if TRIPLETS:
            alone = tl.load(at + rows, mask=here, other=-1)[:, None] == columns[None, :]
            exact = scores + tl.load(apart + rows, mask=here, other=-float("inf"))[:, None]
            logs = tl.where(alone, exact, logs)
            taken = tl.load(v + columns, mask=columns < m, other=-float("inf"))[None, :] - scores
            taken = taken - tl.load(totals + rows, mask=here, other=0.0)[:, None]
            left = 1.0 - tl.exp(tl.minimum(taken, 0.0).to(tl.float32))
            left = tl.where(alone, 1.0, left)
        if WITHIN:
            logs = tl.where(rows[:, None] == columns[None, :], -float("inf"), logs)
        largest = tl.maximum(top, tl.max(logs, 0))
        unit = tl.where(largest == -float("inf"), 0.0, largest)
        shares = tl.exp((logs - unit[None, :]).to(tl.float32)) * left
        total = total * tl.exp(top - unit) + tl.sum(shares, 0).to(tl.float64)
        top = largest
    top = tl.where(top == -float("inf"), 0.0, top)
    tl.store(out + columns, top + tl.log(total), mask=columns < m)


@triton.jit
def mean_kernel(
    x, y, v, at, rests, weights, out,
    n, m, d, sign,
    WITHIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """``Σ_j exp(±s_ij + v_j − rest_i) weights_j`` of every row, without its largest term."""
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rest = tl.load(rests + rows, mask=rows < n, other=0.0)
    place = tl.load(at + rows, mask=rows < n, other=0)
    total = tl.zeros((ROWS,), tl.float64)
    for start in range(0, m, COLUMNS):
        columns = start + tl.arange(0, COLUMNS)
        scores = dots(x, y, rows, columns, n, m, d, DEPTH).to(tl.float64) * sign
        logs = scores + tl.load(v + columns, mask=columns < m, other=0.0)[None, :] - rest[:, None]
        nobody = (columns[None, :] >= m) | (place[:, None] == columns[None, :])
        if WITHIN:
            nobody = nobody | (rows[:, None] == columns[None, :])
        shares = tl.exp(tl.where(nobody, -float("inf"), logs).to(tl.float32)).to(tl.float64)
        weight = tl.load(weights + columns, mask=columns < m, other=0.0)
        total += tl.sum(shares * weight[None, :], 1)
    tl.store(out + rows, total, mask=rows < n)


@triton.jit
def masses(
    scores, of_rows, of_columns, at, rows, columns, n, m,
    TRIPLETS: tl.constexpr, WITHIN: tl.constexpr,
):  # fmt: skip
    """A plan's pairs times weights, and what k = j takes from them (see ``_logs.h``)."""
    here, there = rows < n, columns < m
    left = tl.load(of_rows + 3 * n + rows, mask=here, other=0.0)[:, None]
    right = tl.load(of_columns + 2 * m + columns, mask=there, other=0.0)[None, :]
    logs = scores + tl.load(of_columns + columns, mask=there, other=0.0)[None, :]
    whole = logs + tl.load(of_rows + rows, mask=here, other=0.0)[:, None]
    values = tl.exp(tl.minimum(whole, 1.0).to(tl.float32)).to(tl.float64) * (left + right)
    taken = tl.zeros_like(values)
    if TRIPLETS:
        alone = tl.load(at + rows, mask=here, other=-1)[:, None] == columns[None, :]
        rest = logs + tl.load(of_rows + 2 * n + rows, mask=here, other=0.0)[:, None]
        apart = tl.load(of_rows + 4 * n + rows, mask=here, other=0.0)[:, None]
        rest = tl.where(alone, rest, 0.0)
        exact = tl.exp(rest.to(tl.float32)).to(tl.float64) * (apart + right)
        both = tl.load(of_rows + n + rows, mask=here, other=0.0)[:, None]
        both = both + tl.load(of_columns + m + columns, mask=there, other=0.0)[None, :]
        row = tl.load(of_rows + 5 * n + rows, mask=here, other=0.0)[:, None]
        column = tl.load(of_columns + 3 * m + columns, mask=there, other=0.0)[None, :]
        share = tl.exp(tl.minimum(both, 1.0).to(tl.float32)).to(tl.float64)
        values = tl.where(alone, exact, values)
        taken = tl.where(alone, 0.0, share * (row + column))
    inside = here[:, None] & there[None, :]
    if WITHIN:
        inside = inside & (rows[:, None] != columns[None, :])
    return tl.where(inside, values, 0.0), tl.where(inside, taken, 0.0)


@triton.jit
def plan_kernel(
    x, y, of_rows, of_columns, at, out,
    n, m, d, sign, BOTH: tl.constexpr, TRIPLETS: tl.constexpr, BY_ROW: tl.constexpr,
    WITHIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sums of a plan's pairs times weights, of each row or of each column; of one or both signs."""
    own = tl.program_id(0)
    rows = own * ROWS + tl.arange(0, ROWS)
    columns = own * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS if BY_ROW else COLUMNS,), tl.float64)
    other = total
    for start in range(0, m if BY_ROW else n, COLUMNS if BY_ROW else ROWS):
        if BY_ROW:
            columns = start + tl.arange(0, COLUMNS)
        else:
            rows = start + tl.arange(0, ROWS)
        scores = dots(x, y, rows, columns, n, m, d, DEPTH).to(tl.float64) * sign
        values, taken = masses(
            scores, of_rows, of_columns, at, rows, columns, n, m, TRIPLETS, WITHIN
        )
        total += tl.sum(values - taken, 1 if BY_ROW else 0)
        if BOTH:
            values, taken = masses(
                -scores, of_rows + 6 * n, of_columns + 4 * m, at + n, rows, columns, n, m,
                TRIPLETS, WITHIN,
            )  # fmt: skip
            other += tl.sum(values - taken, 1 if BY_ROW else 0)
    if BY_ROW:
        tl.store(out + rows, total, mask=rows < n)
        if BOTH:
            tl.store(out + n + rows, other, mask=rows < n)
    else:
        tl.store(out + columns, total, mask=columns < m)
        if BOTH:
            tl.store(out + m + columns, other, mask=columns < m)


@triton.jit
def pull_kernel(
    x, y, of_rows, of_columns, at, away, out,
    n, m, d, count, TRIPLETS: tl.constexpr, BY_ROW: tl.constexpr,
    WITHIN: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
    WIDTH: tl.constexpr,
):  # fmt: skip
    """``Σ_j G_ij y_j`` of each row, or ``Σ_i G_ij x_i`` of each column, G the sum of all terms.

    Of triplets every second term is one of the repelling kernel.
    """
    own = tl.program_id(0)
    rows = own * ROWS + tl.arange(0, ROWS)
    columns = own * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.program_id(1) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros((ROWS if BY_ROW else COLUMNS, WIDTH), tl.float32)
    for start in range(0, m if BY_ROW else n, COLUMNS if BY_ROW else ROWS):
        if BY_ROW:
            columns = start + tl.arange(0, COLUMNS)
        else:
            rows = start + tl.arange(0, ROWS)
        scores = dots(x, y, rows, columns, n, m, d, DEPTH).to(tl.float64)
        gradient = tl.zeros((ROWS, COLUMNS), tl.float64)
        for term in range(0, count):
            sign = 1.0 - 2.0 * (term % 2) if TRIPLETS else 1.0
            values, taken = masses(
                scores * sign, of_rows + term * 6 * n, of_columns + term * 4 * m,
                at + term * n, rows, columns, n, m, TRIPLETS, WITHIN,
            )  # fmt: skip
            if TRIPLETS:  # what k = j takes is the same in both of a plan's kernels
                there = tl.load(away + term * n + rows, mask=rows < n, other=-1)[:, None]
                values = values - tl.where(there == columns[None, :], taken, 0.0)
            gradient += values * sign
        part = gradient.to(tl.float32)
        if BY_ROW:
            ends = y + columns[:, None].to(tl.int64) * d + k[None, :]
            end = tl.load(ends, mask=(columns[:, None] < m) & (k[None, :] < d), other=0.0)
            total = tl.dot(part, end, total, input_precision="ieee")
        else:
            ends = x + rows[:, None].to(tl.int64) * d + k[None, :]
            end = tl.load(ends, mask=(rows[:, None] < n) & (k[None, :] < d), other=0.0)
            total = tl.dot(tl.trans(part), end, total, input_precision="ieee")
    if BY_ROW:
        target = out + rows[:, None].to(tl.int64) * d + k[None, :]
        tl.store(target, total, mask=(rows[:, None] < n) & (k[None, :] < d))
    else:
        target = out + columns[:, None].to(tl.int64) * d + k[None, :]
        tl.store(target, total, mask=(columns[:, None] < m) & (k[None, :] < d))


class TritonTiles(LogTiles):
    """Streamed sums over kernels ``exp(±s)`` of float32 embeddings."""

    def __init__(self, similarities: Products, *, within: bool, storage: Storage) -> None:
        super().__init__(similarities, within=within, storage=storage, shard=None)
        self._x = similarities.anchors.float().contiguous()
        self._y = similarities.references.float().contiguous()
        self._sizes = *self.shape, self._x.shape[1]
        self._blocks = {
            "WITHIN": within, "ROWS": _ROWS, "COLUMNS": _COLUMNS, "DEPTH": _DEPTH,
        }  # fmt: skip

    def rows(self, factor: float, v: Tensor) -> Apart:
        """``Σ_j exp(factor · s_ij + v_j)`` of every row."""
        return self._rows(factor, v[None])[0]

    def both_rows(self, factor: float, near: Tensor, far: Tensor) -> tuple[Apart, Apart]:
        """The same of both kernels, in one pass."""
        plus, minus = self._rows(factor, torch.stack([near, far]))
        return plus, minus

    def _rows(self, factor: float, v: Tensor) -> list[Apart]:
        n, number = self.shape[0], len(v)
        index = torch.empty(number, n, dtype=torch.int64, device=self.like.device)
        top, rest = self.like.new_empty(2, number, n).unbind()
        row_kernel[self._grid(0)](
            self._x, self._y, v.contiguous(), index, top, rest, *self._sizes, factor,
            BOTH=number == 2, **self._blocks,
        )  # fmt: skip
        return [Apart(*parts) for parts in zip(index, top, rest, strict=True)]

    def columns(self, side: Side) -> Tensor:
        """Logarithms of the columns' sums without their own scalings, shape (M,)."""
        out = self.like.new_empty(self.shape[1])
        weight, apart = side.exponents
        partner, v = side.partner, side.v if side.partner_v is None else side.partner_v
        at = weight if partner is None else partner.index
        totals = weight if partner is None else partner.finite_total
        places = weight, apart, at, v.contiguous(), totals, out
        column_kernel[self._grid(1)](
            self._x, self._y, *places, *self._sizes, side.factor,
            TRIPLETS=partner is not None, **self._blocks,
        )  # fmt: skip
        return out

    def means(self, factor: float, v: Tensor, sums: Apart, weights: Tensor) -> Tensor:
        """Means of the columns' weights in every row, without the largest term."""
        out = self.like.new_empty(self.shape[0])
        rest = torch.where(sums.rest == -torch.inf, 0.0, sums.rest)
        places = v.contiguous(), sums.index, rest, weights.contiguous(), out
        mean_kernel[self._grid(0)](self._x, self._y, *places, *self._sizes, factor, **self._blocks)
        return out

    def sums(self, term: Term) -> tuple[Tensor, Tensor]:
        """A plan's pairs times weights, summed over columns and over rows."""
        return self._sums([term])[0]

    def both_sums(self, near: Term, far: Term) -> list[tuple[Tensor, Tensor]]:
        """The same of both kernels, in one pass for rows and one for columns."""
        return self._sums([near, far])

    def _sums(self, terms: Sequence[Term]) -> list[tuple[Tensor, Tensor]]:
        of_rows, of_columns, apart = Packed.of(terms)
        at, found = apart[0] if apart else of_rows, []
        for axis in (0, 1):
            out = self.like.new_empty(len(terms), self.shape[axis])
            plan_kernel[self._grid(axis)](
                self._x, self._y, of_rows, of_columns, at, out, *self._sizes,
                terms[0].side.factor, BOTH=len(terms) == 2, TRIPLETS=bool(apart),
                BY_ROW=axis == 0, **self._blocks,
            )  # fmt: skip
            found.append(out)
        return list(zip(*found, strict=True))

    def gradient(self, terms: Sequence[Term]) -> ScoreGradient:
        """The sum of all terms, which is multiplied by the embeddings as it arises."""
        of_rows, of_columns, apart = Packed.of(terms)
        places, pulled = (of_rows, of_columns, *(apart or (of_rows, of_rows))), []
        for axis, side in enumerate((self._x, self._y)):
            with torch.inference_mode(False):  # they become somebody's gradients
                pulled.append(torch.empty_like(side))
            pull_kernel[(*self._grid(axis), triton.cdiv(side.shape[1], _WIDTH))](
                self._x, self._y, *places, pulled[axis], *self._sizes,
                len(terms), TRIPLETS=bool(apart), BY_ROW=axis == 0, WIDTH=_WIDTH,
                **self._blocks,
            )  # fmt: skip
        return PulledGradient(pulled[0], pulled[1], lambda: LogTiles.gradient(self, terms))

    def _grid(self, axis: int) -> tuple[int]:
        return (triton.cdiv(self.shape[axis], (_ROWS, _COLUMNS)[axis]),)
