"""The log-sigmoid kernel as a short sum of positive separable terms.

With ψ(t) = log(1 + e^{−t}) the kernel is ``K = σ(x − y)^m``, x = s_ij/τ, y = s_ik/τ, m = 1/ε.
Writing ``(e^x + e^y)^{−m}`` as a Gamma integral over v = log(rate) gives

    K = ∫ exp(m(x + v) − e^{x+v}) · exp(−e^{y+v}) dv / Γ(m),

a function of x times a function of y for every v. The trapezoid rule turns the integral into a sum.
By Poisson's formula its relative error does not depend on x and y, and falls exponentially with
the step; the ends are where the tails of a log-Gamma law are below the tolerance.
"""

from __future__ import annotations

import cmath
import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor


@dataclass(frozen=True)
class LogSigmoidTerms:
    """``K ≈ Σ_q exp(attract_q(x) + repel_q(y))``.

    Attributes:
        power: m = 1/ε.
        nodes: The abscissae v_q.
        step: Their distance.
    """

    power: float
    nodes: tuple[float, ...]
    step: float

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


@dataclass(frozen=True)
class LinearTerms:
    """``K = exp(x − y)``, which is one separable term as it is."""

    nodes: tuple[float, ...] = (0.0,)
    log_excluded: float = 0.0

    def attract(self, x: Tensor, node: float) -> Tensor:
        """Logarithm of the factor in x."""
        return x

    def repel(self, y: Tensor, node: float) -> Tensor:
        """Logarithm of the factor in y."""
        return -y

    def attract_slope(self, x: Tensor, node: float) -> Tensor:
        """Derivative of ``attract``."""
        return torch.ones_like(x)

    def repel_slope(self, y: Tensor, node: float) -> Tensor:
        """Derivative of ``repel``."""
        return -torch.ones_like(y)


Terms = LogSigmoidTerms | LinearTerms


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
    shape = torch.tensor(power, dtype=torch.float64)
    tail = torch.special.gammaincc if upper else torch.special.gammainc
    centre = math.log(power)
    near, far = centre, centre + (60.0 if upper else -60.0 / min(1.0, power))
    for _ in range(80):
        middle = (near + far) / 2
        beyond = float(tail(shape, torch.tensor(math.exp(middle), dtype=torch.float64)))
        near, far = (middle, far) if beyond > mass else (near, middle)
    return far
