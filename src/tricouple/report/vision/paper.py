"""What the paper reports on images: its tables of the appendix, and the settings behind them."""

from __future__ import annotations

import csv
from functools import cache

from tricouple.report.frame import asset
from tricouple.report.statistics import MeanStd
from tricouple.report.vision.groups import Block, Group

SEEDS = 4

# c = 1/(τε) of the paper's own losses, 1/ε of IOT, 1/τ of the others: all its τ and ε are 0.1.
SHARPNESS = {
    "neg_mmiot": 100.0,
    "pushpull": 100.0,
    "iot": 10.0,
    "infonce": 10.0,
    "invaspread": 10.0,
}

EPOCHS = {"mnist": 100, "svhn": 100, "cifar10": 400, "cifar100": 400, "tiny_imagenet": 400}
IMAGES = {
    "mnist": 60000, "svhn": 73257, "cifar10": 50000, "cifar100": 50000, "tiny_imagenet": 100000,
}  # fmt: skip


def accuracy(block: Block, loss: str, measure: str) -> MeanStd | None:
    """The paper's accuracy in per cent; None where it has no such number.

    Args:
        block: Setting, data set and backbone.
        loss: Its name on the command line.
        measure: ``linear`` or ``knn``.

    Example:
        >>> accuracy(Block("scl", "mnist", "resnet18"), "neg_mmiot", "linear")
        MeanStd(mean=99.21, std=0.09, count=4)
    """
    row = _table().get((block.setting, block.data, block.backbone, loss))
    if row is None:
        return None
    return MeanStd(float(row[measure]), float(row[f"{measure}_std"]), SEEDS)


def same_budget(own: Group) -> bool:
    """Whether runs had the images and the epochs of the paper."""
    data = own.block.data
    whole = own.images in (None, IMAGES.get(data))
    return whole and own.config.get("epochs") == EPOCHS.get(data)


@cache
def _table() -> dict[tuple[str, str, str, str], dict[str, str]]:
    rows = csv.DictReader(asset("paper_vision.csv").splitlines())
    return {(row["setting"], row["data"], row["backbone"], row["loss"]): row for row in rows}
