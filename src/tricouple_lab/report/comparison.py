"""Methods over shared seeds: what a row of a comparison is, what a block, and their tables."""

import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from tricouple_lab.config.compose import settings
from tricouple_lab.config.schema import SCHEMAS
from tricouple_lab.report.figures import Series
from tricouple_lab.report.run_page import number, title
from tricouple_lab.report.stats import compare

SHARES = re.compile(r"knn|linear|ncm|recall|nearest|balanced|many|medium|few|never|accuracy|top\d")
LOWER = re.compile(r"nc1|nc2|loss|fpr|skewness|never|difference|gap")
FIELDS = (  # columns that are no settings, or no part of what is compared
    "id", "task", "stage", "status", "metric", "validation", "seconds", "steps", "curves", "seed",
    "spectrum", "provenance", "per_class", "verdict", "data", "data.digest", "scale", "method",
)  # fmt: skip


def arrange(runs: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Return the frame with the columns ``row`` and ``block``, and the settings that were chosen.

    Settings that vary are arguments of the loss, which make a row, or others, which make a block.
    A setting that was tried in the stage ``choose`` and has one value per row and block is neither.
    """
    final = runs[runs["stage"] == "final"]
    final = final if len(final) else runs
    tried = runs[runs["stage"] == "choose"]
    varied = [key for key in _settings(runs) if runs[key].nunique(dropna=False) > 1]
    told = {origin.get("chosen") for origin in tried["provenance"]} & {*varied}
    numbers = [key for key in varied if pd.api.types.is_numeric_dtype(runs[key])]
    chosen = [*told] or [  # committed runs do not record it
        key for key in numbers if _values(final, varied, key) == 1 < _values(tried, varied, key)
    ]
    fixed = [key for key in varied if key not in chosen]
    rows = _needed(final, [key for key in fixed if key.startswith("loss.")], [])
    blocks = _needed(final, [key for key in fixed if not key.startswith("loss.")], rows)
    if not rows:
        rows, blocks = blocks, []
    named = runs.assign(
        row=[_text(rows, values) or "all runs" for _, values in runs.iterrows()],
        block=[_text(blocks, values) for _, values in runs.iterrows()],
    )
    if named.duplicated(["row", "block", "seed", "stage", *chosen]).any() and "data.digest" in runs:
        named["block"] = named["block"] + " data " + named["data.digest"].str[:8]
    return named, chosen


def _settings(runs: pd.DataFrame) -> list[str]:
    """Return the columns that are settings of a run's identity, the data set's name first."""
    known = {key: item for task in SCHEMAS for key, item in settings(task).items()}
    places = {key for key, item in known.items() if not item.metadata["identity"]} - {"data.name"}
    others = {*FIELDS, *places, *(key for key in runs.columns if "/" in key)}
    groups = ("old.", "trainer.", "evaluation.")
    found = [key for key in runs.columns if key not in others and not key.startswith(groups)]
    first = ("data.name", "setting", "loss.name")  # other settings may follow from them
    return [key for key in first if key in found] + [key for key in found if key not in first]


def _values(runs: pd.DataFrame, varied: Sequence[str], key: str) -> int:
    """Return the largest number of values that a setting has while all others are equal."""
    others = [other for other in varied if other != key] or [pd.Series(0, runs.index)]
    counts = runs.groupby(others, dropna=False)[key].nunique(dropna=False)
    return int(counts.max()) if len(runs) else 0


def _needed(runs: pd.DataFrame, keys: Sequence[str], given: Sequence[str]) -> list[str]:
    """Leave out settings that follow from those before them or from those that are given."""

    def splits(some: Sequence[str], key: str) -> bool:
        before = len(runs.drop_duplicates([*some])) if some else 1
        return len(runs.drop_duplicates([*some, key])) > before

    needed: list[str] = []
    for key in keys:
        if splits(needed, key) and (not given or splits(given, key)):
            needed.append(key)
    return needed


def _text(keys: Sequence[str], values: pd.Series) -> str:
    usual = ("loss.shaping", "linear")
    known = [(key, values[key]) for key in keys if pd.notna(values[key])]
    return ", ".join(title(*setting) for setting in known if setting != usual)


def scores(runs: pd.DataFrame, key: str) -> pd.DataFrame:
    """Return a measurement: one row per seed, one column per row in their order; shares in %."""
    values = runs.drop_duplicates(["seed", "row"], keep="last")
    table = values.pivot(index="seed", columns="row", values=key)[[*runs["row"].unique()]]
    return table.astype(float) * (100 if is_share(key) else 1)


def is_share(metric: str) -> bool:
    """Whether a metric is a share, written in percent."""
    return bool(SHARES.search(metric)) and not LOWER.search(metric.replace("never", ""))


def mean_std(mean: float, std: float, share: bool = False) -> str:
    """Write mean ± standard deviation, to the same decimal place."""
    if pd.isna(std) or pd.isna(mean):
        return number(mean, share)
    if share:
        return f"{mean:.2f} ± {std:.2f}"
    largest = max(abs(mean), std)
    exponent = int(np.floor(np.log10(largest))) if largest > 0 else 0
    if not -3 <= exponent < 5:
        return f"({mean / 10.0**exponent:.2f} ± {std / 10.0**exponent:.2f})e{exponent:+03d}"
    decimals = max(0, 2 - exponent)
    return f"{mean:.{decimals}f} ± {std:.{decimals}f}"


def interval(values: pd.Series, share: bool) -> str:
    """Return ``+1.20 [+0.50, +1.90]``, or as much of it as there is."""
    form = "{:+.2f}" if share else "{:+.3g}"
    mean, low, high = (form.format(values[key]) for key in ("difference", "low", "high"))
    return mean.replace("+nan", "") if pd.isna(values["low"]) else f"{mean} [{low}, {high}]"


def comparison(runs: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Compare the rows of one block: ``compare`` of the metric, with ``steps`` and ``bold``.

    Nothing is bold at ``scale=smoke``.
    """
    table = compare(scores(runs, f"after/{metric}"), lower=bool(LOWER.search(metric)))
    steps = runs.groupby("row")["steps"].agg(["min", "max"]).reindex(table.index)
    table["steps"] = [
        "–" if pd.isna(low) else f"{low:.0f}" if low == high else f"{low:.0f} to {high:.0f}"
        for low, high in steps.itertuples(index=False)
    ]
    smoke = "scale" in runs and bool((runs["scale"] == "smoke").any())
    table["bold"], share = table["best"] & (not smoke), is_share(metric)
    for when in ("chance", "before"):
        if (key := f"{when}/{metric}") in runs:
            table[when] = runs.groupby("row")[key].mean() * (100 if share else 1)
    both = zip(table["mean"], table["std"], strict=True)
    table["text"] = [mean_std(*values, share) for values in both]
    return table


def measurements(runs: pd.DataFrame, keys: Sequence[str]) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return mean ± std of every metric for one block as texts, and which of them are bold."""
    texts, bold = {}, {}
    for key in keys:
        table, share = comparison(runs, key), is_share(key)
        name = f"{key} (%)" if share else key
        texts[name] = list(table["text"])
        ranked = share or bool(LOWER.search(key))  # of an effective rank none is the best
        bold[name] = list(table["bold"] & ranked)
    index = pd.Index(runs["row"].unique(), name="method")
    return pd.DataFrame(texts, index=index), pd.DataFrame(bold, index=index)


def over_sharpness(
    runs: pd.DataFrame, key: str, chosen: Sequence[str] = ()
) -> dict[str, list[Series]]:
    """Return a measurement over the sharpness c: per block, a line per loss with two or more c.

    Of other settings that were chosen, the value that was tried most often.
    """
    for other in [other for other in chosen if other != "loss.sharpness"]:
        runs = runs[runs[other] == runs[other].mode()[0]]
    names = ["loss.name"] + [name for name in ("loss.shaping",) if name in runs]
    runs = runs.assign(row=[_text(names, values) for _, values in runs.iterrows()])
    measured = runs["metric"].iloc[0] if key == "validation" and len(runs) else key
    found = {
        str(block): lines(own, "loss.sharpness", key, is_share(measured))
        for block, own in runs.groupby("block", sort=False)
    }
    return {block: drawn for block, drawn in found.items() if drawn}


def over_training(runs: pd.DataFrame, key: str, x: str) -> list[Series]:
    """Return a quantity of ``curves`` over steps or epochs: a line per row."""
    points = [
        {"row": row, **point}
        for row, curve in runs[["row", "curves"]].itertuples(index=False)
        for point in curve
    ]
    table = pd.DataFrame(points)
    return lines(table, x, key, is_share(key)) if {x, key} <= {*table} else []


def lines(points: pd.DataFrame, x: str, y: str, share: bool) -> list[Series]:
    """Return a line per row of the comparison: mean and spread of y at each x, if several."""
    found = []
    for row, own in points.dropna(subset=[x, y]).groupby("row", sort=False):
        values = (100 if share else 1) * own.groupby(x)[y].agg(["mean", "std"])
        if len(values) > 1:
            columns = (list(values[key]) for key in ("mean", "std"))
            found.append(Series(str(row), list(values.index), *columns))
    return found
