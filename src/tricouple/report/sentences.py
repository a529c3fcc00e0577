"""What was found: sentences that are computed from numbers and name the test they rest on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from tricouple.report.groups import Group
from tricouple.report.numbers import MeanStd, listing

LEVEL = (
    "“Level”: the means differ by no more than both standard deviations together, or by less than "
    "1 %."
)
SIGNIFICANCE = 0.05


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


def one_seed(groups: Sequence[Group]) -> Iterator[str]:
    """A warning where every setting was run once."""
    done = [own for own in groups if own.finished]
    if done and all(len(own.finished) == 1 for own in done):
        yield "One seed a setting: small differences may be chance."


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
