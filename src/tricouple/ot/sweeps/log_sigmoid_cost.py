"""Sums of log-sigmoid costs over all (positive, negative) pairs of an anchor, in O(Q·M) each.

By Frullani's integral

    log(1 + e^{y − x}) = ∫ exp(−e^{x+v}) (1 − exp(−e^{y+v})) dv,

a function of x times a function of y for every v. So a sum over all pairs is a product of two sums,
and the trapezoid rule takes Q of them, at nodes v_q = h·q with the factors B_q of ``log_sigmoid``.
Far to the left, where all rates e^{x+v} are small, the first two powers of the rates are summed to
the end; the rest is below e^{3·TAIL}.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from tricouple.numeric import on_host
from tricouple.ot.sweeps import native

# Logarithms of the rates between which nodes are taken: e^TAIL for the largest x, e^HEAD, where
# B = e^{−46}, for the smallest x of a positive.
TAIL, HEAD = -9.5, math.log(46.0)

# Entries of the matrices of several nodes that an accelerator has at once.
_AT_ONCE = 1 << 25

# Below this many entries a second thread costs more than it saves.
_FEW = 1 << 14


def splits_of(epsilon: float, tolerance: float) -> int:
    """P = log(2)/h for a tolerance on costs divided by ε, and on their slopes.

    The integrand's Fourier transform is Γ(iω) (x^{−iω} − (x + y)^{−iω}) in rates x and y: by
    Poisson's formula the error of a cost is at most 4|Γ(iω)|, ω = 2π/h, that of its slope ω times
    as much.
    """
    splits = 1
    while _error(math.log(2) / splits) > tolerance * epsilon:
        splits += 1
    return splits


def _error(step: float) -> float:
    frequency = 2 * math.pi / step
    return 4 * frequency * math.sqrt(step) * math.exp(-math.pi * frequency / 2)


def pair_costs(
    scores: Tensor,
    positives: Tensor,
    negatives: Tensor,
    splits: int,
    spread: float | None = None,
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
    number = 1 if scores.numel() < _FEW else min(n, max(1, torch.get_num_threads()))
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
