"""Do class marginals help when classes have very different sizes?"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pandas as pd

from studies.heads import Heads, plan_of, some_rows
from studies.study import LEVEL, Verdict, complete, describe, row, scores
from tricouple_lab.report.stats import holm, paired
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import Data
from tricouple_lab.tasks.images import Images
from tricouple_lab.tasks.text import Text

TITLE = "The long tail"
HYPOTHESIS = (
    "With unbalanced classes, class marginals (every class has the same mass) give a higher "
    "balanced accuracy than uniform and target marginals, than InfoNCE, and than class-averaged "
    "InfoNCE, each at its own best sharpness."
)
REFUTED = (
    "In the majority of the data sets PushPull with class marginals is not significantly above "
    "the better of InfoNCE and class-averaged InfoNCE (paired, Holm over the methods, 5 %)."
)
METHODS = ("infonce", "bcl", "iot", "pushpull", "pushpull_target", "pushpull_classes")
OURS, RIVALS = "pushpull_classes", ("infonce", "bcl")
SETS = (("cifar100", 10), ("cifar100", 50), ("cifar100", 100), ("clinc150_imbalanced", 1))
EPOCHS = {10: 5, 50: 7, 100: 9}  # of CIFAR-100 that is cut: about 300 steps


class Tail(Heads):
    """Training classes whose sizes fall exponentially; validation and test are as they were."""

    def __init__(self, ratio: float) -> None:
        self.ratio = ratio

    def load(self, config: Any) -> Data:
        """Leave out samples; which classes are large depends on the seed."""
        data = super().load(config)
        train = data.splits["train"]
        kept = long_tail(train.labels.numpy(), self.ratio, config.seed)
        return self.changed(data, {"train": some_rows(train, kept)}, config)


class TailImages(Tail, Images):
    """Images, cut to a long tail."""


class TailTexts(Tail, Text):
    """Texts, cut to a long tail."""


def plans(scale: str) -> dict[str, Plan]:
    """One plan per data set and ratio; logit-adjusted softmax is a further baseline."""
    found = {}
    for data, ratio in SETS if scale == "cpu" else (("phrases", 10),):
        task = (TailImages if data == "cifar100" else TailTexts)(ratio)
        words = (f"training.epochs={EPOCHS[ratio]}",) if ratio in EPOCHS else ()
        methods = (*METHODS, "logit_adjusted")
        plan = plan_of(sys.modules[__name__], task, data, methods, *words)
        found[describe({"data": data, "imbalance": ratio})] = plan
    return found


def judge(runs: pd.DataFrame) -> Verdict:
    """Class marginals against InfoNCE and BCL per data set, in points of balanced accuracy."""
    table, numbers, better = 100 * scores(runs, "balanced"), [], []
    places = [describe({"data": data, "imbalance": ratio}) for data, ratio in SETS]
    for where in places:
        if not complete(table, where, METHODS):
            continue
        own = table[where]
        rival = own[[*RIVALS]].mean().idxmax()
        gaps = {name: paired(own[name], own[rival]) for name in METHODS if name != rival}
        corrected = dict(zip(gaps, holm([gap.p for gap in gaps.values()]), strict=True))
        numbers.append(row(f"{where}: {OURS} − {rival}", gaps[OURS], corrected[OURS]))
        better.append(gaps[OURS].mean > 0 and corrected[OURS] < LEVEL)
    # A majority is decided when what is missing cannot change it.
    half, won = len(places) / 2, sum(better)
    if won > half:
        return Verdict("supported", pd.DataFrame(numbers))
    lost = len(better) - won
    return Verdict("refuted" if lost >= half else "open", pd.DataFrame(numbers))


def long_tail(labels: np.ndarray, ratio: float, seed: int) -> np.ndarray:
    """Indices of a subset whose class sizes fall exponentially, the largest ``ratio`` the smallest.

    Which classes are large is drawn anew for every seed; every class keeps two samples at least.

    Example:
        >>> labels = np.arange(3).repeat(16)
        >>> sorted(np.bincount(labels[long_tail(labels, 4, 0)]).tolist())
        [4, 8, 16]
    """
    if ratio == 1:
        return np.arange(len(labels))
    generator = np.random.default_rng(seed + 104_729)
    classes = np.unique(labels)
    places = generator.permutation(len(classes)) / max(1, len(classes) - 1)
    kept = []
    for label, place in zip(classes, places, strict=True):
        own = np.flatnonzero(labels == label)
        size = max(2, round(len(own) * ratio**-place))
        kept.append(generator.permutation(own)[:size])
    return np.sort(np.concatenate(kept))
