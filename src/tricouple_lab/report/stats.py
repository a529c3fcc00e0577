"""Paired comparison of methods over shared seeds."""

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
    """Compare two methods, seed by seed; without a spread there is no interval (nan)."""
    difference = np.subtract(scores, reference)
    mean = float(difference.mean()) if len(difference) else np.nan
    if len(difference) < 2 or np.ptp(difference) == 0:
        return Paired(mean, np.nan, np.nan, np.nan)
    test = stats.ttest_rel(scores, reference)
    low, high = test.confidence_interval(0.95)
    return Paired(mean, float(low), float(high), float(test.pvalue))


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
    """Compare the methods, columns, with the first one over the seeds, rows, that both have.

    Returns:
        One row per method: ``n``, ``mean``, ``std``; ``difference`` from the first, the ends
        ``low`` and ``high`` of its 95 % interval, ``p`` after Holm's correction; and ``best``,
        whether every other method is significantly worse.
    """
    table = scores.agg(["count", "mean", "std"]).T.rename(columns={"count": "n"}).astype({"n": int})
    differences = _against(scores, scores.columns[0]).reindex(table.index)
    table[["difference", "low", "high", "p"]] = differences
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
