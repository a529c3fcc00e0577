"""The log-sigmoid kernel as a short sum of positive separable terms (mathematics §3).

With ψ(t) = log(1 + e^{−t}) the kernel is ``K = σ(x − y)^m``, x = s_ij/τ, y = s_ik/τ, m = 1/ε.
Writing ``(e^x + e^y)^{−m}`` as a Gamma integral over v = log(rate) gives

    K = ∫ exp(m(x + v) − e^{x+v}) · exp(−e^{y+v}) dv / Γ(m),

a function of x times a function of y for every v. The trapezoid rule turns the integral into a sum.
By Poisson's formula its relative error does not depend on x and y, and falls exponentially with
the step; the ends are where the tails of a log-Gamma law are below the tolerance. A sweep then
takes O(Q·N²), Q terms.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tricouple.memory import CACHED, Loan
from tricouple.numeric import Patch, ScoreGradient, exponential_, row_blocks, wide_dtype
from tricouple.ot.sweeps.kernels import Factors, RowTiles, Similarities, Tile


@dataclass(frozen=True)
class LogSigmoidTerms:
    """``K ≈ Σ_q exp(attract_q(x) + repel_q(y))``."""

    power: float  # m = 1/ε
    nodes: tuple[float, ...]  # the abscissae v_q
    step: float  # their distance

    @property
    def log_excluded(self) -> float:
        """The logarithm of K at x = y, exactly 2^{−m}."""
        return -self.power * math.log(2)

    def attract(self, x: Tensor, node: float) -> Tensor:
        """Logarithm of a term's factor in x."""
        constant = math.log(self.step) - math.lgamma(self.power)
        return self.power * (x + node) - torch.exp(x + node) + constant

    def repel(self, y: Tensor, node: float) -> Tensor:
        """Logarithm of a term's factor in y."""
        return -torch.exp(y + node)

    def attract_slope(self, x: Tensor, node: float) -> Tensor:
        """Derivative of ``attract``."""
        return self.power - torch.exp(x + node)

    def repel_slope(self, y: Tensor, node: float) -> Tensor:
        """Derivative of ``repel``."""
        return -torch.exp(y + node)


