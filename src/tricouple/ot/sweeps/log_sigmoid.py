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

Sums of costs over all (positive, negative) pairs of an anchor take O(Q·M) as well. By Frullani's
integral

    log(1 + e^{y − x}) = ∫ exp(−e^{x+v}) (1 − exp(−e^{y+v})) dv,

so a sum over all pairs is a product of two sums at every node, with the same factors B_q. Far to
the left, where all rates e^{x+v} are small, the first two powers of the rates are summed to the
end; the rest is below e^{3·TAIL}.
"""

from __future__ import annotations

import cmath
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from tricouple.numeric import on_host
from tricouple.ot.sweeps import native

# Squarings of one exponential, and one: each doubles the error of rounding. _log_sigmoid.h unrolls
# as many.
LEVELS = 12

# Below this many entries a second thread costs more than it saves.
FEW = 1 << 14

# Logarithm of what may be lost of a kernel's entry, which is at most 1.
_LOST = -60.0

# For sums of costs: logarithms of the rates between which nodes are taken, e^TAIL for the largest
# x, e^HEAD, where B = e^{−46}, for the smallest x of a positive.
TAIL, HEAD = -9.5, math.log(46.0)

# Entries of the matrices of several nodes that an accelerator has at once.
_AT_ONCE = 1 << 25


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
    """Choose step and ends for m = 1/ε from the tolerance on the kernel's relative error."""
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
    """The terms for m = 1/ε and all x and y between the smallest and the largest s/τ of a batch.

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

    Their number is that of the widest range of scores that is allowed for, twice the reach; where
    they begin the device finds out. Scores that differ by more make them NaN, and so the loss.
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


def splits_of(epsilon: float, tolerance: float) -> int:
    """P = log(2)/h for a tolerance on costs divided by ε, and on their slopes.

    The integrand's Fourier transform is Γ(iω) (x^{−iω} − (x + y)^{−iω}) in rates x and y: by
    Poisson's formula the error of a cost is at most 4|Γ(iω)|, ω = 2π/h, that of its slope ω times
    as much.
    """
    splits = 1
    while _cost_error(math.log(2) / splits) > tolerance * epsilon:
        splits += 1
    return splits


def _cost_error(step: float) -> float:
    frequency = 2 * math.pi / step
    return 4 * frequency * math.sqrt(step) * math.exp(-math.pi * frequency / 2)


def pair_costs(
    scores: Tensor, positives: Tensor, negatives: Tensor, splits: int, spread: float | None = None
) -> tuple[Tensor, Tensor]:
    """``Σ_jk positives_j negatives_k log(1 + e^{x_k − x_j})`` of each row, and its gradient.

    Args:
        scores: x, shape (rows, M), wide dtype.
        positives: Weights of the positives, 0 elsewhere, same shape and dtype.
        negatives: Those of the negatives.
        splits: Nodes between rates that differ by a factor of two.
        spread: What two scores of a row differ by at most; None to find out. More than that on a
            device, which nobody asks, makes the sums NaN.

    Returns:
        Shapes (rows,) and (rows, M).

    Example:
        >>> x = torch.tensor([[1.0, 0.0]]).double()
        >>> total, slope = pair_costs(x, torch.eye(2)[:1].double(), torch.eye(2)[1:].double(), 2)
        >>> abs(float(total) - math.log1p(math.exp(-1))) < 1e-9
        True
    """
    if native.compiled is not None and on_host(scores):
        return _native_costs(scores, positives, negatives, splits)
    step = math.log(2) / splits
    near_one = positives.sum(1, keepdim=True)
    taken = (positives + negatives) > 0
    tops = scores.masked_fill(~taken, -torch.inf).amax(1, keepdim=True).nan_to_num_(neginf=0.0)
    x = (scores - tops).clamp_(max=0.0)
    u = torch.exp(x)
    # Σ t and Σ t² over the nodes t = e^{v + top} before the first; x is relative to the top, and so
    # is the first node here.
    start = torch.floor((TAIL - tops) / step) * step + tops
    growth, t = math.exp(step), torch.exp(start)
    first, second = step * t / (growth - 1), step * t**2 / (growth**2 - 1)
    u_plus, u_minus = (positives * u).sum(1, keepdim=True), (negatives * u).sum(1, keepdim=True)
    total = near_one * u_minus * first
    total -= (u_plus * u_minus + near_one * (negatives * u**2).sum(1, keepdim=True) / 2) * second
    slope = negatives * u * (near_one * first - (u_plus + near_one * u) * second)
    slope -= positives * u * u_minus * second
    found = -x.masked_fill(positives == 0, 0.0).amin()
    if spread is None:
        spread = float(found)
    else:
        total += torch.where(found <= spread, 0.0, torch.nan)
    n_nodes = math.ceil((HEAD - TAIL + spread) / step) + 2
    nodes = torch.arange(n_nodes, dtype=x.dtype, device=x.device)[:, None, None] * step
    for some in nodes.split(1 if on_host(x) else max(1, _AT_ONCE // max(1, x.numel()))):
        rates = (x + (start + some)).clamp_(max=7.0).exp_()  # beyond e^7 B is 0
        b = torch.exp(-rates)
        far = (torch.expm1(-rates) * negatives).sum(2, keepdim=True)
        near = (positives * b).sum(2, keepdim=True)
        total.sub_((near * far).sum(0), alpha=step)
        slope.add_(
            (negatives * near).addcmul_(positives, far).mul_(b.mul_(rates)).sum(0), alpha=step
        )
    return total[:, 0], slope


def _native_costs(
    scores: Tensor, positives: Tensor, negatives: Tensor, splits: int
) -> tuple[Tensor, Tensor]:
    """The same in the compiled module, whose threads share the rows."""
    n, m = scores.shape
    size, step = scores.element_size(), math.log(2) / splits
    rule = torch.tensor([1.0, 0, step, splits, 0, TAIL, HEAD], dtype=torch.float64, device="cpu")
    lowest, highest = (float(end) for end in torch.aminmax(scores))
    nodes = math.ceil((HEAD - TAIL + highest - lowest) / step) + 4
    lanes = 64 // size
    room = 8 * -(-m // lanes) * lanes + 2 * nodes
    totals, slopes = scores.new_empty(n), torch.empty_like(scores)
    number = 1 if scores.numel() < FEW else min(n, max(1, torch.get_num_threads()))
    rooms = scores.new_empty(number, room)
    table, *matrices = native.addresses(rule, scores, positives, negatives)
    out, slope = native.addresses(totals, slopes)

    calls = []
    for thread in range(number):
        begin, end = n * thread // number, n * (thread + 1) // number
        skipped = begin * m * size
        inputs = (address + skipped for address in matrices)
        outputs = out + begin * size, slope + skipped, native.address(rooms[thread])
        calls.append((size, end - begin, m, table, *inputs, *outputs))
    native.shared(native.compiled.pair_costs, calls)
    return totals, slopes
