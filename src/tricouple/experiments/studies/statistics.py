"""Paired comparisons: mean difference, interval, and significance corrected for their number."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy import stats

LEVEL = 0.05


@dataclass(frozen=True)
class Difference:
    """The mean of paired differences.

    Attributes:
        mean: First minus second.
        low: Lower end of the 95 % interval (Student's t).
        high: Its upper end.
        p: Of the two-sided paired t-test.
        count: Pairs.
    """

    mean: float
    low: float
    high: float
    p: float
    count: int

    def times(self, factor: float) -> Difference:
        """The same in another unit."""
        mean, low, high = (factor * value for value in (self.mean, self.low, self.high))
        return Difference(mean, low, high, self.p, self.count)

    def __str__(self) -> str:
        return f"{self.mean:+.2f} [{self.low:+.2f}, {self.high:+.2f}]"


def paired(first: Sequence[float], second: Sequence[float]) -> Difference:
    """Compare two methods seed by seed.

    Example:
        >>> paired([2.0, 3.0, 4.0], [1.0, 2.0, 2.0]).mean
        1.3333333333333333
    """
    gaps = np.array(first, dtype=float) - np.array(second, dtype=float)
    mean, n = float(gaps.mean()), len(gaps)
    error = float(gaps.std(ddof=1)) / math.sqrt(n) if n > 1 else math.nan
    if not error > 0:  # one pair, or all gaps equal
        return Difference(mean, mean, mean, math.nan if n < 2 else float(mean == 0), n)
    reach = float(stats.t.ppf(1 - LEVEL / 2, n - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, n - 1))
    return Difference(mean, mean - reach, mean + reach, p, n)


def slope(x: Sequence[float], y: Sequence[float]) -> float:
    """The slope of the least-squares line.

    Example:
        >>> round(slope([0, 1, 2], [1, 3, 5]), 9)
        2.0
    """
    return float(np.polyfit(x, y, 1)[0])
