"""Paired comparison of methods over shared seeds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

LEVEL = 0.05


class Paired(NamedTuple):
    """A difference between two methods over the same seeds."""

    mean: float
    low: float  # 95 % confidence interval
    high: float
    p: float  # two-sided paired t-test, not yet corrected


def paired(scores: Sequence[float], reference: Sequence[float]) -> Paired:
    """Compare two methods, seed by seed; without a spread there is no interval (nan).

    Example:
        >>> [round(value, 3) for value in paired([3.0, 4.0, 5.0], [2.0, 3.5, 4.0])]
        [0.833, 0.116, 1.55, 0.038]
    """
    difference = np.subtract(scores, reference)
    if len(difference) == 0:
        return Paired(np.nan, np.nan, np.nan, np.nan)
    if len(difference) < 2 or np.ptp(difference) == 0:
        return Paired(float(difference.mean()), np.nan, np.nan, np.nan)
    test = stats.ttest_rel(scores, reference)
    interval = test.confidence_interval(0.95)
    return Paired(
        float(difference.mean()), float(interval.low), float(interval.high), float(test.pvalue)
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Correct p-values for several comparisons (Holm); missing ones (nan) are not counted.

    Example:
        >>> holm([0.01, 0.04, 0.03, float("nan")])
        [0.03, 0.06, 0.06, nan]
    """
    corrected, largest = [float("nan")] * len(p_values), 0.0
    order = [index for index in np.argsort(p_values) if not np.isnan(p_values[index])]
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def compare(scores: pd.DataFrame, *, lower: bool = False) -> pd.DataFrame:
    """Compare every column of a table with its first one, over the seeds that both have.

    Args:
        scores: One row per seed, one column per method.
        lower: Whether the best method has the lowest score.

    Returns:
        One row per method: ``n``, ``mean``, ``std``; ``difference`` from the first, the ends
        ``low`` and ``high`` of its 95 % interval, ``p`` after Holm's correction; and ``best``,
        whether every other method is significantly worse.
    """
    table = scores.agg(["count", "mean", "std"]).T.rename(columns={"count": "n"}).astype({"n": int})
    columns = ["difference", "low", "high", "p"]
    differences = _against(scores, scores.columns[0]).reindex(table.index)
    table[columns] = differences.set_axis(columns, axis=1)
    table["best"] = False
    ends = table["mean"].dropna()
    if len(ends) > 1:
        first = ends.idxmin() if lower else ends.idxmax()
        table.loc[first, "best"] = bool((_against(scores, first)["p"] < LEVEL).all())
    return table


def _against(scores: pd.DataFrame, reference: object) -> pd.DataFrame:
    """Return the paired difference of each other column from one, with corrected p."""
    found = {}
    for method in scores.columns.drop(reference):
        both = scores[[method, reference]].dropna()
        found[method] = paired(both[method], both[reference])
    table = pd.DataFrame.from_dict(found, orient="index", columns=[*Paired._fields])
    return table.assign(p=holm(list(table["p"])))
