"""Mean ± standard deviation: how it is written, compared and tested, and sentences from that."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

LEVEL = (
    "“Level”: the means differ by no more than both standard deviations together, or by less than "
    "1 %."
)
SIGNIFICANCE = 0.05


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


NOTHING = MeanStd(math.nan, math.nan, 0)


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


def welch(a: MeanStd, b: MeanStd) -> float:
    """The p-value of Welch's t-test for different means; 1 where there is no spread to judge by.

    Example:
        >>> round(welch(MeanStd(80.71, 2.13, 3), MeanStd(83.04, 1.03, 3)), 2)
        0.19
    """
    if min(a.count, b.count) < 2 or a.mean == b.mean:
        return 1.0
    if a.std == b.std == 0:
        return 0.0
    from scipy.stats import ttest_ind_from_stats

    found = ttest_ind_from_stats(
        a.mean, a.std, a.count, b.mean, b.std, b.count, equal_var=False
    )  # fmt: skip
    return float(found.pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Adjust p-values for their number, as Holm does: step down from the smallest.

    Example:
        >>> holm([0.03, 0.01, 0.04])
        [0.06, 0.03, 0.06]
    """
    adjusted, largest = [0.0] * len(p_values), 0.0
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - place) * p_values[index]))
        adjusted[index] = largest
    return adjusted


def best(
    lead: str,
    values: Mapping[str, Mapping[str, MeanStd]],
    write: Callable[[MeanStd], str],
    *,
    less: bool = False,
) -> Iterator[str]:
    """Who is best in each place, who is level with it, who is last, and what a test tells apart.

    `values` are by place and name; places with the same answer share a clause.
    """
    clauses: dict[tuple[str, str, str], list[tuple[str, str, str]]] = {}
    rivals: list[tuple[str, str, float]] = []
    for place, named in values.items():
        own = {name: value for name, value in named.items() if math.isfinite(value.mean)}
        if len(own) < 2:
            continue
        order = sorted(own, key=lambda name: own[name].mean * (1 if less else -1))
        first, *others = order
        level = [name for name in others if beyond_spread(own[first], own[name]) == 0]
        last = "" if order[-1] in level else order[-1]
        answer = (first, listing(level), last)
        ends = (place, write(own[first]), write(own[order[-1]]))
        clauses.setdefault(answer, []).append(ends)
        rivals += [(place, name, welch(own[first], own[name])) for name in others]
    parts = []
    for (first, level_with, last), found in clauses.items():
        places, highs, lows = zip(*found, strict=True)
        where = listing([place for place in places if place])
        beside = f", level with {level_with}" if level_with else ""
        end = f"; last {last} ({listing(lows)})" if last else ""
        text = f"best {first} ({listing(highs)}){beside}{end}"
        parts.append(f"{where}: {text}" if where else text)
    if parts:
        yield f"{lead}. {'. '.join(parts)}.{_told_apart(rivals)}"


def _told_apart(rivals: Sequence[tuple[str, str, float]]) -> str:
    """Which differences from the best Welch's test finds, corrected for how many are looked at."""
    if all(p == 1.0 for _, _, p in rivals):  # one seed each: nothing to test
        return ""
    found: dict[str, list[str]] = {}
    for (place, name, _), p in zip(rivals, holm([p for _, _, p in rivals]), strict=True):
        if p < SIGNIFICANCE:
            found.setdefault(place, []).append(name)
    told = "; ".join(
        f"{place}: {listing(n)}" if place else listing(n) for place, n in found.items()
    )
    return (
        f" Told from the best by Welch's t-test at {100 * SIGNIFICANCE:g} %, Holm-corrected over "
        f"{len(rivals)} comparisons: {told or 'none'}."
    )


def _decimals(value: float) -> int:
    """Decimals that show three significant digits of a value."""
    return 2 if value == 0 else max(0, 2 - math.floor(math.log10(abs(value))))
