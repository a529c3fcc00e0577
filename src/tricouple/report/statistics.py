"""Mean ± standard deviation over seeds, and the spread of a spectrum."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tricouple.report.read import Array


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation of `count` values; NaN where there are too few."""

    mean: float
    std: float
    count: int

    @classmethod
    def of(cls, values: Array) -> MeanStd:
        """Summarise the finite ones of some values.

        Example:
            >>> MeanStd.of(np.array([1.0, 3.0, np.nan]))
            MeanStd(mean=2.0, std=1.4142135623730951, count=2)
        """
        finite = values[np.isfinite(values)]
        mean = float(finite.mean()) if len(finite) else float("nan")
        std = float(finite.std(ddof=1)) if len(finite) > 1 else float("nan")
        return cls(mean, std, len(finite))

    @property
    def spread(self) -> float:
        """The standard deviation, 0 where one value gives none."""
        return self.std if np.isfinite(self.std) else 0.0


@dataclass(frozen=True)
class Curve:
    """A quantity over x (steps or positions) with its mean and its band over seeds.

    The band is mean ± std. Where it would reach below the smallest seed it is cut there: on a
    logarithmic axis a band that crosses zero could not be drawn, and no seed was seen below.
    """

    x: Array
    mean: Array
    low: Array
    high: Array


def band(x: Array, rows: Array) -> Curve:
    """Mean and band of rows (seeds, positions) that may hold NaN."""
    columns = [MeanStd.of(column) for column in rows.T]
    mean = np.array([column.mean for column in columns])
    spread = np.array([column.spread for column in columns])
    lowest = np.array([min((v for v in c if np.isfinite(v)), default=np.nan) for c in rows.T])
    return Curve(x, mean, np.maximum(mean - spread, lowest), mean + spread)


def normalised(spectrum: Array) -> Array:
    """Eigenvalues over the largest, all zero if that is zero.

    Example:
        >>> normalised(np.array([4.0, 1.0])).tolist()
        [1.0, 0.25]
    """
    return spectrum / spectrum[0] if spectrum[0] > 0 else np.zeros_like(spectrum)


def directions(spectrum: Array) -> float:
    """How many directions a covariance fills: ``exp`` of the entropy of its eigenvalues' shares.

    K−1 equal eigenvalues, the simplex ETF, give K−1; a single one gives 1.

    Example:
        >>> round(directions(np.array([2.0, 2.0, 0.0])), 6)
        2.0
    """
    total = spectrum.sum()
    if not np.isfinite(total) or total <= 0:
        return float("nan")
    shares = spectrum[spectrum > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def beyond_spread(a: MeanStd, b: MeanStd) -> int:
    """−1 if `a` lies clearly below `b`, 1 if clearly above, 0 if they are level.

    Level means that their ± std bands touch, or that they differ by less than 1 %: one seed has no
    band, and nobody should make anything of the fourth digit.

    Example:
        >>> beyond_spread(MeanStd(1.0, 0.1, 3), MeanStd(2.0, 0.1, 3))
        -1
    """
    least = max(a.spread + b.spread, 0.01 * max(abs(a.mean), abs(b.mean)))
    if not abs(a.mean - b.mean) > least:
        return 0
    return -1 if a.mean < b.mean else 1
