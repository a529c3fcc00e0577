"""Kernels of the terms of ``log_sigmoid``, and the plans that they are scaled to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tricouple.distributed import Shard
from tricouple.memory import Loan, Storage
from tricouple.numeric import Patch, ScoreGradient, exponential_, row_blocks, wide_dtype
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Masses, Solution
from tricouple.ot.sweeps.kernels import Factors, Kernels, Matrix, Products, Similarities
from tricouple.ot.sweeps.log_sigmoid import FEW, LEVELS, Blocks, Rule
from tricouple.ot.sweeps.triplet import ScaledTriplet
from tricouple.ot.sweeps.triplet_adjoint import (
    ATTRACT,
    REPEL,
    Between,
    Exclusion,
    OwnExclusion,
    OwnHistory,
    ScaledTripletHistory,
)

# A rate where B is 0 in any dtype, and what stands for x where there is no entry.
_RATE, _NOWHERE = 1e3, 1e30

# Entries of a tile: all terms are computed while it is in the cache.
_TILE = 1 << 18

# Kernels, and the parts of ``Between``, as the compiled module knows them.
_ANCHORS = ("sums", "scale", "partner", "total", "given", "extra", "weights")
_KINDS = {ATTRACT: 1, REPEL: 0, None: -1}


class _Block(NamedTuple):
    """Some nodes of some rows."""

    first: int  # index of the first node
    g: Tensor  # G, shape (rows, M)
    # Node, its place in the block, B and rates, which the next term overwrites.
    terms: Iterator[tuple[int, int, Tensor, Tensor]]


class TermKernels(Kernels):
    """A and B of all terms; a row has the nodes of its own range of x.

    Args:
        similarities: s, shape (N, M).
        factor: 1/τ, so that x = s/τ.
        rule: Step and ends.
        blocks: How the nodes are taken together.
        within: Exclude the diagonal.
        storage: Whether s is stored, or recomputed a tile at a time. The factors never are.
        shard: Processes, each of which has the rows of its own anchors and of no others.
    """

    def __init__(
        self,
        similarities: Similarities,
        factor: float,
        rule: Rule,
        blocks: Blocks,
        *,
        within: bool,
        storage: Storage,
        shard: Shard | None = None,
    ) -> None:
        self.shard, self.first = shard, 0  # the first row's sample
        if shard is not None:
            assert isinstance(similarities, Products)
            self.first = shard.rows.start
            similarities = Products(similarities.anchors[shard.rows], similarities.references)
        self.similarities, self.factor, self.rule, self.blocks = similarities, factor, rule, blocks
        self.within, self.shape, self.like = within, similarities.shape, similarities.like
        self.log_excluded = -rule.power * math.log(2)
        self._tile_entries = min(storage.tile_entries, max(_TILE, similarities.shape[1]))
        self._loan: Loan | None = None
        if not storage.streamed and not isinstance(similarities, Matrix):
            self._loan = Loan(1, self.like, *self.shape)
        self._tops, lowest = self._ends()
        wide = wide_dtype(self.like.device)
        self._highest = self._tops.to(wide) * factor
        self._starts, self._counts = rule.nodes(lowest.to(wide) * factor, self._highest)
        n, m = self.shape
        self.n_terms = int(self._counts.max()) if n else 1
        self.row_shifts = [self._highest.new_zeros(n)]
        self.column_shifts = [self._highest.new_zeros(m)] * 2

    def release(self) -> None:
        """Give the stored similarities back; from now on tiles are recomputed."""
        self._loan = None

    def _ends(self) -> tuple[Tensor, Tensor]:
        """The largest and the smallest similarity of every row; fills what is stored."""
        n, m = self.shape
        tops, lows = self.like.new_empty(2, n).unbind()
        blocks = row_blocks(n, m, self._tile_entries)
        height = blocks[0].stop if blocks else 0
        buffer = None if self._loan else self.like.new_empty(height, m)
        for block in blocks:
            room = self._loan.matrices[0][block] if self._loan else buffer
            assert room is not None
            tile = self.similarities.tile(block, room[: block.stop - block.start])
            for ends, out, nothing in (
                (torch.amax, tops, -torch.inf),
                (torch.amin, lows, torch.inf),
            ):
                if self.within:
                    tile.diagonal(self.first + block.start).fill_(nothing)
                ends(tile, 1, out=out[block])
            if self.within:
                tile.diagonal(self.first + block.start).copy_(tops[block])
        return tops, lows

    def tiles(self) -> Iterator[tuple[slice, Tensor]]:
        """All rows of s, from the first to the last; what is stored in one tile."""
        n, m = self.shape
        if not n:
            return
        if self._loan is not None:
            yield slice(0, n), self._loan.matrices[0]
        elif isinstance(self.similarities, Matrix):
            yield slice(0, n), self.similarities.matrix()
        else:
            blocks = row_blocks(n, m, self._tile_entries)
            buffer = self.like.new_empty(blocks[0].stop, m)
            for block in blocks:
                yield block, self.similarities.tile(block, buffer[: block.stop - block.start])

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""
        sums = weights.new_zeros(self.n_terms, self.shape[0])
        for rows, tile in self.tiles():
            self._rows(which, rows, tile, weights.contiguous(), sums)
        return sums

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""
        received = self._highest.new_zeros(self.shape[1])
        for rows, tile in self.tiles():
            self._columns(which, rows, tile, weights.contiguous(), received)
        return self._total(received).to(weights.dtype)

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Both in one pass over the tiles."""
        sums = weights.new_zeros(self.n_terms, self.shape[0])
        received = self._highest.new_zeros(self.shape[1])
        for rows, tile in self.tiles():
            self._rows(near, rows, tile, weights.contiguous(), sums)
            sums[:, rows] = between(rows, sums[:, rows])
            self._columns(far, rows, tile, sums, received)
        return self._total(received).to(weights.dtype)

    def _total(self, received: Tensor) -> Tensor:
        """What the columns receive from the anchors of all processes."""
        return received if self.shard is None else self.shard.sum_(received)

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Chain the gradients of all factors with their slopes; a tile is valid until the next."""
        for rows, tile in self.tiles():
            for part in row_blocks(len(tile), self.shape[1], self._tile_entries):
                own = slice(rows.start + part.start, rows.start + part.stop)
                samples = slice(self.first + own.start, self.first + own.stop)
                yield Patch(samples, self._slopes(own, tile[part], factors))

    def _terms(self, rows: slice, tile: Tensor) -> Iterator[_Block]:
        """The factors of some rows, block by block and term by term."""
        rule, (right, ceiling, scales, _) = self.rule, self.blocks
        x = (tile - self._tops[rows, None]).mul_(self.factor)
        if self.within:
            x.diagonal(self.first + rows.start).fill_(_NOWHERE)
        size, count = len(scales), int(self._counts[rows].max())

        def heights(node: int) -> Tensor:  # v_q + the largest x, shape (rows, 1)
            nodes = (self._starts[rows] + node).to(self._highest.dtype)
            return (nodes * rule.step + self._highest[rows])[:, None]

        def terms(first: int) -> Iterator[tuple[int, int, Tensor, Tensor]]:
            for chain in range(min(rule.splits, size, count - first)):
                rates = (x + heights(first + chain).to(x.dtype)).clamp_(max=math.log(_RATE)).exp_()
                b = exponential_(-rates)
                for node in range(first + chain, min(first + size, count), rule.splits):
                    yield node, node - first, b, rates
                    b.mul_(b)
                    rates.mul_(2)

        for first in range(0, count, size):
            base = ceiling + rule.power * (heights(first) - right)
            g = exponential_(torch.add(base.to(x.dtype), x, alpha=rule.power).clamp_(max=ceiling))
            yield _Block(first, g, terms(first))

    def _scaled(self, which: int, left: Tensor, block: _Block) -> tuple[Tensor, Tensor]:
        """Weights (…, Q, rows) of a block's nodes in units of the largest of a row; these units."""
        scales = self._highest.new_tensor(self.blocks.scales if which == ATTRACT else [1.0])
        own = left[..., block.first : block.first + len(self.blocks.scales), :]
        own = own.to(scales.dtype) * scales[: own.shape[-2], None]
        top = own.abs().amax(tuple(range(own.ndim - 1))).clamp_min(torch.finfo(own.dtype).tiny)
        return (own / top).to(left.dtype), top

    def _rows(self, which: int, rows: slice, tile: Tensor, weights: Tensor, out: Tensor) -> None:
        """Row sums of a tile."""
        top = weights.abs().amax().clamp_min(torch.finfo(weights.dtype).tiny)
        for block in self._terms(rows, tile):
            left = weights / top
            if which == ATTRACT:
                left = left * block.g
            for node, place, b, _ in block.terms:
                sums = (torch.mv(b, left) if left.ndim == 1 else (b * left).sum(1)) * top
                if which == ATTRACT:
                    sums = (sums.to(self._highest.dtype) * self.blocks.scales[place]).to(b.dtype)
                out[node, rows] = torch.where(node < self._counts[rows], sums, 0.0)

    def _columns(
        self, which: int, rows: slice, tile: Tensor, weights: Tensor, received: Tensor
    ) -> None:
        """Add the column sums of a tile."""
        for block in self._terms(rows, tile):
            left, top = self._scaled(which, weights[:, rows], block)
            total = torch.zeros_like(tile)
            for _, place, b, _ in block.terms:
                total.addcmul_(b, left[place, :, None])
            if which == ATTRACT:
                total.mul_(block.g)
            received.addmv_(total.to(received.dtype).T, top)

    def _slopes(self, rows: slice, tile: Tensor, factors: Sequence[Factors]) -> Tensor:
        """The gradient of some rows with respect to x: slopes m − e^{x+v} of A, −e^{x+v} of B."""
        gradient = torch.zeros_like(tile)
        for which, (left, right) in enumerate(factors):
            for block in self._terms(rows, tile):
                own, top = self._scaled(which, left[..., rows], block)
                total = torch.zeros_like(tile)
                for _, place, b, rates in block.terms:
                    slope = (self.rule.power if which == ATTRACT else 0.0) - rates
                    total.addcmul_(own[:, place].T @ right, slope.mul_(b))
                if which == ATTRACT:
                    total.mul_(block.g)
                gradient += (total.to(top.dtype) * top[:, None]).to(gradient.dtype)
        return gradient


