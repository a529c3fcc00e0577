"""Mean ± standard deviation, and how tables and sentences write numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class MeanStd:
    """Mean and sample standard deviation of `count` values; NaN where there are too few."""

    mean: float
    std: float = math.nan
    count: int = 1

    @classmethod
    def of(cls, values: Iterable[float]) -> MeanStd:
        """Summarise the finite ones of some values.

        Example:
            >>> MeanStd.of([1.0, 3.0, float("nan")])
            MeanStd(mean=2.0, std=1.4142135623730951, count=2)
        """
        finite = np.array([value for value in values if math.isfinite(value)])
        mean = float(finite.mean()) if len(finite) else math.nan
        std = float(finite.std(ddof=1)) if len(finite) > 1 else math.nan
        return cls(mean, std, len(finite))

    @property
    def spread(self) -> float:
        """The standard deviation, 0 where one value gives none."""
        return self.std if math.isfinite(self.std) else 0.0

    def times(self, factor: float) -> MeanStd:
        """The same in another unit."""
        return MeanStd(factor * self.mean, factor * self.std, self.count)


def directions(spectrum: Iterable[float]) -> float:
    """How many directions a covariance fills: ``exp`` of the entropy of its eigenvalues' shares.

    K−1 equal eigenvalues, the simplex ETF, give K−1; a single one gives 1.

    Example:
        >>> round(directions([2.0, 2.0, 0.0]), 6)
        2.0
    """
    values = np.array(list(spectrum))
    total = values.sum()
    if not np.isfinite(total) or total <= 0:
        return math.nan
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def number(value: float) -> str:
    """Write a number with three significant digits.

    Example:
        >>> number(0.012345), number(1234.5), number(float("nan"))
        ('0.0123', '1234', '–')
    """
    if not math.isfinite(value):
        return "–"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.{_decimals(value)}f}"


def mean_std(value: MeanStd) -> str:
    """Write mean ± standard deviation to the same decimal place.

    Example:
        >>> mean_std(MeanStd(0.01234, 0.00056, 3)), mean_std(MeanStd(2.5e-6, 1e-7, 3))
        ('0.0123 ± 0.0006', '(2.50 ± 0.10)e-06')
    """
    if not math.isfinite(value.std):
        return number(value.mean)
    mean, std = value.mean, value.std
    largest = max(abs(mean), std)
    if largest != 0 and not 1e-3 <= largest < 1e5:
        exponent = math.floor(math.log10(largest))
        scale = 10.0**exponent
        return f"({mean / scale:.2f} ± {std / scale:.2f})e{exponent:+03d}"
    decimals = _decimals(largest)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def percent(value: MeanStd) -> str:
    """Write an accuracy in per cent as the paper does.

    Example:
        >>> percent(MeanStd(99.2134, 0.094, 3)), percent(MeanStd(97.5))
        ('99.21 ± 0.09', '97.50')
    """
    if not math.isfinite(value.mean):
        return "–"
    return f"{value.mean:.2f}" + (f" ± {value.std:.2f}" if math.isfinite(value.std) else "")


def plain(value: object) -> str:
    """Write a setting: a number without needless digits, a dash for nothing.

    Example:
        >>> plain(1.0), plain(0.05), plain("cosine"), plain(None)
        ('1', '0.05', 'cosine', '–')
    """
    if value is None:
        return "–"
    return f"{value:g}" if isinstance(value, int | float) else str(value)


def listing(words: Sequence[object]) -> str:
    """Join words as a sentence does.

    Example:
        >>> listing(["a", "b", 3])
        'a, b and 3'
    """
    *most, last = [str(word) for word in words] or [""]
    return f"{', '.join(most)} and {last}" if most else last


def duration(seconds: float) -> str:
    """Write a time span in the unit a reader would use.

    Example:
        >>> duration(42.0), duration(754.0), duration(9000.0)
        ('42 s', '12 min 34 s', '2 h 30 min')
    """
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def _decimals(value: float) -> int:
    """Decimals that show three significant digits of a value."""
    return 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
