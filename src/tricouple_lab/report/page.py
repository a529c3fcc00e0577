"""Pages of sweeps and studies, and what the command ``report`` writes."""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from markupsafe import Markup

from tricouple_lab.files import write_text
from tricouple_lab.report import comparison as compare
from tricouple_lab.report.comparison import is_share
from tricouple_lab.report.figures import lines_figure, svg
from tricouple_lab.report.frame import frame
from tricouple_lab.report.run_page import MOST_FIGURES, Section, render, run_page, to_html
from tricouple_lab.runs.folder import Record, read_arrays


def sweep_page(
    records: Iterable[Record] | pd.DataFrame,
    *,
    title: str = "Comparison of methods",
    metric: str = "",
    planned: int | None = None,
) -> tuple[str, pd.DataFrame]:
    """Return the HTML page of several runs, and its table: ``compare``, a row per block and method.

    An empty ``metric`` is that of the task; ``planned`` counts the runs that there will be.
    """
    runs = records if isinstance(records, pd.DataFrame) else frame(records)
    finished = runs[runs["status"] == "done"]
    sections: list[Section] = []
    tables = []
    for task, own in finished.groupby("task", sort=False):
        named, chosen = compare.arrange(runs[runs["task"] == task])
        named = named[named["status"] == "done"]
        key = metric or str(own["metric"].iloc[0])
        final = named[named["stage"] == "final"] if (named["stage"] == "final").any() else named
        blocks = {str(block): rows for block, rows in final.groupby("block", sort=False)}
        found = {block: compare.comparison(rows, key) for block, rows in blocks.items()}
        parts = [_methods(found[block], blocks[block], chosen, key, block) for block in blocks]
        sections += [
            Section("Methods", f"{key}: {METHODS}", parts),
            *_all_metrics(blocks),
            *_sharpness(named, chosen, key),
            *_training(blocks, key),
        ]
        several = len(found) > 1
        tables.append(pd.concat(found, names=["block"]) if several else next(iter(found.values())))
    done = int((finished["stage"] == "final").sum())
    if planned is not None and done < planned:
        missing = f"{planned - done} of {planned} planned runs are missing."
        sections.insert(0, Section("Missing", missing, []))
    return render(title, sections, runs), pd.concat(tables) if tables else pd.DataFrame()


METHODS = (
    "mean ± standard deviation over n seeds; chance, before: without an encoder, without training. "
    "difference: mean over shared seeds of a row minus the first row, with its 95 % interval; p: "
    "paired t-test, corrected by Holm's method. Bold: every other row is significantly worse (5 %)."
)


def _methods(
    table: pd.DataFrame, runs: pd.DataFrame, chosen: Sequence[str], metric: str, block: str
) -> Markup:
    share = is_share(metric)
    name = f"{metric}{' (%)' * share}"
    levels = {
        when: table[when].map("{:.2f}".format) for when in ("chance", "before") if when in table
    }
    columns = {**levels, name: table["text"], "n": table["n"], "steps": table["steps"]}
    for key in chosen:
        first = runs.drop_duplicates("row").set_index("row")[key].reindex(table.index)
        name_ = key.split(".")[-1].replace("sharpness", "c")
        columns[name_] = first.map("{:g}".format).replace("nan", "")
    columns["difference [95 %]"] = [compare.interval(row, share) for _, row in table.iterrows()]
    columns["p (Holm)"] = table["p"].map("{:.2g}".format).replace("nan", "")
    shown = pd.DataFrame(columns, index=table.index).rename_axis("method")
    shown = shown.loc[:, (shown != "").any()]  # one seed has no p
    bold = pd.DataFrame(False, index=shown.index, columns=shown.columns)
    bold[name] = table["bold"]
    return to_html(shown, bold, caption=block)


def _all_metrics(blocks: Mapping[str, pd.DataFrame]) -> Iterator[Section]:
    parts = []
    for block, runs in blocks.items():
        keys = [key.removeprefix("after/") for key in runs.columns if key.startswith("after/")]
        keys = [key for key in keys if runs[f"after/{key}"].notna().any()]
        texts, bold = compare.measurements(runs, keys)
        if len(keys) > len(texts):  # a row per metric where they are many
            texts, bold = texts.T, bold.T
        parts.append(to_html(texts, bold, caption=block))
    text = "Mean ± standard deviation over seeds. Bold: every other method is significantly worse."
    yield Section("All measurements", text, parts)


def _sharpness(runs: pd.DataFrame, chosen: Sequence[str], metric: str) -> Iterator[Section]:
    if "loss.sharpness" not in runs:
        return
    tried = runs[runs["stage"] == "choose"]
    where, key = ("validation", "validation") if len(tried) else ("test", f"after/{metric}")
    panels = compare.over_sharpness(tried if len(tried) else runs, key, chosen)
    drawn = [
        lines_figure({block: lines}, "sharpness c", metric, log_x=True)
        for block, lines in panels.items()
    ]
    if drawn:
        text = f"Mean and standard deviation on {where} data over the sharpness c = 1/(τε)."
        yield Section("Sharpness", text, [svg(figure) for figure in drawn[:MOST_FIGURES]])


def _training(blocks: Mapping[str, pd.DataFrame], metric: str) -> Iterator[Section]:
    """Curves of the metric, or of the mixture's collapse, by method."""
    drawn = []
    for block, runs in blocks.items():
        mixture = runs["task"].iloc[0] == "mixture"
        x = "step" if mixture else "epoch"
        for key in dict.fromkeys([metric, *["geometry/nc1", "geometry/nc2_deviation"] * mixture]):
            lines = compare.over_training(runs, key, x)
            if lines:
                drawn.append(lines_figure({block: lines}, x, key, log_y="nc" in key.split("/")[-1]))
    if drawn:
        text = "Validation data, mean over seeds; the band is one standard deviation."
        yield Section("Training", text, [svg(figure) for figure in drawn[:MOST_FIGURES]])


def write_report(paths: Sequence[Path], out: Path) -> None:
    """Write the page of one run, or of several."""
    runs = pd.concat([frame(path) for path in paths], ignore_index=True)
    file = paths[0] / "metrics.json"
    if len(runs) == 1 and file.exists():
        page = run_page(Record.read(file), read_arrays(paths[0]))
    else:
        plans = [plan for path in paths for plan in path.rglob("plan.json")]
        planned = [json.loads(plan.read_text(encoding="utf-8"))["planned"] for plan in plans]
        title = ", ".join(path.resolve().name for path in paths)
        page, _ = sweep_page(runs, title=title, planned=sum(planned) if planned else None)
    write_text(out, page)