class Share(NamedTuple):
    """Some rows of a tile, as the compiled module wants to know of them."""

    begin: int  # the first row
    place: tuple[int, int, int, int]  # rows, columns, column of the first row's own sample, N
    arrays: list[int]  # addresses of the rule, the entries, and the rows' tops and nodes
    work: Tensor


class NativeTermKernels(TermKernels):
    """The same in the compiled module, whose threads share the rows of a tile."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        rule, blocks = self.rule, self.blocks
        size = len(blocks.scales)
        table = [self.factor, rule.power, rule.step, rule.splits, size, blocks.ceiling]
        self._table = torch.tensor(
            [*table, blocks.right, *blocks.scales], dtype=torch.float64, device="cpu"
        )
        self._lanes = 64 // self.like.element_size()
        self._width = -(-self.shape[1] // self._lanes) * self._lanes
        self._shares: tuple[tuple[int, ...], list[Share]] = ((), [])

    def shares(self, rows: slice, tile: Tensor, room: int) -> list[Share]:
        """The rows of a tile, with room for so many numbers beyond a few rows of them."""
        wanted = (rows.start, rows.stop, native.address(tile), room, torch.get_num_threads())
        if self._shares[0] == wanted:  # as in the pass before
            return self._shares[1]
        number = 1 if tile.numel() < FEW else min(len(tile), max(1, torch.get_num_threads()))
        ends = [rows.start + len(tile) * k // number for k in range(number + 1)]
        shares = []
        for begin, end in pairwise(ends):
            nodes = (part[begin:end] for part in (self._tops, self._starts, self._counts))
            work = self.like.new_empty(8 * self._width + room)
            sample = self.first + begin if self.within else -1
            place = (end - begin, self.shape[1], sample, self.shape[0])
            arrays = (self._table, tile[begin - rows.start :], *nodes)
            shares.append(Share(begin, place, native.addresses(*arrays), work))
        self._shares = wanted, shares
        return shares

    def row_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_j kernel_qij weights_j``, shape (Q, N)."""
        sums = weights.new_empty(self.n_terms, self.shape[0])
        self._pass(which, None, weights, sums)
        return sums

    def column_sums(self, which: int, weights: Tensor) -> Tensor:
        """``Σ_qi kernel_qij weights_qi``, shape (M,)."""
        return self._pass(None, which, None, *[None] * (len(_ANCHORS) - 1), weights.contiguous())

    def through(
        self, near: int, far: int, weights: Tensor, between: Callable[[slice, Tensor], Tensor]
    ) -> Tensor:
        """Both in one pass, in which an entry's exponentials are taken once."""
        assert isinstance(between, Between)
        return self._pass(near, far, weights, *(getattr(between, name) for name in _ANCHORS))

    def _pass(
        self, near: int | None, far: int | None, weights: Tensor | None, *anchors: Tensor | None
    ) -> Tensor:
        """Row sums of one kernel and column sums of another, in one pass (``term_pass``)."""
        like, chains = self.like, -(-self.n_terms // len(self.blocks.scales)) * self.rule.splits
        size, kinds = like.element_size(), [_KINDS[kind] for kind in (near, far)]
        # Numbers and terms of anchors, which are nowhere for what is left out.
        places = [0 if part is None else native.address(part) for part in anchors]
        places += [0] * (len(_ANCHORS) - len(places))
        weights = weights if weights is None else weights.contiguous()
        columns = 0 if weights is None else native.address(weights)
        total = self._highest.new_zeros(self.shape[1])
        room = chains * self._width + LEVELS * self.rule.splits
        for rows, tile in self.tiles():
            shares, calls = self.shares(rows, tile, room), []
            received = total.new_zeros(len(shares), len(total))
            for share, sums in zip(shares, received, strict=True):
                own = (place and place + share.begin * size for place in places)
                ends = native.addresses(sums, share.work)
                numbers = (size, *share.place, self.n_terms, *kinds)
                calls.append((*numbers, *share.arrays, columns, *own, *ends))
            native.shared(native.compiled.term_pass, calls)
            total += received.sum(0)
        return total if far is None else self._total(total).to(like.dtype)

    def _slopes(self, rows: slice, tile: Tensor, factors: Sequence[Factors]) -> Tensor:
        size, m = tile.element_size(), self.shape[1]
        ranks = [len(left) for left, _ in factors]
        lefts = [left[..., rows].permute(2, 0, 1).contiguous() for left, _ in factors]
        rights = [
            nn.functional.pad(right, (0, self._width - m))
            .unflatten(1, (-1, self._lanes))
            .transpose(0, 1)
            .contiguous()
            for _, right in factors
        ]
        gradient = torch.empty_like(tile)
        out, a, b, right_a, right_b = native.addresses(gradient, *lefts, *rights)

        calls = []
        for share in self.shares(rows, tile, self._width + sum(ranks) * LEVELS * self.rule.splits):
            begin = (share.begin - rows.start) * size
            own_a, own_b = (begin * rank * self.n_terms for rank in ranks)
            ends = a + own_a, right_a, b + own_b, right_b, out + begin * m
            numbers = (size, *share.place[:3], self.n_terms, *ranks)
            calls.append((*numbers, *share.arrays, *ends, native.address(share.work)))
        native.shared(native.compiled.term_slopes, calls)
        return gradient


class LogSigmoidTriplet(ScaledTriplet):
    """Entropic three-marginal transport with log-sigmoid ψ."""

    kernels: TermKernels

    @cached_property
    def exclusion(self) -> Exclusion:
        """What j ≠ k takes away."""
        if self.shard is None:
            return Exclusion(self.kernels, within=self.within)
        return OwnExclusion(self.kernels, self.shard, within=self.within)

    def solve(self, masses: Masses, n_iters: int, tol: float | None) -> Solution | None:
        """Sweep; None when the result cannot be trusted."""
        if self.shard is not None:
            masses = masses.of(self.shard.rows, slice(None), slice(None))
        solution = super().solve(masses, n_iters, tol)
        if solution is None:
            return None
        assert isinstance(solution.history, ScaledTripletHistory)
        a, b, h, *_ = solution.history.scalings
        wide = wide_dtype(a.device)
        # What no entry was ever larger than, against the marginal that it is part of.
        totals = self.exclusion.total(a.to(wide)), b.to(wide).sum(1), h.to(wide).sum(1)
        sums = [total.amax().log() for total in totals]
        shares = zip((a, b, h), masses.inverses, strict=True)
        tops = [
            torch.amax(values * inverse).to(wide).log() if len(inverse) else sums[0]
            for values, inverse in shares
        ]
        total = torch.stack(sums).sum()
        worst = torch.stack([total - own + top for own, top in zip(sums, tops, strict=True)]).amax()
        lost = float(worst) + self.kernels.blocks.log_lost
        if not self.agreed(lost <= math.log(torch.finfo(self.dtype).eps)):
            return None
        if self.shard is None:
            return solution
        anchors, *others = solution.potentials.split(masses.sizes)
        potentials = torch.cat([self.shard.gather(anchors, self.shard.anchors), *others])
        history = OwnHistory(solution.history, self.shard)
        return Solution(self, potentials, history.plan, history, solution.n_sweeps)
