"""Stored runs of ``tricouple bench`` and ``benchmarks.versions``, as pandas tables."""

import json
import math
from collections.abc import Callable
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.cases import LOSS, PAIR_PLAN, TRIPLET_PLAN
from tricouple_lab.names import UserError

Run = dict[str, Any]  # provenance; problem and measurements, or rows of versions
CAPTIONS = {
    LOSS: "Value and gradient of a loss, best time in ms",
    TRIPLET_PLAN: "Potentials of a triplet plan, best time in ms",
    PAIR_PLAN: "Matrix of a pair plan, best time in ms",
}
COLUMNS = (
    *("contender", "task", "size", "seconds", "median_seconds", "extra_bytes"),
    *("processes", "dim", "backbone", "ratio"),
)


def markdown(run: Run) -> str:
    """Return the whole run as Markdown."""
    shown = {caption: found.replace("no", "**no**") for caption, found in tables(run).items()}
    parts = [f"{caption}:\n\n{as_markdown(found)}" for caption, found in shown.items()]
    return "\n".join([*parts, *notes(run)]) + "\n"


def tables(run: Run) -> dict[str, pd.DataFrame]:
    """Return all tables of a run, by caption."""
    if "rows" in run:
        sections = groupby(run["rows"], itemgetter("section"))
        return {section: targets(list(rows)) for section, rows in sections}
    rows = frame(run)
    found = {}
    if rows["backbone"].notna().any():
        for name, own in rows.groupby("backbone", sort=False):
            found[f"Training step of {name}, batch {own['size'].max()}"] = step_table(own)
    elif rows["processes"].max() > 1:
        for (count, dim), own in rows.groupby(["processes", "dim"]):
            who = f"{count:.0f} processes of one thread, d = {dim:.0f}"
            found[f"{who}: {CAPTIONS[LOSS]}, memory per process"] = times(own, LOSS)
    else:
        found = {CAPTIONS[task]: times(rows, task) for task in rows["task"].unique()}
    return found


def frame(run: Run) -> pd.DataFrame:
    """Return the measurements, a row each, in other units too."""
    rows = pd.DataFrame(run["measurements"]).reindex(columns=COLUMNS)
    rows = rows.astype({name: float for name in COLUMNS if "bytes" in name or "seconds" in name})
    return rows.assign(ms=1e3 * rows["seconds"])


def times(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    """Return the best times of one task, a column per size, and memory at the largest size."""
    own = rows[rows["task"] == task].assign(shown=rows["ms"].map(number))
    table = own.pivot(index="contender", columns="size", values="shown").fillna("–")
    table = table.reindex(columns=sorted(rows["size"].unique()), fill_value="–")
    table = table.loc[own["contender"].unique()]
    weighed = own[own["extra_bytes"] > 0].sort_values("size").groupby("contender").last()
    matrices = weighed["extra_bytes"] / (4 * weighed["size"] ** 2)
    cells = matrices.map(number) + weighed["size"].map(" N² at {}".format)
    table["extra memory"] = cells.astype(object)
    return table.fillna("–").rename_axis(index="N =", columns=None).reset_index()


def step_table(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the times of whole training steps."""
    return pd.DataFrame({
        "loss": rows["contender"],
        "best, ms": rows["ms"].map("{:.1f}".format),
        "median, ms": (1e3 * rows["median_seconds"]).map("{:.1f}".format),
        "× InfoNCE": rows["ratio"].map("{:.3f}".format),
    })  # fmt: skip


def targets(rows: list[dict[str, Any]]) -> pd.DataFrame:
    """Return the numbers of a section of ``benchmarks.versions`` and whether targets are met."""
    numbers = ["this, ms", "other, ms", "value", "value of other", "target"]
    columns = ["case", "N", *numbers[:2], "number", *numbers[2:], "met"]
    found = pd.DataFrame(rows).reindex(columns=columns)
    found[numbers] = found[numbers].astype(float).map(number)
    found["met"] = [{True: "yes", False: "no"}.get(x, "") for x in found["met"]]
    return found.fillna({"number": ""})


def notes(run: Run) -> list[str]:
    """Say what is missing, and how the numbers were obtained."""
    facts, rows = run["provenance"], run.get("measurements", [])
    missing = {f"{row['contender']}: {row['note']}" for row in rows if row.get("note")}
    if "rows" in run:
        met = [row["met"] for row in run["rows"] if row.get("met") is not None]
        found = f"{sum(met)} of {len(met)} targets met. Other is {run['against'][:7]}. "
        about = f"{run['threads']} thread(s), {run['clock']} time"
    else:
        found, problem = "", run["problem"].items()
        about = ", ".join(f"{key} {value}" for key, value in problem if key != "seed")
    return [
        *sorted(missing),
        f"{found}{facts['cores']} cores of {facts['cpu']} (load {facts['load']:.1f} before the "
        f"run), torch {facts['versions']['torch']}, float32; {about}; best of interleaved rounds "
        f"on {facts['date'][:10]}, commit {str(facts['commit'])[:7]}.",
    ]


def number(value: float) -> str:
    """Three digits, or a dash for nothing."""
    if math.isnan(value):
        return "–"
    return f"{value:.0f}" if value >= 99.95 or value == int(value) else f"{value:#.3g}"


# --- what all scripts share -----------------------------------------------------------------------


def read(
    path: Path, show: Callable[[Run], str] = markdown, what: str = "a run of tricouple bench"
) -> Run:
    """Read the JSON of a run that can be shown."""
    try:
        run: Run = json.loads(path.read_text(encoding="utf-8"))
        show(run)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror})") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise UserError(f"{path}: not {what}") from None
    return run


def as_markdown(table: pd.DataFrame, digits: int = 3) -> str:
    """Return a table as Markdown; columns of what begins like a number are on the right."""
    texts = table.map(partial(cell, digits=digits))
    right = [texts[name].str.match(r"\(?[-−]?\d|–$").all() for name in texts]
    lines = [texts.columns, ["--:" if side else "---" for side in right]]
    lines += texts.itertuples(index=False)
    return "".join(f"| {' | '.join(map(str, cells))} |\n" for cells in lines)


def cell(value: object, digits: int = 3) -> str:
    """Return a value as a text; −0 is 0, and a dash is for what is missing."""
    if pd.isna(value):
        return "–"
    text = f"{value + 0.0:.{digits}g}" if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")
