"""Quadrature of the log-sigmoid kernel and of its mean cost (mathematics §3, docs/quadrature.md).

With x = s_ij/τ, y = s_ik/τ and m = 1/ε, by the trapezoid rule with nodes v_q = h·q,

    σ(x − y)^m = ∫ exp(m(x + v) − e^{x+v}) · exp(−e^{y+v}) dv / Γ(m) ≈ Σ_q A_q(x) B_q(y),
    log(1 + e^{y − x}) = ∫ exp(−e^{x+v}) (1 − exp(−e^{y+v})) dv   (Frullani, of costs).

A pair needs the nodes in a bell between −max(x, y) − log 2 and −max(x, y).
"""

import cmath
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from tricouple.numeric import fill_own, on_host

LOG2 = math.log(2)

# Of costs: log rate of the largest x at the first node, of the smallest positive at the last.
TAIL, HEAD = -16.0, math.log(46.0)


def at_once(like: Tensor) -> int:
    """Entries of the matrices of several nodes that are computed together."""
    return 1 << 18 if on_host(like) else 1 << 25


@dataclass(frozen=True)
class Rule:
    """Nodes v_q = h·q for a tolerance."""

    power: float  # m = 1/ε
    splits: int  # p = log(2)/h
    left: float  # the lower end of the log-Gamma law
    right: float  # the upper end

    @property
    def step(self) -> float:
        """The distance h of two nodes; after p of them the rates e^{x + v} have doubled."""
        return LOG2 / self.splits

    @property
    def constant(self) -> float:
        """log(h/Γ(m)), a factor of every A."""
        return math.log(self.step) - math.lgamma(self.power)


@lru_cache(maxsize=64)
def rule_of(power: float, tolerance: float) -> Rule:
    """Choose step and ends for m = 1/ε from the tolerance on the kernel's relative error."""
    left = quantile(power, tolerance / 8, upper=False)
    right = quantile(power, tolerance / 8, upper=True)
    splits = 1
    # Slopes have somewhat larger errors than values: the step leaves room for them.
    while trapezoid_error(power, LOG2 / splits) > tolerance / 32:
        splits += 1
    return Rule(power, splits, left, right)


def trapezoid_error(power: float, step: float) -> float:
    """The rule's relative error where its nodes fall worst, ``2 Σ_k |Γ(m + 2πik/h)| / Γ(m)``."""
    sizes = (_log_gamma(complex(power, 2 * math.pi * k / step)) for k in range(1, 33))
    return 2 * sum(math.exp(size - math.lgamma(power)) for size in sizes)


def _log_gamma(z: complex) -> float:
    """``log |Γ(z)|`` for Re z > 0: Stirling's series, far enough to the right to be exact."""
    shift = sum(cmath.log(z + n) for n in range(12))
    z += 12
    series = 1 / (12 * z) - 1 / (360 * z**3) + 1 / (1260 * z**5) - 1 / (1680 * z**7)
    return ((z - 0.5) * cmath.log(z) - z + math.log(2 * math.pi) / 2 + series - shift).real


@lru_cache(maxsize=256)
def quantile(power: float, mass: float, *, upper: bool) -> float:
    """Where the log-Gamma law has only ``mass`` beyond."""
    shape = torch.tensor(power, dtype=torch.float64, device="cpu")
    tail = torch.special.gammaincc if upper else torch.special.gammainc
    centre = math.log(power)
    near, far = centre, centre + (60.0 if upper else -60.0 / min(1.0, power))
    for _ in range(80):
        middle = (near + far) / 2
        beyond = float(tail(shape, shape.new_tensor(math.exp(middle))))
        near, far = (middle, far) if beyond > mass else (near, middle)
    return far


def nodes_of(rule: Rule, x: Tensor, own: Tensor, reach: float) -> Tensor:
    """The nodes v_q that some rows of x, (R, M), wide dtype, need, without own; shape (Q,).

    A device is not asked how many: |x| is at most ``reach``, and rows that would need more nodes
    get NaN for nodes.
    """
    number = math.ceil((rule.right - rule.left + LOG2 + 2 * reach) / rule.step) + 2
    high = fill_own(x.clone(), own, -torch.inf).amax()
    low = fill_own(x.clone(), own, torch.inf).amin()
    first = torch.floor((rule.left - LOG2 - high) / rule.step)
    last = torch.ceil((rule.right - LOG2 - low) / rule.step)
    places = first + torch.arange(number, device=x.device, dtype=x.dtype)
    return torch.where(last - first < number, places * rule.step, torch.nan)


def cost_splits(epsilon: float, tolerance: float) -> int:
    """Choose p = log(2)/h for a tolerance on costs divided by ε, and on their slopes.

    In rates x, y its Fourier transform is Γ(iω) (x^{−iω} − (x + y)^{−iω}): by Poisson's formula the
    error of a cost is at most 4|Γ(iω)|, ω = 2π/h, of its slope ω times that.
    """
    splits, error = 0, math.inf
    while error > tolerance * epsilon:
        splits += 1
        frequency = 2 * math.pi * splits / LOG2
        error = 4 * frequency * math.sqrt(LOG2 / splits) * math.exp(-math.pi * frequency / 2)
    return splits


def pair_costs(
    scores: Tensor, plus: Tensor, minus: Tensor, splits: int, spread: float | None = None
) -> tuple[Tensor, Tensor]:
    """``Σ_jk plus_j minus_k log(1 + e^{x_k − x_j})`` of each row, (R,), and its gradient, (R, M).

    All but ``splits``, nodes until rates have doubled, have the shape (R, M) and a wide dtype.
    ``spread`` is what two scores of a row differ by at most, None to find out. More than that on a
    device, which is not asked, makes the sums NaN.
    """
    step = LOG2 / splits
    tops = scores.masked_fill((plus + minus) == 0, -torch.inf).amax(1, keepdim=True)
    tops = torch.where(tops == -torch.inf, 0.0, tops)
    x = (scores - tops).clamp_(max=0.0)
    u = torch.exp(x)
    # Σ t over the nodes t = e^{v + top} before the first; x is relative to the top, and so is the
    # first node here. What is left out is below e^{2·TAIL}.
    start = torch.floor((TAIL - tops) / step) * step + tops
    beyond = minus * u * plus.sum(1, keepdim=True) * torch.exp(start) * (step / math.expm1(step))
    total, slope = beyond.sum(1, keepdim=True), beyond
    found = -x.masked_fill(plus == 0, 0.0)
    if spread is None:
        spread = float(torch.where(torch.isfinite(found), found, 0.0).amax()) if len(x) else 0.0
    else:
        total += torch.where(found.amax() <= spread, 0.0, torch.nan)
    number = math.ceil((HEAD - TAIL + spread) / step) + 2
    nodes = torch.arange(number, dtype=x.dtype, device=x.device)[:, None, None] * step
    for some in nodes.split(max(1, at_once(x) // max(1, x.numel()))):
        rates = (x + (start + some)).clamp_(max=7.0).exp_()  # beyond e^7 B is 0
        b = torch.exp(-rates)
        far = (torch.expm1(-rates) * minus).sum(2, keepdim=True)
        near = (plus * b).sum(2, keepdim=True)
        total.sub_((near * far).sum(0), alpha=step)
        slope.add_((minus * near).addcmul_(plus, far).mul_(b.mul_(rates)).sum(0), alpha=step)
    return total[:, 0], slope
