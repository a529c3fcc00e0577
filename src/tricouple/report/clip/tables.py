"""Retrieval, zero-shot and geometry as tables, the paper's numbers beside ours."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from functools import cache

from tricouple.report.clip.groups import Group
from tricouple.report.frame import asset
from tricouple.report.statistics import MeanStd
from tricouple.report.tables_before import Column, Table, measured_table

IN_BATCH = "Recall in batches of the training size, one caption an image, %"
WHOLE = "Recall among all images and all captions of the split, %"
DIRECTIONS = {"image_to_text": "image → text", "text_to_image": "text → image"}
GEOMETRY = {
    "gap": "modality gap",
    "alignment": "alignment",
    "image_uniformity": "uniformity, images",
    "text_uniformity": "uniformity, texts",
    "matched": "cosine, matched",
    "unmatched": "cosine, others",
    "image_rank": "effective rank, images",
    "text_rank": "effective rank, texts",
}


def retrieval_tables(
    groups: tuple[Group, ...], *, paper: bool, at: Sequence[int] = (1, 5, 10)
) -> list[Table]:
    """Recall in batches, beside the paper's if asked for, and on the whole split."""
    return [
        _retrieval(groups, "in_batch", IN_BATCH, at, paper=paper),
        _retrieval(groups, "whole_split", WHOLE, at, paper=False),
    ]


def zero_shot_table(groups: tuple[Group, ...], *, paper: bool) -> Table | None:
    """Top-1 and top-5 on each image set; None if none was looked at."""
    names = sorted(
        {
            name.split("/")[1]
            for own in groups
            for run in own.finished
            for name in run.metrics
            if name.startswith("zero_shot/")
        }
    )
    columns = []
    for name in names:
        for top in (1, 5):
            columns.append(_column(groups, f"zero_shot/{name}/top{top}", f"{name} top-{top}"))
            if paper:
                columns.append(_paper(groups, f"{name}_top{top}"))
    caption = "Zero-shot classification, the mean of several sentences for each class, %"
    return _table(groups, columns, caption) if columns else None


def geometry_table(groups: tuple[Group, ...]) -> Table:
    """Gap, alignment and uniformity; one row a loss."""
    columns = [
        Column(title, [own.metric(f"modalities/{name}") for own in groups])
        for name, title in GEOMETRY.items()
    ]
    names = [own.name for own in groups]
    return measured_table("Geometry of unit embeddings", "loss", names, columns)


def _retrieval(
    groups: tuple[Group, ...], place: str, caption: str, at: Sequence[int], *, paper: bool
) -> Table:
    columns = []
    for direction, words in DIRECTIONS.items():
        for k in at:
            name = f"{place}/{direction}/at{k}"
            columns.append(_column(groups, name, f"{words} @{k}"))
            if paper and k < 10:
                columns.append(_paper(groups, f"{direction}_at{k}"))
    return _table(groups, columns, caption)


def _table(groups: tuple[Group, ...], columns: list[Column], caption: str) -> Table:
    names = [*(f"{own.name} (c = {own.sharpness:g})" for own in groups), "guessing"]
    return measured_table(caption, "loss", names, columns)


def _column(groups: tuple[Group, ...], name: str, title: str) -> Column:
    guess = [own.percent(f"chance/{name}").mean for own in groups]
    chance = MeanStd(guess[0] if guess else float("nan"), float("nan"), 1)
    values = [*(own.percent(name) for own in groups), chance]
    return Column(title, values, (lambda value: -value) if len(groups) > 1 else None)


def _paper(groups: tuple[Group, ...], name: str) -> Column:
    values = [_papers().get(own.loss, {}).get(name) for own in groups]
    shown = [
        MeanStd(float("nan") if value is None else float(value), float("nan"), 1)
        for value in [*values, None]
    ]
    return Column("paper", shown)


@cache
def _papers() -> dict[str, dict[str, str]]:
    return {row["loss"]: row for row in csv.DictReader(asset("paper_clip.csv").splitlines())}
