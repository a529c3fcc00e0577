"""Does the best sharpness grow with the length of training?"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import torch

from studies.heads import QUIET, some_rows
from studies.study import Verdict, describe, row
from tricouple.geometry import effective_rank
from tricouple_lab.data.sources import stratified
from tricouple_lab.evaluation import probe
from tricouple_lab.report.stats import holm, paired
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import Data, Evaluation
from tricouple_lab.tasks.images import Images

TITLE = "Sharpness and the length of training"
HYPOTHESIS = (
    "H1: the best sharpness c grows with the length of training, and what c = 100 costs against "
    "the best c falls below one point of k-NN accuracy at the end. H2: at c ≥ 30 PushPull keeps "
    "more directions (effective rank) and at least two points more k-NN accuracy than InfoNCE and "
    "IOT at equal c."
)
REFUTED = (
    "H1: for the majority of losses and data sets the best c at the end is not above the best c "
    "at the first reading, or c = 100 costs a point or more at the end. H2: at c = 30 and 100 the "
    "mean paired difference to the better of InfoNCE and IOT is below two points, or the effective "
    "rank is not higher, in the majority of places."
)
METHODS, UNBOUNDED = ("infonce", "iot", "pushpull"), ("infonce", "iot")
SHARPNESS = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
PLACES = tuple(
    {"data": data, "setting": setting}
    for data in ("mnist", "cifar10")
    for setting in ("scl", "ucl")
)
READINGS = (1, 3, 8, 25, 50)  # epochs of 20 steps
WORDS = ("backbone=resnet10_small", "backbone.width=8", "data.train_size=2560",
         "data.test_size=2000", "training.batch_size=128", "training.epochs=50",
         "training.learning_rate=1e-3", "training.schedule=constant",
         "training.augment=true")  # fmt: skip
SMOKE = ("scale=smoke", "backbone=resnet10_small", "backbone.width=2", "data.train_size=96",
         "data.test_size=60", "training.epochs=1", "training.batch_size=48")  # fmt: skip
MOST = 1000  # validation images


class Readings(Images):
    """k-NN accuracy and effective rank of the features, on validation data after each epoch."""

    metric = "features/knn"

    def load(self, config: Any) -> Data:
        """Keep at most 1000 validation images."""
        data = super().load(config)
        rows = data.splits["validation"]
        kept = stratified(rows.labels.numpy(), min(MOST, len(rows)))
        return replace(data, splits={**data.splits, "validation": some_rows(rows, kept)})

    def evaluate(
        self, config: Any, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Only what is read."""
        train, queries = data.splits["train"], data.splits[split]
        bank, found = (probe.encoded(encoder, rows)["features"] for rows in (train, queries))
        labels, truth = train.labels.numpy(), queries.labels.numpy()
        predicted = probe.knn_predictions(bank, labels, found, config.evaluation.knn_k)
        metrics = {
            "features/knn": float((predicted == truth).mean()),
            "features/rank": effective_rank(torch.from_numpy(found)),
        }
        return Evaluation(metrics, {"features/knn": probe.chance(labels, truth)})


def plans(scale: str) -> dict[str, Plan]:
    """One plan per data set and setting; every c is a row."""
    smoke = scale == "smoke"
    found = {}
    for place in ({"data": "digits", "setting": "ucl"},) if smoke else PLACES:
        rows = tuple(
            (f"loss={name}", f"loss.sharpness={c:g}")
            for name in METHODS
            for c in ((10.0,) if smoke else SHARPNESS)
        )
        words = (*(SMOKE if smoke else WORDS), *QUIET, *(f"{k}={v}" for k, v in place.items()))
        plan = Plan(Readings(), rows, words, hypothesis=HYPOTHESIS, refuted=REFUTED)
        found[describe(place)] = replace(plan, seeds=(0,) if smoke else (0, 1, 2, 3, 4))
    return found


def judge(runs: pd.DataFrame) -> Verdict:
    """Both hypotheses."""
    final = runs[runs["stage"] == "final"]
    knn, rank = (read_on_the_way(final, name) for name in ("knn", "rank"))
    places, index = [describe(place) for place in PLACES], ["condition", "method", "loss.sharpness"]
    knn, rank = knn.join(final[[*index, "seed"]]), rank.join(final[[*index, "seed"]])
    means = knn.groupby(index).mean().drop(columns="seed")
    if len(means) < len(places) * len(METHODS) * len(SHARPNESS) or means.isna().any(axis=None):
        return Verdict("open", pd.DataFrame())
    first, last = means.columns[0], means.columns[-1]
    groups = list(means.groupby(["condition", "method"]))
    grows = [own[last].idxmax()[2] > own[first].idxmax()[2] for _, own in groups]
    costs = [own[last].max() - own[last].xs(100.0, level=2).iloc[0] for _, own in groups]
    gaps, kept = {}, []
    for where in places:
        for c in (30.0, 100.0):
            accuracy, ranks = (
                table[(table["condition"] == where) & (table["loss.sharpness"] == c)].pivot(
                    index="seed", columns="method", values=table.columns[len(means.columns) - 1]
                )
                for table in (knn, rank)
            )
            rival = accuracy[[*UNBOUNDED]].mean().idxmax()
            gap = paired(100 * accuracy["pushpull"], 100 * accuracy[rival])
            gaps[f"H2: {where}, c = {c:g}: pushpull − {rival}"] = gap
            kept.append(gap.mean >= 2 and (ranks["pushpull"] - ranks[rival]).mean() > 0)
    h1 = sum(grows) > len(grows) / 2 and max(costs) < 0.01
    h2 = sum(kept) > len(kept) / 2
    numbers: list[dict[str, Any]] = [
        {"": f"H1: best c grows, of {len(grows)}", "mean": sum(grows)},
        {"": "H1: c = 100 costs at the end, points at most", "mean": 100 * max(costs)},
        {"": f"H2: two points and more directions, of {len(kept)}", "mean": sum(kept)},
    ]
    corrected = holm([gap.p for gap in gaps.values()])
    numbers += [row(*item, p) for item, p in zip(gaps.items(), corrected, strict=True)]
    return Verdict("supported" if h1 and h2 else "refuted", pd.DataFrame(numbers))


def read_on_the_way(runs: pd.DataFrame, name: str) -> pd.DataFrame:
    """A measurement of each run at each reading, in the order of training."""
    committed = [key for key in runs if key.startswith(f"after/{name}@")]
    if committed:
        return runs[sorted(committed, key=lambda key: int(key.split("@")[1]))]
    rows = [
        {curve["epoch"]: curve.get(f"features/{name}") for curve in curves}
        for curves in runs["curves"]
    ]
    table = pd.DataFrame(rows, index=runs.index)
    return table.reindex(columns=[epoch for epoch in READINGS if epoch in table])
