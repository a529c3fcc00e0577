"""The verdict of a study: tables and paired differences, from its plan and its runs alone."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy import stats

from studies.study import Plan
from tricouple_lab.report.stats import LEVEL, holm

LEAST = 5  # seeds; with fewer there are intervals, but no test
SHOWN = ("cell", "row", "seed")  # of a configuration, what is no setting
Line = Mapping[str, Any]  # of runs.jsonl


class Difference(NamedTuple):
    """Row a minus row b over the seeds that both have."""

    cell: str
    rows: str
    n: int
    mean: float
    low: float  # of the t-interval
    high: float
    p: float  # of the paired t-test, corrected by Holm's method; nan with fewer than five seeds


class Verdict(NamedTuple):
    """What the rule of a hypothesis makes of its differences."""

    name: str
    word: str  # stands, refuted, or open: runs are missing
    level: float  # of the intervals
    differences: list[Difference]


def judge(plan: Plan, lines: Sequence[Line]) -> list[Verdict]:
    """Apply the rule of each hypothesis of a plan.

    The rules are ``above``: the lower end of the interval (Bonferroni over the comparisons of the
    hypothesis) is above ``margin`` in all but ``allowed`` of them; ``alike``: no difference is as
    large as ``margin`` and significant (Holm, 5 %); ``at most``: no value is above ``margin``.
    """
    scores = final_scores(lines)
    return [_judged(rule, plan, scores) for rule in plan["hypotheses"]]


def _judged(rule: Mapping[str, Any], plan: Plan, scores: pd.DataFrame) -> Verdict:
    wanted = [(cell, a, b) for cell in rule["cells"] for a, b in rule["compare"]]
    metrics = rule["metric"] if isinstance(rule["metric"], list) else [rule["metric"]] * 2
    kind, margin, name = rule["rule"], rule["margin"], rule["name"]
    level = 1 - LEVEL / len(wanted) if kind == "above" else 0.95
    if kind == "at most":
        found = [_range(scores, cell, a, metrics[0]) for cell, a, _ in wanted]
    else:
        found = [difference(scores, *one, metrics, level) for one in wanted]
    corrected = holm([one.p for one in found])
    found = [one._replace(p=p) for one, p in zip(found, corrected, strict=True)]
    least = min(one.n for one in found)
    if least < len(plan["seeds"]):
        return Verdict(name, "open", level, found)
    if kind != "at most" and least < LEAST:
        return Verdict(name, "too few seeds for a test", level, found)
    failed = {
        "above": lambda one: not one.low > margin,
        "alike": lambda one: abs(one.mean) >= margin and one.p < LEVEL,
        "at most": lambda one: not one.high <= margin,
    }[kind]
    word = "stands" if sum(map(failed, found)) <= rule["allowed"] else "refuted"
    return Verdict(name, word, level, found)


def _range(scores: pd.DataFrame, cell: str, row: str, metric: str) -> Difference:
    """Mean, least and largest value of a metric over the seeds."""
    own = values_of(scores, cell, row, metric)
    return Difference(cell, row, len(own), own.mean(), own.min(), own.max(), np.nan)


def difference(
    scores: pd.DataFrame, cell: str, a: str, b: str, metrics: Sequence[str], level: float = 0.95
) -> Difference:
    """Row a minus row b in a cell, paired by seed; a row without seeds is the same for all.

    ``metrics`` has that of a and that of b.
    """
    first, second = values_of(scores, cell, a, metrics[0]), values_of(scores, cell, b, metrics[1])
    if first.index.hasnans:  # without seeds
        first = pd.Series(first.iloc[0], second.index)
    elif second.index.hasnans:
        second = pd.Series(second.iloc[0], first.index)
    gap = (first - second).dropna()
    return Difference(cell, f"{a} − {b}", len(gap), *t_test(gap, level))


def t_test(values: pd.Series, level: float = 0.95) -> tuple[float, float, float, float]:
    """The mean, the ends of its t-interval and p; nan where there are too few values."""
    mean, n = float(values.mean()), len(values)
    if n < 2 or np.ptp(values) == 0:
        return mean, np.nan, np.nan, np.nan
    test = stats.ttest_1samp(values, 0.0)
    low, high = test.confidence_interval(level)
    return mean, float(low), float(high), float(test.pvalue) if n >= LEAST else np.nan


def final_scores(lines: Sequence[Line]) -> pd.DataFrame:
    """The metrics of the final runs, indexed by cell, row and seed."""
    rows = [
        {**{key: line["config"].get(key) for key in SHOWN}, **line["metrics"]}
        for line in lines
        if line["part"] == "final"
    ]
    return pd.DataFrame(rows, columns=None if rows else [*SHOWN]).set_index([*SHOWN]).sort_index()


def values_of(scores: pd.DataFrame, cell: str, row: str, metric: str) -> pd.Series:
    """A metric of a row in a cell, by seed; empty if there are no runs."""
    if (cell, row) not in scores.index.droplevel("seed") or metric not in scores:
        return pd.Series(dtype=float)
    found: pd.Series = scores.xs((cell, row), level=("cell", "row"))[metric].dropna()
    return found


def markdown(plan: Plan, lines: Sequence[Line]) -> str:
    """Question, hypotheses with their verdicts, and a table per cell."""
    parts = [f"# {plan['title']}", plan["question"], f"{plan['about']} Plan {plan.digest}."]
    for rule, verdict in zip(plan["hypotheses"], judge(plan, lines), strict=True):
        interval = f"{100 * verdict.level:.5g} % interval"
        parts += [
            f"## {verdict.name}: {verdict.word}",
            f"Hypothesis: {rule['says']}",
            f"Refuted if: {rule['refuted_if']}",
            table(["cell", "difference", "n", "mean", interval, "p (Holm)"],
                  [_shown(one) for one in verdict.differences]),
        ]  # fmt: skip
    parts += ["## All rows", "Mean over n seeds, ± half of its 95 % t-interval."]
    parts += [part for cell in plan["cells"] for part in _cell(plan, lines, cell)]
    return "\n\n".join(parts) + "\n"


def _shown(one: Difference) -> list[str]:
    interval = "–" if np.isnan(one.low) else f"[{one.low:+.2f}, {one.high:+.2f}]"
    p = "–" if np.isnan(one.p) else f"{one.p:.2g}"
    mean = f"{one.mean:+.2f}" if one.n else "–"
    return [one.cell, one.rows, str(one.n), mean, interval, p]


def _cell(plan: Plan, lines: Sequence[Line], cell: str) -> Iterator[str]:
    final = [line for line in lines if line["part"] == "final" and line["config"]["cell"] == cell]
    scores, rows = final_scores(final), []
    for row in plan["rows"]:
        own = [line["config"] for line in final if line["config"]["row"] == row]
        if own:
            chosen = [f"{key} {value:g}" for key, value in own[0].items() if key not in SHOWN]
            values = [values_of(scores, cell, row, metric) for metric in plan["show"]]
            shown = map(mean_and_half, values)
            rows.append([row, ", ".join(chosen) or "–", str(len(own)), *shown])
    if rows:
        yield f"{cell}:"
        yield table(["row", "settings", "n", *plan["show"].values()], rows)


def mean_and_half(values: pd.Series) -> str:
    """A mean and half of its 95 % t-interval.

    Example:
        >>> mean_and_half(pd.Series([1.0, 2.0, 3.0]))
        '2.00 ± 2.48'
    """
    mean, low, high, _ = t_test(values)
    if not len(values):
        return "–"
    return f"{mean:.2f}" if np.isnan(low) else f"{mean:.2f} ± {(high - low) / 2:.2f}"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
