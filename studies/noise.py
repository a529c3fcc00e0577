"""Which losses suffer least from wrong labels?"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import pandas as pd

from studies.heads import Heads, changed_labels, plan_of
from studies.study import LEVEL, Verdict, complete, describe, row, scores
from tricouple_lab.data.sources import data_folder
from tricouple_lab.names import UserError
from tricouple_lab.report.stats import holm, paired
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import Data
from tricouple_lab.tasks.images import Images
from tricouple_lab.tasks.text import Text

TITLE = "False negatives and label noise"
HYPOTHESIS = (
    "Accuracy falls more slowly with label noise for losses whose repulsion is bounded (PushPull, "
    "Neg-MMIOT with a hinge ψ) than for InfoNCE and IOT, each at its own best sharpness."
)
REFUTED = (
    "The slope of accuracy over noise, seed by seed, is not significantly higher for the best "
    "bounded loss than for the best of InfoNCE and IOT (paired t-test, Holm over data sets and "
    "kinds, 5 %) in the majority of them. RINCE, made for noise, is a baseline."
)
METHODS = ("infonce", "iot", "pushpull", "hinge", "rince")
BOUNDED, UNBOUNDED = ("pushpull", "hinge"), ("infonce", "iot")
NOISE = 0.6
KINDS = {
    "banking77": ("symmetric",),
    "cifar100": ("symmetric", "within"),
    "clinc150": ("symmetric", "within"),
}
# Superclass of each class of CIFAR-100, in the order of its classes.
SUPERCLASSES = (
    4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7, 6, 13, 15, 3,
    15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0,
    17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13, 16, 19,
    2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13,
)  # fmt: skip


class Noisy(Heads):
    """A share of the training and validation labels is wrong; test labels are not."""

    metric = "embedding/nearest_mean"

    def __init__(self, kind: str, share: float) -> None:
        self.kind, self.share = kind, share

    def load(self, config: Any) -> Data:
        """Draw wrong labels: of any class, or of classes of the same group."""
        data = super().load(config)
        groups = np.zeros(len(data.classes), dtype=np.int64)
        if self.kind == "within":
            groups = groups_of(config.data.name, data.classes)
        noisy = {
            name: with_noise(data.splits[name].labels.numpy(), groups, self.share, config.seed)
            for name in ("train", "validation")
        }
        splits = {name: changed_labels(data.splits[name], values) for name, values in noisy.items()}
        return self.changed(data, splits, config)


class NoisyImages(Noisy, Images):
    """Images with wrong labels."""


class NoisyTexts(Noisy, Text):
    """Texts with wrong labels."""


def plans(scale: str) -> dict[str, Plan]:
    """One plan per data set, kind of noise and level."""
    found = {}
    for data, kinds in (KINDS if scale == "cpu" else {"phrases": ("symmetric",)}).items():
        for kind, share in (("none", 0.0), *((kind, NOISE) for kind in kinds)):
            task = (NoisyImages if data == "cifar100" else NoisyTexts)(kind, share)
            where = describe({"data": data, "kind": kind, "noise": share})
            found[where] = plan_of(sys.modules[__name__], task, data, METHODS)
    return found


def judge(runs: pd.DataFrame) -> Verdict:
    """Slopes of accuracy over noise: bounded losses against InfoNCE and IOT, in points."""
    table, gaps, rince = scores(runs, "nearest_mean"), {}, {}
    places = [(data, kind) for data, kinds in KINDS.items() for kind in kinds]
    for data, kind in places:
        clean = describe({"data": data, "kind": "none", "noise": 0.0})
        noisy = describe({"data": data, "kind": kind, "noise": NOISE})
        if not all(complete(table, where, METHODS) for where in (clean, noisy)):
            continue
        slopes = 100 * (table[noisy] - table[clean]) / NOISE
        best, rival = (slopes[[*some]].mean().idxmax() for some in (BOUNDED, UNBOUNDED))
        name = f"{data}, {kind}: {best} − {rival}"
        gaps[name] = paired(slopes[best], slopes[rival])
        rince[f"{data}, {kind}: {best} − rince"] = paired(slopes[best], slopes["rince"])
    corrected = holm([gap.p for gap in gaps.values()])
    numbers = [row(*item, p) for item, p in zip(gaps.items(), corrected, strict=True)]
    numbers += [row(name, gap) for name, gap in rince.items()]
    won = sum(gap.mean > 0 and p < LEVEL for gap, p in zip(gaps.values(), corrected, strict=True))
    if len(gaps) < len(places):
        return Verdict("open", pd.DataFrame(numbers))
    return Verdict("supported" if won > len(places) / 2 else "refuted", pd.DataFrame(numbers))


def groups_of(data: str, classes: tuple[str, ...]) -> np.ndarray:
    """The superclass or domain of each class."""
    if data == "cifar100":
        return np.array(SUPERCLASSES)
    file = data_folder("") / "intents" / "clinc150" / "domains.json"
    try:
        domains = json.loads(file.read_text(encoding="utf-8"))
        number = {intent: index for index, own in enumerate(domains.values()) for intent in own}
        return np.array([number[name] for name in classes])
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise UserError(
            f"{file}: domains of the intents of {data} are needed ({error!r})"
        ) from None


def with_noise(labels: np.ndarray, groups: np.ndarray, share: float, seed: int) -> np.ndarray:
    """Labels (n,) of which a share was drawn anew among the other classes of their group.

    Example:
        >>> with_noise(np.array([0, 1, 0, 1]), np.array([0, 0]), 1.0, 0)
        array([1, 0, 1, 0])
    """
    generator = np.random.default_rng(seed + 7919)
    wrong = generator.permutation(len(labels))[: round(share * len(labels))]
    noisy = labels.copy()
    for group in np.unique(groups):
        classes = np.flatnonzero(groups == group)
        own = wrong[groups[labels[wrong]] == group]
        if len(classes) > 1 and len(own):
            turn = generator.integers(1, len(classes), len(own))
            place = np.searchsorted(classes, labels[own])
            noisy[own] = classes[(place + turn) % len(classes)]
    return noisy
