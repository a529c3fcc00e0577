"""Heads on frozen features: what the studies of labels share."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, ClassVar

import numpy as np
import torch

from studies.methods import ROWS, LogitAdjusted
from tricouple_lab.data.sources import ImageSplit
from tricouple_lab.evaluation import probe
from tricouple_lab.runs.sweep import Plan
from tricouple_lab.tasks.base import Data, Evaluation, Model
from tricouple_lab.tasks.text import TextRows, embedded

# A linear head of 64 dimensions on frozen features, about 300 steps.
HEAD = (
    *("training.batch_size=256", "training.learning_rate=1e-3", "training.weight_decay=0.01"),
    *("data.validation_share=0.2", "evaluation.every=1000"),
)
QUIET = ("evaluation.figures=false", "logger=csv", "progress=false")
IMAGES = ("backbone=efficientnet_lite0", "backbone.train=head", "backbone.head_dim=64")
TEXTS = ("model=minilm", "model.train=head", "model.head_dim=64")
SMOKE = ("scale=smoke", "model.head_dim=16", "training.epochs=1", "training.batch_size=64")
EPOCHS = {"cifar100": 2, "banking77": 10, "clinc150": 6, "clinc150_imbalanced": 8}


class Heads:
    """Before ``Images`` or ``Text`` among the bases of a task: measures accuracy per class."""

    metric = "embedding/balanced"
    last: ClassVar[tuple[str, Data] | None] = None  # as they were read, for all seeds

    def load(self, config: Any) -> Data:
        """Read the data and the frozen features, once per process."""
        parts = asdict(config)
        key = f"{[parts.get(name) for name in ('task', 'data', 'backbone', 'model')]}"
        if Heads.last is None or Heads.last[0] != key:
            Heads.last = key, super().load(config)  # type: ignore[misc]
        return Heads.last[1]

    def changed(self, data: Data, splits: Mapping[str, Any], config: Any) -> Data:
        """Return the data with some splits replaced; the digest knows it."""
        content = hashlib.sha256(f"{data.digest} {vars(self)} {config.seed}".encode())
        for name, split in splits.items():
            content.update(f"{name} {len(split)}".encode())
            content.update(split.labels.numpy().tobytes())
        both = {**data.splits, **splits}
        about = {**data.about, "metric": self.metric}
        digest = content.hexdigest()
        return replace(data, train=both["train"], splits=both, digest=digest, about=about)

    def build(self, config: Any, data: Data) -> Model:
        """As the laboratory does; a softmax over classes also learns how many each class has."""
        model: Model = super().build(config, data)  # type: ignore[misc]
        if isinstance(model.objective, LogitAdjusted):
            counts = data.splits["train"].labels.bincount(minlength=len(data.classes))
            encoder: Any = model.encoder
            model.objective.attach(counts, encoder.head.out_features)
        return model

    def evaluate(
        self, config: Any, data: Data, encoder: Any, split: str, *, full: bool
    ) -> Evaluation:
        """Accuracy by the nearest class mean: of samples, of classes, of thirds of the classes.

        The thirds are those with most, with fewer and with fewest training samples. Classes
        without training samples are left out.
        """
        train, queries = data.splits["train"], data.splits[split]
        labels, truth = train.labels.numpy(), queries.labels.numpy()
        known = np.isin(truth, labels)
        truth = truth[known]
        found = embeddings(encoder, queries)[known]
        predicted = probe.nearest_mean(embeddings(encoder, train), labels, found)[0]
        classes = np.unique(truth)
        shares = np.array([(predicted[truth == label] == label).mean() for label in classes])
        sizes = np.bincount(labels, minlength=classes.max() + 1)[classes]
        few, medium, many = np.array_split(shares[sizes.argsort(kind="stable")], 3)
        parts = {"nearest_mean": predicted == truth, "balanced": shares, "many": many,
                 "medium": medium, "few": few}  # fmt: skip
        metrics = {f"embedding/{name}": float(part.mean()) for name, part in parts.items()}
        return Evaluation(metrics, dict.fromkeys(metrics, 1 / len(classes)))


def plan_of(study: Any, task: Any, data: str, methods: Sequence[str], *words: str) -> Plan:
    """The plan of a data set; of ``phrases``, a first look: two methods, one c, one seed."""
    about: dict[str, Any] = {"hypothesis": study.HYPOTHESIS, "refuted": study.REFUTED}
    if data == "phrases":
        rows = ROWS[methods[0]], ROWS[methods[-1]]
        about |= {"grid": (10.0,), "limits": (10.0, 10.0), "seeds": (0,), "choose_seeds": (100,)}
        return Plan(task, rows, (f"data={data}", *SMOKE, *QUIET), **about)
    kind = IMAGES if data == "cifar100" else TEXTS
    base = (f"data={data}", f"training.epochs={EPOCHS[data]}", *HEAD, *kind, *QUIET, *words)
    return Plan(task, tuple(ROWS[name] for name in methods), base, grid=(3.0, 10.0, 30.0), **about)


def embeddings(encoder: Any, rows: Any) -> np.ndarray:
    """The embedding of each image or text, shape (n, d)."""
    if isinstance(rows, ImageSplit):
        return probe.encoded(encoder, rows)["embedding"]
    return embedded(encoder, rows)["embedding"]


def changed_labels(rows: Any, labels: np.ndarray) -> Any:
    """The same samples with other labels."""
    return replace(rows, labels=torch.from_numpy(labels))


def some_rows(rows: Any, chosen: np.ndarray) -> Any:
    """Some of the samples."""
    if isinstance(rows, ImageSplit):
        return rows.rows(chosen)
    index = torch.from_numpy(chosen)
    columns = tuple(column[index] for column in rows.columns)
    return TextRows(columns, rows.labels[index], rows.source.rows(chosen))
