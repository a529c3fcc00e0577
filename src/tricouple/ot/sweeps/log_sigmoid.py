"""The log-sigmoid kernel as a short sum of positive separable terms (mathematics §3 and §10).

With ψ(t) = log(1 + e^{−t}) the kernel is ``K = σ(x − y)^m``, x = s_ij/τ, y = s_ik/τ, m = 1/ε.
Writing ``(e^x + e^y)^{−m}`` as a Gamma integral over v = log(rate) gives

    K = ∫ exp(m(x + v) − e^{x+v}) · exp(−e^{y+v}) dv / Γ(m),

a function of x times a function of y for every v. The trapezoid rule turns the integral into a sum
over nodes v_q = h·q:

    K ≈ Σ_q A_q(x) B_q(y),    B_q(y) = exp(−e^{y + v_q}),    A_q(x) = h/Γ(m) e^{m(x + v_q)} B_q(x).

By Poisson's formula its relative error does not depend on x and y, and falls exponentially with
the step; the ends are where the tails of a log-Gamma law are below the tolerance.

The step is log(2)/p for a whole p, so that ``B_{q+p} = B_q²``: of the Q factors of an entry p are
exponentials and the others come by squaring, while they are used. Nothing of size Q·N² is stored.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
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

# Squarings of one exponential, and one: each doubles the error of rounding. _log_sigmoid.h unrolls
# as many.
LEVELS = 12

# A rate where B is 0 in any dtype, and what stands for x where there is no entry.
_RATE, _NOWHERE = 1e3, 1e30

# Logarithm of what may be lost of a kernel's entry, which is at most 1.
_LOST = -60.0

# Entries of a tile: all terms are computed while it is in the cache.
_TILE = 1 << 18

# Kernels, and the parts of ``Between``, as the compiled module knows them.
_ANCHORS = ("sums", "scale", "partner", "total", "given", "extra", "weights")
_KINDS = {ATTRACT: 1, REPEL: 0, None: -1}

# Below this many entries a second thread costs more than it saves.
_FEW = 1 << 14


@dataclass(frozen=True)
class Rule:
    """Nodes v_q = h·q for a tolerance."""

    power: float  # m = 1/ε
    splits: int  # p = log(2)/h
    left: float  # the lower end of the log-Gamma law
    right: float  # the upper end

    @property
    def step(self) -> float:
        """H, with B_{q+p} = B_q²."""
        return math.log(2) / self.splits

    def nodes(self, lowest: Tensor, highest: Tensor) -> tuple[Tensor, Tensor]:
        """The first node and the number of nodes for x between these ends."""
        # v + log(e^x + e^y) follows the log-Gamma law; e^x + e^y is between 2e^lowest, 2e^highest.
        first = torch.floor((self.left - math.log(2) - highest) / self.step)
        last = torch.ceil((self.right - math.log(2) - lowest) / self.step)
        return first.long(), (last - first).long() + 1


@lru_cache(maxsize=64)
def rule_of(power: float, tolerance: float) -> Rule:
    """Choose step and ends from the tolerance on the kernel's relative error.

    Args:
        power: m = 1/ε.
        tolerance: Relative error of the kernel.
    """
    left = _quantile(power, tolerance / 8, upper=False)
    right = _quantile(power, tolerance / 8, upper=True)
    splits = 1
    # Slopes have somewhat larger errors than values: the step leaves room for them.
    while trapezoid_error(power, math.log(2) / splits) > tolerance / 32:
        splits += 1
    return Rule(power, splits, left, right)


def trapezoid_error(power: float, step: float) -> float:
    """The rule's relative error where its nodes fall worst, ``2 Σ_k |Γ(m + 2πik/h)| / Γ(m)``.

    Example:
        >>> 1e-8 < trapezoid_error(2.0, 0.5) < 1e-6
        True
    """
    sizes = (_log_gamma(complex(power, 2 * math.pi * k / step)) for k in range(1, 33))
    return 2 * sum(math.exp(size - math.lgamma(power)) for size in sizes)


def _log_gamma(z: complex) -> float:
    """``log |Γ(z)|`` for Re z > 0: Stirling's series, far enough to the right to be exact."""
    shift = sum(cmath.log(z + n) for n in range(12))
    z += 12
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5) - 1 / (1680 * z**7)
    return ((z - 0.5) * cmath.log(z) - z + math.log(2 * math.pi) / 2 + series - shift).real


def _quantile(power: float, mass: float, *, upper: bool) -> float:
    """Where the log-Gamma law has only ``mass`` beyond."""
    on_host = torch.empty(0, dtype=torch.float64, device="cpu")
    shape = on_host.new_tensor(power)
    tail = torch.special.gammaincc if upper else torch.special.gammainc
    centre = math.log(power)
    near, far = centre, centre + (60.0 if upper else -60.0 / min(1.0, power))
    for _ in range(80):
        middle = (near + far) / 2
        beyond = float(tail(shape, on_host.new_tensor(math.exp(middle))))
        near, far = (middle, far) if beyond > mass else (near, middle)
    return far


