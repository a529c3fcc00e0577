"""Times, memory and growth of a run, as pandas tables; its file."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.cases import LOSS, PAIR_PLAN, TRIPLET_PLAN
from tricouple_lab.names import UserError

Run = dict[str, Any]  # problem, measurements (rows), provenance
LARGE = 8192
CAPTIONS = {
    LOSS: "Value and gradient of a loss, best time in ms",
    TRIPLET_PLAN: "Potentials of a triplet plan, best time in ms",
    PAIR_PLAN: "Matrix of a pair plan, best time in ms",
}
MATRICES = "extra memory, N×N float32 matrices"
COLUMNS = (
    *("contender", "task", "size", "seconds", "median_seconds", "extra_bytes"),
    *("processes", "dim", "backbone", "ratio"),
)


def read(path: Path) -> Run:
    """Read the file of a run.

    Raises:
        UserError: If it is none.
    """
    try:
        run: Run = json.loads(path.read_text(encoding="utf-8"))
        tables(run)
        notes(run)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise UserError(f"{path}: is not the file of a run of tricouple bench") from None
    return run


def frame(run: Run) -> pd.DataFrame:
    """Return the measurements, a row each, in other units too."""
    rows = pd.DataFrame(run["measurements"]).reindex(columns=COLUMNS)
    rows = rows.astype({name: float for name in COLUMNS if "bytes" in name or "seconds" in name})
    rows[MATRICES] = rows["extra_bytes"] / (4 * rows["size"] ** 2)
    return rows.assign(ms=1e3 * rows["seconds"])


def tables(run: Run) -> dict[str, pd.DataFrame]:
    """Return all tables of a run, by caption."""
    rows = frame(run)
    found = {}
    if rows["backbone"].notna().any():
        for name, own in rows.groupby("backbone", sort=False):
            found[f"Training step of {name}, batch {own['size'].max()}"] = step_table(own)
    elif rows["processes"].max() > 1:
        for count, own in rows.groupby("processes"):
            who, high = f"{count:.0f} processes of one thread", own["size"].max()
            own = own.assign(d=own["dim"].map("d = {:.0f}".format))
            own["at"] = own["size"].map("N = {}, ".format) + own["d"]
            found[f"{who}: best time of value and gradient in ms"] = wide(own, "at", "ms")
            last = own[own["size"] == high]
            found[f"{who}: {MATRICES} per process, N = {high}"] = wide(last, "d", MATRICES)
    else:
        found = {caption: times(run, task) for task, caption in CAPTIONS.items()}
        found[f"Growth as N^… from 1024 to {LARGE}, and extra memory"] = growth_table(rows)
    return {caption: table for caption, table in found.items() if len(table)}


def wide(rows: pd.DataFrame, columns: str, values: str, name: str = "") -> pd.DataFrame:
    """Return contenders in their order, a column per value of another column, three digits."""
    found = rows.assign(shown=rows[values].map(number))
    table = found.pivot(index="contender", columns=columns, values="shown").fillna("–")
    table = table.loc[rows["contender"].unique(), rows[columns].unique()]
    return table.rename_axis(index=name, columns=None).reset_index()


def times(run: Run, task: str, *, memory: bool = False) -> pd.DataFrame:
    """Return the best times of one task, a column per size, on request one of memory."""
    rows = frame(run)
    own = rows[rows["task"] == task]
    table = wide(own, "size", "ms", "N =")
    table = table.reindex(columns=["N =", *sorted(rows["size"].unique())], fill_value="–")
    if memory:
        table["extra memory"] = [largest_memory(own, name) for name in table["N ="]]
    return table


def growth_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return growth exponents, and the extra memory at the largest size that has one."""
    cells = []
    for name in rows["contender"].unique():
        slopes = [number(growth(rows, name, key)) for key in ("seconds", "extra_bytes")]
        cells.append([name, *slopes, largest_memory(rows, name)])
    columns = ["", "time", "memory", "extra memory"]
    return pd.DataFrame([line for line in cells if set(line[1:]) != {"–"}], columns=columns)


def largest_memory(rows: pd.DataFrame, name: str) -> str:
    """Return extra memory at the largest size that has one."""
    own = rows[(rows["contender"] == name) & (rows["extra_bytes"] > 0)].sort_values("size")
    return f"{number(own[MATRICES].iloc[-1])} N² at {own['size'].iloc[-1]}" if len(own) else "–"


def growth(rows: pd.DataFrame, name: str, key: str, low: int = 1024, high: int = LARGE) -> float:
    """Return the power of N; NaN unless both ends were measured."""
    own = rows[(rows["contender"] == name) & (rows[key] > 0) & rows["size"].between(low, high)]
    return power(own["size"], own[key]) if {low, high} <= set(own["size"]) else math.nan


def power(sizes: Sequence[int], values: Sequence[float]) -> float:
    """Return the exponent of a power law, by least squares of logarithms."""
    return float(np.polyfit(np.log(sizes), np.log(values), 1)[0])


def step_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the times of whole training steps."""
    return pd.DataFrame({
        "loss": rows["contender"],
        "best, ms": rows["ms"].map("{:.1f}".format),
        "median, ms": (1e3 * rows["median_seconds"]).map("{:.1f}".format),
        "× InfoNCE": rows["ratio"].map("{:.3f}".format),
    })  # fmt: skip


def notes(run: Run) -> list[str]:
    """Say what is missing, and how the numbers were obtained."""
    facts, rows = run["provenance"], run["measurements"]
    about = ", ".join(f"{key} {value}" for key, value in run["problem"].items() if key != "seed")
    missing = {f"{row['contender']}: {row['note']}" for row in rows if row.get("note")}
    return [
        *sorted(missing),
        f"{facts['cores']} cores of {facts['cpu']} (load {facts['load']:.1f} before the run), "
        f"torch {facts['versions']['torch']}, float32; {about}; best of interleaved rounds on "
        f"{facts['date'][:10]}, commit {str(facts['commit'])[:7]}.",
    ]


def markdown(run: Run) -> str:
    """Return the whole run as Markdown."""
    parts = [f"{caption}:\n\n{as_markdown(table)}" for caption, table in tables(run).items()]
    return "\n\n".join([*parts, *notes(run)]) + "\n"


def as_markdown(table: pd.DataFrame) -> str:
    """Return a table as Markdown, numbers to the right."""
    lines = [table.columns, ["---", *["--:"] * (table.shape[1] - 1)]]
    lines += table.replace("no", "**no**").itertuples(index=False)
    return "\n".join(f"| {' | '.join(map(str, cells))} |" for cells in lines)


def number(value: float) -> str:
    """Three digits, or a dash for nothing."""
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value >= 99.95 or value == int(value) else f"{value:#.3g}"
