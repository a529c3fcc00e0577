"""Our runs beside the paper's numbers, as one table per item."""

from collections.abc import Mapping
from pathlib import Path

import pandas as pd

from reproduce.items import Item
from tricouple_lab import names
from tricouple_lab.names import UserError
from tricouple_lab.report.comparison import mean_std
from tricouple_lab.report.frame import frame

# Steps of the paper's image runs: epochs × training images / 256.
STEPS = {
    data: names.IMAGES[data].paper["training.epochs"] * images // 256
    for data, images in (("mnist", 60_000), ("svhn", 73_257), ("cifar10", 50_000),
                         ("cifar100", 50_000), ("tiny_imagenet", 100_000))
}  # fmt: skip
CLIP = {  # columns of the paper's table, and our metrics
    **{f"{way}_at{k}": f"after/recall_in_batch/{way}@{k}"
       for way in ("image_to_text", "text_to_image") for k in (1, 5)},
    **{f"{data}_top{k}": f"after/zero_shot/{data}@{k}"
       for data in ("cifar10", "cifar100") for k in (1, 5)},
}  # fmt: skip


def table_of(item: Item, folder: Path) -> pd.DataFrame:
    """The table of an item from the runs in a folder, new or committed ones."""
    if not any(folder.rglob("runs.jsonl")):
        raise UserError(f"{folder}: no runs of {item.name} here; tricouple reproduce {item.name}")
    runs = frame(folder)
    runs = runs[runs["stage"] == "final"]
    makers = {"mixture": mixture, "images": images, "clip": clip, "efficiency": efficiency}
    return makers[item.kind](item, runs)


def papers(name: str) -> pd.DataFrame:
    """Numbers of the paper, as texts with the digits that it has."""
    found = pd.read_csv(Path(__file__).parent / f"paper_{name}.csv", dtype="str")
    for key in [key for key in found if key.endswith("_std")]:
        found[key.removesuffix("_std")] += " ± " + found.pop(key)
    return found


def beside(runs: pd.DataFrame, name: str, by: list[str], metrics: dict[str, str]) -> pd.DataFrame:
    """A summary with the paper's numbers beside ours."""
    ours = summary(runs, by, metrics)
    paper = papers(name).rename(columns={key.removesuffix(".name"): key for key in by})
    both = ours.merge(paper, how="left", on=by, suffixes=("", ", paper"))
    shown = [title for key in metrics if key in ours for title in (key, f"{key}, paper")]
    return both[[*by, *shown, "n", "steps"]]


def summary(runs: pd.DataFrame, by: list[str], metrics: Mapping[str, str]) -> pd.DataFrame:
    """Mean ± standard deviation of metrics (title: key) per group; shares in %; n and steps."""
    rows = []
    for values, own in runs.groupby(by, sort=False, dropna=False):
        row = dict(zip(by, values, strict=True))
        for title, key in metrics.items():
            if key in own and own[key].notna().any():
                share = "geometry" not in key
                found = own[key].astype(float) * (100 if share else 1)
                row[title] = mean_std(found.mean(), found.std(), share)
        rows.append({**row, "n": len(own), "steps": int(own["steps"].max())})
    return pd.DataFrame(rows)


def mixture(item: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Where each method ends; the paper has curves, no numbers."""
    runs = runs.reindex(columns=runs.columns.union(["loss.shaping", "loss.sharpness"], sort=False))
    alike = runs["loss.name"].isin(["neg_mmiot", "pushpull"]) | (item.shaping == "linear")
    known = runs[alike & (runs["loss.shaping"].fillna("linear") == item.shaping)]
    keys = ("nc1", "nc2_std", "nc2_deviation", "directions", "effective_rank")
    by = ["data.n_classes", "method", "loss.sharpness"]
    return summary(known, by, {key: f"after/geometry/{key}" for key in keys})


def images(item: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Linear probe and k-NN accuracy of the features."""
    by = ["data.name", "setting", "backbone.name", "loss.name"]
    chosen = runs["data.name"].isin([*item.sets.split(), "digits"])
    chosen &= runs["setting"].isin(item.settings.split())
    chosen &= runs["backbone.name"].isin([*item.backbones.split(), "resnet10_small"])
    metrics = {"linear": "after/features/linear", "knn": "after/features/knn"}
    both = beside(runs[chosen], "images", by, metrics)
    return both.assign(**{"steps, paper": both["data.name"].map(STEPS)})


def clip(_: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Recall in batches and zero-shot accuracy."""
    return beside(runs, "clip", ["loss.name"], CLIP)


def efficiency(_: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy, time per step and, stored, memory; the paper has curves, no numbers."""
    by = {"loss.name": "loss", "training.batch_size": "batch_size"}
    shown = {"linear": "linear (%)", "seconds": "s per step", "mebibytes": "MiB"}
    if "after/linear" not in runs:  # as it is in the committed ones
        linear, seconds = 100 * runs["after/features/linear"], runs["seconds"] / runs["steps"]
        found = {"after/linear": linear, "after/seconds": seconds, "after/mebibytes": float("nan")}
        runs = runs.assign(**found)
    runs = runs.rename(columns=by | {f"after/{key}": title for key, title in shown.items()})
    return runs.groupby([*by.values()], sort=False)[[*shown.values()]].first().reset_index()
