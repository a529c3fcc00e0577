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
    """Numbers of the paper; of image-text they are texts, with the digits that it has."""
    texts = tuple(CLIP) if name == "clip" else ()
    file = Path(__file__).parent / f"paper_{name}.csv"
    return pd.read_csv(file, dtype=dict.fromkeys(texts, "str"))


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
    ours = summary(runs[chosen], by, metrics)
    paper = papers("images").rename(columns={key.removesuffix(".name"): key for key in by})
    for name in metrics:
        pairs = zip(paper[name], paper[f"{name}_std"], strict=True)
        paper[f"{name}, paper"] = [mean_std(*pair, share=True) for pair in pairs]
    both = ours.merge(paper.drop(columns=list(metrics)), on=by, how="left")
    both["steps, paper"] = both["data.name"].map(STEPS)
    order = ["linear", "linear, paper", "knn", "knn, paper", "n", "steps", "steps, paper"]
    return both[[*by, *order]]


def clip(item: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Recall in batches and zero-shot accuracy."""
    ours = summary(runs, ["loss.name"], CLIP)
    both = ours.merge(papers("clip").rename(columns={"loss": "loss.name"}), on="loss.name",
                      how="left", suffixes=("", ", paper"))  # fmt: skip
    pairs = [(key, f"{key}, paper") for key in CLIP if key in ours]
    return both[["loss.name", *(key for pair in pairs for key in pair), "n", "steps"]]


def efficiency(item: Item, runs: pd.DataFrame) -> pd.DataFrame:
    """Accuracy, time per step and, stored, memory; the paper has curves, no numbers."""
    by, shown = ["loss", "batch_size"], ["linear (%)", "s per step", "MiB"]
    if "after/linear" in runs:  # committed
        names_of = dict(zip(["loss.name", "after/size"], by, strict=True))
        keys = ["after/linear", "after/seconds", "after/mebibytes"]
        runs = runs.rename(columns={**names_of, **dict(zip(keys, shown, strict=True))})
    else:
        runs = runs.rename(columns={"loss.name": "loss", "training.batch_size": "batch_size"})
        linear, seconds = 100 * runs["after/features/linear"], runs["seconds"] / runs["steps"]
        runs = runs.assign(**{"linear (%)": linear, "s per step": seconds, "MiB": float("nan")})
    return runs.groupby(by, sort=False)[shown].first().reset_index()


def markdown(table: pd.DataFrame) -> str:
    """A table as Markdown; missing values are dashes."""
    texts = table.map(
        lambda x: "–" if pd.isna(x) else f"{x:.4g}" if isinstance(x, float) else str(x)
    )
    rows = [texts.columns, ["---"] * texts.shape[1], *texts.itertuples(index=False)]
    return "".join(f"| {' | '.join(map(str, row))} |\n" for row in rows)
