"""Sums over kernels ``exp(c·s)`` by logarithms, a tile at a time: right for any sharpness.

Nothing is stored but, where there is room, the similarities. Exponents are added up in the wide
dtype and scaled to the largest of their sum, so that nothing under- or overflows; and of a
triplet's row sums the largest term is kept apart, so that nothing cancels (mathematics §2, trust).
At most one term can hold more than half of a row: "all but j" is a harmless difference for every
other j, and for that one the rest, which was summed without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple.distributed import Shard
from tricouple.memory import Loan, Storage, empty_matrix
from tricouple.numeric import Patch, ScoreGradient, on_host, row_blocks
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import finite, log_total
from tricouple.ot.sweeps.kernels import Products, Similarities

# For the compiled module: no column is that of the row's own sample.
_ACROSS = -(2**40)

# Entries of a block of rows that is used for many plans while it is in the cache.
_BLOCK = 1 << 17

# Plans whose gradients the compiled module adds at once, at most (PLANS in _native.c).
_PLANS = 8

Arrays = tuple[Tensor | None, ...]


@dataclass(frozen=True)
class Apart:
    """Logarithms of row sums ``Σ_j exp(c·s_ij + v_j)`` with the largest term apart."""

    index: Tensor  # the column of that term, shape (N,)
    top: Tensor  # its logarithm
    rest: Tensor  # logarithm of the sum of all others

    @cached_property
    def total(self) -> Tensor:
        """Logarithm of the whole sum."""
        return torch.logaddexp(self.top, self.rest)

    @cached_property
    def finite_total(self) -> Tensor:
        """The same, 0 for an empty sum, shape (N, 1)."""
        return finite(self.total[:, None])

    def mean(self, weights: Tensor, of_rest: Tensor) -> Tensor:
        """The mean of the columns' weights, of that without the largest term."""
        parts = (part - finite(self.total) for part in (self.top, self.rest))
        alone, others = (torch.exp(part) for part in parts)
        return alone * weights[self.index] + others * of_rest


class Weights(NamedTuple):
    """What the pairs (i, j) of a plan are multiplied by; absent ones are 0 (see ``_logs.h``)."""

    left: Tensor | None = None  # of each row, shape (N,), of what is summed over all k
    apart: Tensor | None = None  # the same in the column that is kept apart
    row: Tensor | None = None  # of each row, of what k = j excludes
    right: Tensor | None = None  # of each column, shape (M,), added to ``left`` and ``apart``
    column: Tensor | None = None  # of each column, added to ``row``


@dataclass(frozen=True)
class Side:
    """Pairs of a plan: ``exp(own_i + c·s_ij + v_j)``, for triplets times all but j of a partner."""

    factor: float  # c, negative for repelling kernels
    own: Tensor  # log-scalings of the rows
    v: Tensor  # log-scalings of the columns
    # The other kernel's row sums, over the third index; None for plans of pairs.
    partner: Apart | None = None
    partner_v: Tensor | None = None  # log-scalings of that kernel's columns
    other: Tensor | None = None  # the column that the other kernel's pairs keep apart

    @cached_property
    def exponents(self) -> tuple[Tensor, Tensor]:
        """Of the rows: for the sum over all k, and for that without the one kept apart."""
        if self.partner is None:
            return self.own, self.own
        return self.own + self.partner.total, self.own + self.partner.rest

    @cached_property
    def both(self) -> Tensor:
        """Log-scalings of the columns of both kernels, which k = j shares."""
        return self.v if self.partner_v is None else self.v + self.partner_v


@dataclass(frozen=True)
class Term:
    """A part of a score gradient: pairs of a plan times weights."""

    slope: float  # of their score, 1 or −1
    side: Side
    weights: Weights

    @cached_property
    def of_rows(self) -> Tensor:
        """Exponents and weights of the rows, shape (6, N), as ``_logs.h`` has them."""
        total, rest = self.side.exponents
        left, apart, row, *_ = self.weights
        return _stacked(total, self.side.own, rest, left, apart, row)

    @cached_property
    def of_columns(self) -> Tensor:
        """Exponents and weights of the columns, shape (4, M)."""
        return _stacked(self.side.v, self.side.both, self.weights.right, self.weights.column)