def log_sigmoid_terms(
    power: float, lowest: float, highest: float, tolerance: float
) -> LogSigmoidTerms:
    """Choose step and range from the tolerance on the kernel's relative error.

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
    step, left, right = _rule(power, tolerance)
    # v + log(e^x + e^y) follows the log-Gamma law, and e^x + e^y is between 2e^lowest, 2e^highest.
    start = left - math.log(2) - highest
    count = math.ceil((right - math.log(2) - lowest - start) / step) + 1
    return LogSigmoidTerms(power, tuple(start + step * index for index in range(count)), step)


@lru_cache(maxsize=64)
def _rule(power: float, tolerance: float) -> tuple[float, float, float]:
    """Step, and the ends of the log-Gamma law, for a tolerance."""
    left = _quantile(power, tolerance / 8, upper=False)
    right = _quantile(power, tolerance / 8, upper=True)
    step = 4.0
    # Slopes have somewhat larger errors than values: the step leaves room for them.
    while trapezoid_error(power, step) > tolerance / 32:
        step *= 0.95
    return step, left, right


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


def terms_of(
    similarities: Similarities,
    factor: float,
    power: float,
    tolerance: float,
    tile_entries: int = CACHED,
) -> LogSigmoidTerms:
    """Terms for the range of the scores."""
    blocks = row_blocks(*similarities.shape, tile_entries)
    buffer = similarities.like.new_empty(blocks[0].stop, similarities.shape[1])
    ends: list[Tensor] = []
    for block in blocks:
        tile = similarities.tile(block, buffer[: block.stop - block.start])
        ends += torch.aminmax(tile)
    lowest, highest = (float(end) * factor for end in torch.aminmax(torch.stack(ends)))
    return log_sigmoid_terms(power, lowest, highest, tolerance)


class TermKernels(RowTiles):
    """The factors of positives and of negatives, ``exp(attract_q(x))`` and ``exp(repel_q(x))``.

    Rows of one anchor belong to different terms and are added up after multiplying those of the
    two kernels; they are brought to a common scale, half of it on each side, so that the weight of
    a term is in its entries.

    Args:
        similarities: s, shape (N, M).
        factor: 1/τ, so that x = s/τ.
        terms: The separable terms.
        within: Exclude the diagonal.
        stored: Keep both kernels in memory: 2·Q·N·M numbers.
        tile_entries: Size of a tile that is recomputed, or worked on entry by entry.
    """

    def __init__(
        self,
        similarities: Similarities,
        factor: float,
        terms: LogSigmoidTerms,
        *,
        within: bool,
        stored: bool = True,
        tile_entries: int = CACHED,
    ) -> None:
        self.similarities, self.factor, self.terms = similarities, factor, terms
        self.within = within
        self.shape, self.like = similarities.shape, similarities.like
        self.n_terms, self.log_excluded = len(terms.nodes), terms.log_excluded
        self.tile_entries = tile_entries
        self._sides = (terms.attract, terms.repel)
        self._slopes = (terms.attract_slope, terms.repel_slope)
        n, m = self.shape
        # For each side: what is added to the logarithms of the rows (Q, N) and of the columns.
        self._term_shifts = [self.like.new_empty(self.n_terms, n) for _ in self._sides]
        self.row_shifts = [self._balance_rows()]
        self._column_shifts = self._balance_columns()
        wide = wide_dtype(self.like.device)
        self.column_shifts = [shift.to(wide) for shift in self._column_shifts]
        self._loan: Loan | None = None
        if stored:
            loan = Loan(2, self.like, self.n_terms, n, m)
            for block, scores in self._scores():
                for number, kernel in enumerate(loan.matrices):
                    self._fill(number, scores, block, kernel[:, block])
            self._loan = loan

    def release(self) -> None:
        """Give the stored kernels back; from now on tiles are recomputed."""
        self._loan = None

    def _balance_rows(self) -> Tensor:
        """Shift the rows of every term; what the anchors' scalings are short of, wide dtype."""
        lowest = torch.finfo(self.like.dtype).min / 4  # where a factor underflows for a whole row
        anchor_shift = self.like.new_empty(self.shape[0])
        for block, scores in self._scores():
            tops = []
            for side in self._sides:
                logs = (self._mask(side(scores, node), block) for node in self.terms.nodes)
                tops.append(torch.stack([log.amax(1) for log in logs]).clamp_min_(lowest))
            peak = tops[0] + tops[1]  # (Q, rows)
            torch.neg(peak.amax(0), out=anchor_shift[block])
            weight = (peak + anchor_shift[block]) / 2
            for shift, top in zip(self._term_shifts, tops, strict=True):
                torch.sub(weight, top, out=shift[:, block])
        return anchor_shift.to(wide_dtype(self.like.device))

    def _balance_columns(self) -> list[Tensor]:
        lowest = torch.finfo(self.like.dtype).min / 4
        tops = [self.like.new_full((self.shape[1],), lowest) for _ in self._sides]
        for block, scores in self._scores():
            for number, top in enumerate(tops):
                for term in range(self.n_terms):
                    torch.maximum(top, self._logs(number, term, scores, block).amax(0), out=top)
        return [-top for top in tops]

    def _scores(self) -> Iterator[tuple[slice, Tensor]]:
        """x, a block of rows at a time."""
        blocks = row_blocks(*self.shape, max(1, self.tile_entries // self.n_terms))
        buffer = self.like.new_empty(blocks[0].stop, self.shape[1])
        for block in blocks:
            tile = self.similarities.tile(block, buffer[: block.stop - block.start])
            yield block, tile * self.factor

    def _mask(self, logs: Tensor, rows: slice) -> Tensor:
        if self.within:
            logs.diagonal(rows.start).fill_(-torch.inf)
        return logs

    def _logs(self, side: int, term: int, scores: Tensor, rows: slice) -> Tensor:
        """Logarithms of a factor with the rows' shifts, (rows, M)."""
        logs = self._sides[side](scores, self.terms.nodes[term])
        return self._mask(logs.add_(self._term_shifts[side][term, rows, None]), rows)

    def tiles(self, which: Sequence[int], entries: int | None = None) -> Iterator[Tile]:
        """What is stored, in one tile, else tiles in buffers that the next tile overwrites."""
        if self._loan is not None:
            matrices = self._loan.matrices
            yield Tile(slice(0, self.shape[0]), [matrices[number] for number in which])
            return
        buffers: Tensor | None = None
        for block, scores in self._scores():
            if buffers is None:
                buffers = self.like.new_empty(len(which), self.n_terms, *scores.shape)
            size = block.stop - block.start
            kernels = [buffer.view(-1)[: self.n_terms * scores.numel()] for buffer in buffers]
            kernels = [kernel.view(self.n_terms, size, -1) for kernel in kernels]
            for kernel, number in zip(kernels, which, strict=True):
                self._fill(number, scores, block, kernel)
            yield Tile(block, kernels)

    def _fill(self, side: int, scores: Tensor, rows: slice, out: Tensor) -> None:
        """Write some rows of all terms of a kernel, shape (Q, rows, M)."""
        for term in range(self.n_terms):
            logs = self._logs(side, term, scores, rows)
            exponential_(torch.add(logs, self._column_shifts[side], out=out[term]))

    def score_gradient(self, factors: Sequence[Factors]) -> ScoreGradient:
        """Chain the gradients of all factors with their slopes, a term at a time."""
        lowest = torch.finfo(self.like.dtype).min
        for block, scores in self._scores():
            total = torch.zeros_like(scores)
            for number, (left, right) in enumerate(factors):
                for term, node in enumerate(self.terms.nodes):
                    weights = left[:, term, block].T @ right
                    if self._loan is None:
                        logs = self._logs(number, term, scores, block)
                        kernel = exponential_(logs.add_(self._column_shifts[number]))
                    else:
                        kernel = self._loan.matrices[number][term, block]
                    # Where the slope overflows the kernel is exactly zero.
                    slope = self._slopes[number](scores, node).clamp_min_(lowest)
                    total.addcmul_(weights.mul_(kernel), slope)
            yield Patch(block, total)