@dataclass(frozen=True)
class LogSigmoidTerms:
    """``K ≈ Σ_q exp(attract_q(x) + repel_q(y))``, one term for each node."""

    power: float  # m = 1/ε
    nodes: Sequence[float] | Tensor  # the abscissae v_q
    step: float  # their distance

    def attract(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of a term's factor in x."""
        constant = math.log(self.step) - math.lgamma(self.power)
        return self.power * (x + node) - torch.exp(x + node) + constant

    def repel(self, y: Tensor, node: float | Tensor) -> Tensor:
        """Logarithm of a term's factor in y."""
        return -torch.exp(y + node)

    def attract_slope(self, x: Tensor, node: float | Tensor) -> Tensor:
        """Derivative of ``attract``."""
        return self.power - torch.exp(x + node)

    def ends(self, x: Tensor, nodes: Tensor) -> Tensor:
        """Both logarithms at some nodes, shape (q, 1, 1), from the same rates."""
        rates = torch.exp(x + nodes)
        constant = math.log(self.step) - math.lgamma(self.power)
        near = torch.add(self.power * nodes + constant, x, alpha=self.power).sub_(rates)
        return torch.stack([near, rates.neg_()])

    def force(self, near: Tensor, far: Tensor, ends: Tensor) -> Tensor:
        """Slopes are m − rate and −rate."""
        falling = ((near + far) * ends[1]).sum(0)
        return falling.add_(near.sum(0), alpha=self.power)


def log_sigmoid_terms(
    power: float, lowest: float, highest: float, tolerance: float
) -> LogSigmoidTerms:
    """The terms for all x and y in a range.

    Args:
        power: m = 1/ε.
        lowest: The smallest s/τ of the batch.
        highest: The largest.
        tolerance: Relative error of the kernel.

    Example:
        >>> terms = log_sigmoid_terms(2.0, -1.0, 1.0, 1e-6)
        >>> x, y = torch.tensor(0.3).double(), torch.tensor(-0.5).double()
        >>> total = sum(torch.exp(terms.attract(x, v) + terms.repel(y, v)) for v in terms.nodes)
        >>> bool((total / torch.sigmoid(x - y) ** 2 - 1).abs() < 1e-6)
        True
    """
    rule = rule_of(power, tolerance)
    first = math.floor((rule.left - math.log(2) - highest) / rule.step)
    last = math.ceil((rule.right - math.log(2) - lowest) / rule.step)
    nodes = tuple(rule.step * q for q in range(first, last + 1))
    return LogSigmoidTerms(power, nodes, rule.step)


def terms_on_device(
    power: float, scores: Tensor, reach: float, tolerance: float
) -> LogSigmoidTerms:
    """The terms for scores that nobody reads.

    Their number is that of the widest range of scores that is allowed for; where they begin the
    device finds out. Scores that differ by more make them NaN, and so the loss.

    Args:
        power: m = 1/ε.
        scores: s/τ, shape (N, M).
        reach: Scores differ by at most twice as much.
        tolerance: Relative error of the kernel.
    """
    rule = rule_of(power, tolerance)
    number = math.ceil((rule.right - rule.left + 2 * reach) / rule.step) + 2
    lowest, highest = torch.aminmax(scores)
    first, needed = rule.nodes(lowest, highest)
    places = (first + torch.arange(number, device=scores.device)).to(scores.dtype)
    nodes = torch.where(needed <= number, places * rule.step, torch.nan)
    return LogSigmoidTerms(power, nodes, rule.step)


class Blocks(NamedTuple):
    """How the nodes of a row are taken together: A_q = scale_q · G · B_q within a block.

    ``G = exp(min(ceiling, ceiling + m(x + v − right)))``, v the block's first node: to the right of
    that end B makes nothing of A, whatever G is.
    """

    right: float  # the upper end of the log-Gamma law in all digits of the dtype
    ceiling: float  # the largest log G, so that sums do not overflow
    scales: tuple[float, ...]  # for each node of a block
    log_lost: float  # logarithm of what an underflow of G takes from K, at most

    @classmethod
    @lru_cache(maxsize=64)
    def of(cls, rule: Rule, tolerance: float, dtype: torch.dtype, n_columns: int) -> Blocks | None:
        """The longest that this dtype can hold, None if it can hold none."""
        info = torch.finfo(dtype)
        ceiling, floor = math.log(info.max) - 2 - math.log(n_columns), math.log(info.tiny)
        right = min(_quantile(rule.power, info.eps, upper=True), math.log(-floor))
        constant = math.log(rule.step) - math.lgamma(rule.power) + rule.power * right
        # Weights of a block are in units of the largest; those of a node before it are not below
        # e^{−spread} of that, and with B ≥ e^{−e^R} no product underflows (mathematics §10).
        spread = min(-floor - math.exp(rule.right), _LOST - floor + ceiling - constant)
        if spread < 0:
            return None
        # A chain's last rounding error is 2^{levels − 1} times its first.
        levels = int(math.log2(max(1.0, tolerance / 4 / info.eps))) + 1
        growth = rule.power * rule.step  # of log f from node to node
        size = min(int(spread // growth) + 1, rule.splits * min(levels, LEVELS))
        logs = (growth * node + constant - ceiling for node in range(size))
        lost = floor - ceiling + constant + growth * (size - 1)
        log_lost = max(lost, floor) + math.log(rule.power + 2)
        return cls(right, ceiling, tuple(math.exp(log) for log in logs), log_lost)


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
        number = 1 if tile.numel() < _FEW else min(len(tile), max(1, torch.get_num_threads()))
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
            masses = masses.of_anchors(self.shard.rows)
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