def _stacked(first: Tensor, *others: Tensor | None) -> Tensor:
    zero = torch.zeros_like(first)
    return torch.stack([first, *(zero if other is None else other for other in others)])


class Packed(NamedTuple):
    """What sums need of some terms, one after the other."""

    of_rows: Tensor  # shape (T, 6, N)
    of_columns: Tensor  # shape (T, 4, M)
    # Of triplets the columns kept apart, shape (T, N), and those that the other kernel keeps apart.
    apart: tuple[Tensor, ...]

    @classmethod
    def of(cls, terms: Sequence[Term]) -> Packed:
        """Those terms."""
        of_rows = torch.stack([term.of_rows for term in terms])
        of_columns = torch.stack([term.of_columns for term in terms])
        sides = [term.side for term in terms]
        at = [side.partner.index for side in sides if side.partner is not None]
        away = [side.other for side in sides if side.other is not None]
        return cls(of_rows, of_columns, (torch.stack(at), torch.stack(away)) if at else ())


class _Group:
    """Terms with one kernel and one v, as the compiled module wants them (see ``_logs.h``)."""

    def __init__(self, terms: Sequence[Term], dtype: torch.dtype) -> None:
        self.count, self.slope, self.factor = len(terms), terms[0].slope, terms[0].side.factor
        self._packed = Packed.of(terms)
        totals, lefts = self._packed.of_rows[:, 0], self._packed.of_rows[:, 3]
        scale = finite(totals.amax(0))
        shares = torch.exp(totals - scale)
        rights = [k for k, term in enumerate(terms) if term.weights.right is not None]
        gain = shares[rights[0]] if rights else None
        self._scales = _stacked(scale, (shares * lefts).sum(0), gain)
        self._right = self._packed.of_columns[rights[0] if rights else 0, 2].to(dtype)

    def places(self, row: int) -> tuple[int, ...]:
        """Where what the module needs of the rows from this one on begins."""
        of_rows, of_columns, apart_columns = self._packed
        arrays = self._scales, of_rows, *apart_columns
        scales, rows, *apart = (native.address(x) + row * x.element_size() for x in arrays)
        right, columns = native.addresses(self._right, of_columns)
        return scales, right, rows, columns, *(apart or (0, 0))


def _grouped(terms: Sequence[Term]) -> Iterator[list[Term]]:
    """Terms with one kernel and one v, at most one of which has weights ``right``."""
    groups: dict[tuple[float, int], list[Term]] = {}
    for term in terms:
        key = (term.side.factor, id(term.side.v))
        group = groups.setdefault(key, [])
        second = term.weights.right is not None and any(o.weights.right is not None for o in group)
        if second or len(group) == _PLANS:
            yield group
            group = groups[key] = []
        group.append(term)
    yield from groups.values()


class LogTiles:
    """Kernels ``exp(±factor·s)`` of some similarities.

    Args:
        similarities: s; computed in the wide dtype.
        within: Anchors are the references: the diagonal is excluded.
        storage: The similarities are kept if half of its budget allows.
        shard: Processes, each of which has the rows of its own anchors.
    """

    def __init__(
        self, similarities: Similarities, *, within: bool, storage: Storage, shard: Shard | None
    ) -> None:
        self.similarities, self.within = similarities.widened(), within
        self.shape, self.like = similarities.shape, self.similarities.like
        self.shard, (n, m) = shard, self.shape
        self._own = slice(0, n) if shard is None else shard.rows
        n_rows = self._own.stop - self._own.start
        self._compiled = native.compiled is not None and on_host(self.like)
        self.fine, self._scores, self._unit = self.like.dtype, self.like, 1.0
        if self._compiled and isinstance(similarities, Products):
            # Exponentials need no more digits than the batch has, and similarities nine.
            self.fine = similarities.like.dtype
            if self.fine == torch.float32:
                self._unit = similarities.bound() / 2**30
                self._scores = self.like.new_empty(0, dtype=torch.int32)
        self._keep = n_rows * m * self._scores.element_size() <= storage.budget / 2
        self._entries = max(m, storage.tile_entries // 2)
        self._loan: Loan | None = None
        self._matrix: Tensor | None = None

    def release(self) -> None:
        """Give up the similarities until they are needed again."""
        self._loan = self._matrix = None

    def _tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """Similarities in tiles; of the compiled module's type, which is a multiple of the unit."""
        first, n_rows = self._own.start, self._own.stop - self._own.start
        places = row_blocks(n_rows, self.shape[1], self._entries)
        blocks = [slice(first + place.start, first + place.stop) for place in places]
        if self._keep and self._matrix is None and not on_host(self.like):
            # No loan: an accelerator's allocator keeps what was given back.
            room = self.like.new_empty(n_rows, self.shape[1])
            self._matrix = self.similarities.tile(self._own, room)
        if self._matrix is not None:
            kept = self._matrix
            yield from ((block, kept[place]) for block, place in zip(blocks, places, strict=True))
            return
        loan = Loan(1, self._scores, n_rows, self.shape[1]) if self._keep else None
        buffer = self.like.new_empty(places[0].stop if places else 0, self.shape[1])
        for block, place in zip(blocks, places, strict=True):
            tile = self.similarities.tile(block, buffer[: block.stop - block.start])
            if self._unit != 1.0:
                tile.mul_(1 / self._unit).round_()
            tile = tile if loan is None else loan.matrices[0][place].copy_(tile)
            yield block, tile.to(self._scores.dtype)
        if loan is not None:
            self._loan, self._matrix = loan, loan.matrices[0]

    def rows(self, factor: float, v: Tensor) -> Apart:
        """``Σ_j exp(factor · s_ij + v_j)`` of every row."""
        n, m = self.shape
        index = torch.zeros(n, dtype=torch.int64, device=self.like.device)
        top, rest = self.like.new_zeros(2, n).unbind()

        def own(block: slice, thread: int) -> Arrays:
            return v, index[block], top[block], rest[block], work[thread]

        if self._compiled:
            v, work = v.contiguous(), self.like.new_empty(self._n_threads, m)
            self._in_threads(native.compiled.log_rows, factor, own)
        for block, tile in [] if self._compiled else self._tiles():
            logs = self._excluded(block, torch.add(v, tile, alpha=factor))
            largest, places = logs.max(1, keepdim=True)
            others = torch.logsumexp(logs.scatter_(1, places, -torch.inf), 1)
            top[block], index[block], rest[block] = largest[:, 0], places[:, 0], others
        if self.shard is not None:  # the rows of the others are zeros
            place, top, rest = self.shard.sum_(torch.stack([index.to(top.dtype), top, rest]))
            index = place.long()
        return Apart(index, top, rest)

    def both_rows(self, factor: float, near: Tensor, far: Tensor) -> tuple[Apart, Apart]:
        """Row sums of both kernels."""
        return self.rows(factor, near), self.rows(-factor, far)

    def columns(self, side: Side) -> Tensor:
        """Logarithms of the columns' sums without their own scalings, shape (M,)."""
        m = self.shape[1]
        weight, apart_weight = side.exponents
        partner = side.partner
        v = side.v if side.partner_v is None else side.partner_v
        threads = self._n_threads if self._compiled else 1
        peak = self.like.new_full((threads, m), torch.finfo(self.like.dtype).min)
        sums = self.like.new_zeros(threads, m)

        def own(block: slice, thread: int) -> Arrays:
            apart, less = (
                (None, None) if partner is None else (partner.index[block], partner.total[block])
            )
            rows = weight[block], apart, apart_weight[block], v, less
            return *rows, peak[thread], sums[thread], work[thread]

        if self._compiled:
            work = self.like.new_empty(threads, 19 * m)
            self._in_threads(native.compiled.log_columns, side.factor, own)
            return log_total(torch.logsumexp(peak + sums.log(), 0), self.shard)
        logs: Tensor | None = None
        for block, tile in self._tiles():
            terms = torch.add(weight[block, None], tile, alpha=side.factor)
            if partner is not None:
                shares = torch.sub(v, tile, alpha=side.factor).sub_(partner.finite_total[block])
                terms.add_(shares.exp_().clamp_(max=1.0).neg_().log1p_())
                at = partner.index[block, None]
                exact = torch.add(apart_weight[block, None], tile.gather(1, at), alpha=side.factor)
                terms.scatter_(1, at, exact)
            found = torch.logsumexp(self._excluded(block, terms), 0)
            logs = found if logs is None else torch.logaddexp(logs, found)
        if logs is None:  # a process without anchors
            logs = self.like.new_full((m,), -torch.inf)
        return log_total(logs, self.shard)

    def means(self, factor: float, v: Tensor, sums: Apart, weights: Tensor) -> Tensor:
        """Means of the columns' weights in every row, without the largest term."""
        out = self.like.new_zeros(self.shape[0])

        def own(block: slice, _: int) -> Arrays:
            return v, sums.index[block], sums.rest[block], weights, out[block]

        if self._compiled:
            v, weights = v.contiguous(), weights.contiguous()
            self._in_threads(native.compiled.log_means, factor, own)
        for block, tile in [] if self._compiled else self._tiles():
            logs = torch.add(v, tile, alpha=factor).sub_(finite(sums.rest[block, None]))
            logs = self._excluded(block, logs)
            out[block] = logs.scatter_(1, sums.index[block, None], -torch.inf).exp_() @ weights
        return out if self.shard is None else self.shard.sum_(out)

    def sums(self, term: Term) -> tuple[Tensor, Tensor]:
        """A plan's pairs times weights, summed over columns and over rows."""
        n, m = self.shape
        side, of_rows, of_columns = term.side, term.of_rows, term.of_columns
        threads = self._n_threads if self._compiled else 1
        rows, columns = self.like.new_zeros(n), self.like.new_zeros(threads, m)

        def own(block: slice, thread: int) -> Arrays:
            apart = None if side.partner is None else side.partner.index[block]
            ends = apart, rows[block], columns[thread], work[thread]
            return of_rows[0, block], of_columns, *ends

        if self._compiled:
            work = self.like.new_empty(threads, 5 * m)
            self._in_threads(native.compiled.log_plan, side.factor, own, sizes=(n,))
        for block, tile in [] if self._compiled else self._tiles():
            values, taken = self._pairs(term, block, tile)
            values = values if taken is None else values.sub_(taken)
            rows[block] = values.sum(1)
            columns[0] += values.sum(0)
        if self.shard is None:
            return rows, columns.sum(0)
        of_rows, of_columns = self.shard.sum_(torch.cat([rows, columns.sum(0)])).split([n, m])
        return of_rows, of_columns

    def both_sums(self, near: Term, far: Term) -> list[tuple[Tensor, Tensor]]:
        """The same of the pairs of both kernels."""
        return [self.sums(near), self.sums(far)]

    def gradient(self, terms: Sequence[Term]) -> ScoreGradient:
        """The sum of all terms, in tiles that the next one overwrites."""
        n, m = self.shape
        height = min(n, max(1, self._entries // m))
        out = empty_matrix(self.like.new_empty(0, dtype=self.fine), height, m)
        groups = [_Group(few, self.fine) for few in _grouped(terms)] if self._compiled else []
        for rows, tile in self._tiles():
            total = out[: rows.stop - rows.start].zero_()
            if self._compiled:
                self._add_groups(groups, rows, tile, total)
            for term in [] if self._compiled else terms:
                values, taken = self._pairs(term, rows, tile)
                if taken is not None and term.side.other is not None:
                    # What k = j takes is the same in both of a plan's kernels.
                    away = term.side.other[rows, None]
                    total.scatter_add_(1, away, taken.gather(1, away).mul_(-term.slope))
                total.add_(values, alpha=term.slope)
            yield Patch(rows, total)

    def _add_groups(
        self, groups: Sequence[_Group], rows: slice, tile: Tensor, total: Tensor
    ) -> None:
        """All groups in turn on a few rows at a time, which stay in the cache."""
        (n, m), shares = self.shape, self._shares(tile)
        few = row_blocks(shares[0].stop, m, _BLOCK)  # of each share; the last may be empty
        calls = []
        for start, own in ((block.start, share) for share in shares for block in few):
            first, last = (min(own.start + start + k, own.stop) for k in (0, few[0].stop))
            here = slice(rows.start + first, rows.start + last)
            begin, end = native.addresses(tile[first:], total[first:])
            for group in groups:
                places, numbers = (begin, *group.places(here.start), end), (n, group.count)
                calls.append(self._call(here, group.factor, places, numbers, (group.slope,)))
        native.shared(native.compiled.log_gradient, calls, len(calls) // len(shares))

    def _pairs(self, term: Term, block: slice, tile: Tensor) -> tuple[Tensor, Tensor | None]:
        """What the compiled module does: pairs times weights, and what k = j takes from them."""
        side, (left, apart, row, right, column) = term.side, term.weights
        total, rest = side.exponents
        logs = torch.add(side.v, tile, alpha=side.factor)
        values = (logs + total[block, None]).clamp_(max=1.0).exp_()
        values.mul_(_outer(left, right, block))
        taken = None
        if side.partner is not None:
            taken = torch.add(side.own[block, None], side.both).clamp_(max=1.0).exp_()
            taken.mul_(_outer(row, column, block))
            at = side.partner.index[block, None]
            exact = logs.gather(1, at).add_(rest[block, None]).exp_()
            alone = None if right is None else right[at]
            there = None if apart is None else apart[block, None]
            values.scatter_(1, at, exact.mul_(_sum(there, alone)))
            taken.scatter_(1, at, 0.0)
        for part in (values, taken):
            if self.within and part is not None:
                part.diagonal(block.start).zero_()
        return values, taken

    def _call(
        self,
        block: slice,
        factor: float,
        places: Sequence[int],
        sizes: Sequence[int] = (),
        reals: Sequence[float] = (),
    ) -> tuple[float, ...]:
        """What the compiled module has to know to do the rows of a tile."""
        shape = (block.stop - block.start, self.shape[1], *sizes)
        diagonal = block.start if self.within else _ACROSS
        numbers = (*shape, diagonal, factor * self._unit, *reals)
        return (self.fine.itemsize, *numbers, *places)

    @property
    def _n_threads(self) -> int:
        return max(1, torch.get_num_threads())

    def _in_threads(
        self,
        function: Any,
        factor: float,
        own: Callable[[slice, int], Arrays],
        sizes: Sequence[int] = (),
    ) -> None:
        """Share the rows of each tile among the threads, which have arrays of their own."""
        for rows, tile in self._tiles():
            calls, kept = [], []  # until all are done
            for thread, part in enumerate(self._shares(tile)):
                block = slice(rows.start + part.start, rows.start + part.stop)
                kept.append((tile[part], *own(block, thread)))
                places = [0 if array is None else native.address(array) for array in kept[-1]]
                calls.append(self._call(block, factor, places, sizes))
            native.shared(function, calls)

    def _shares(self, tile: Tensor) -> list[slice]:
        step = -(-len(tile) // self._n_threads)
        return [slice(start, min(start + step, len(tile))) for start in range(0, len(tile), step)]

    def _excluded(self, block: slice, logs: Tensor) -> Tensor:
        if self.within:
            logs.diagonal(block.start).fill_(-torch.inf)
        return logs


def _outer(of_rows: Tensor | None, of_columns: Tensor | None, block: slice) -> Tensor | float:
    """Weights of some rows plus those of all columns."""
    return _sum(None if of_rows is None else of_rows[block, None], of_columns)


def _sum(one: Tensor | None, other: Tensor | None) -> Tensor | float:
    if one is None:
        return 0.0 if other is None else other
    return one if other is None else one + other
