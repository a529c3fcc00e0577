"""Everything that is measured of a trained encoder, as a result that turns into JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor

from tricouple.evaluation.features import (
    Features,
    Geometry,
    check_labelled,
    measure_geometry,
)
from tricouple.evaluation.probe import knn_accuracy, linear_probe


@dataclass(frozen=True)
class FeatureReport:
    """What one kind of features is worth."""

    features: str  # ``"penultimate"`` (before the projection) or ``"embedding"`` (after it)
    dim: int  # dimension of the features
    linear: float  # test accuracy of a linear probe
    linear_train: float  # its training accuracy
    knn: float  # test accuracy of k nearest neighbours
    # Of the test features; None if they have no two classes, or no two samples of one.
    geometry: Geometry | None
    # Counts of the linear probe on the test set, true classes as rows.
    confusion: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Evaluation:
    """The result of evaluating an encoder: the same measures for both kinds of features."""

    classes: tuple[str, ...]  # names of the classes
    n_train: int  # how many labelled samples the probe and k-NN learned from
    n_test: int  # how many samples the accuracies are of
    k: int  # neighbours of k-NN
    penultimate: FeatureReport  # of the features before the projection
    embedding: FeatureReport  # of the features after it, which the loss shaped

    def as_json(self) -> dict[str, Any]:
        """Plain lists, numbers and texts, for ``json.dump``."""
        return asdict(self)

    def accuracy(self) -> dict[str, float]:
        """Every accuracy under a name that says which features it is of."""
        return {
            f"{report.features}/{measure}": getattr(report, measure)
            for report in (self.penultimate, self.embedding)
            for measure in ("linear", "knn")
        }


def evaluate_features(
    train: Features,
    test: Features,
    classes: Sequence[str],
    *,
    k: int = 20,
    epochs: int = 500,
    lr: float = 1e-3,
    batch_size: int = 256,
    weight_decay: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
    progress: Callable[[int, int], None] | None = None,
) -> Evaluation:
    """Linear probe, k-NN, confusion and geometry of both kinds of features.

    Args:
        train: Labelled features that the probe and k-NN learn from.
        test: Labelled features that are measured.
        classes: Names of the classes 0, 1, …
        k: Neighbours that vote; all training samples if there are fewer.
        epochs: Of the linear probe, as the four below.
        lr: Its learning rate.
        batch_size: Its batch size.
        weight_decay: Its weight decay.
        seed: Its seed, and that of the samples whose geometry is measured.
        device: Where the probe and k-NN are computed.
        progress: Called with the probes' epochs done and to do.

    Example:
        >>> x = torch.eye(3).repeat(8, 1)
        >>> features = Features(x, x[:, :2] + 0.1, torch.arange(3).repeat(8))
        >>> evaluate_features(features, features, "abc", k=5, epochs=5).penultimate.knn
        1.0
    """
    for part, features in {"train": train, "test": test}.items():
        for _, values in features.kinds():
            check_labelled(part, values, features.labels)
    k = min(k, len(train.labels))
    n_classes = len(classes)
    train_labels, test_labels = train.labels.to(device), test.labels.to(device)

    def measure(kind: str, known: Tensor, unseen: Tensor) -> FeatureReport:
        probe = linear_probe(
            known.to(device),
            train_labels,
            unseen.to(device),
            test_labels,
            n_classes,
            epochs=epochs,
            lr=lr,
            batch_size=batch_size,
            weight_decay=weight_decay,
            seed=seed,
            progress=progress,
        )
        pairs = test.labels * n_classes + probe.predictions.cpu()  # true class, predicted class
        confusion = torch.bincount(pairs, minlength=n_classes**2).reshape(n_classes, n_classes)
        return FeatureReport(
            kind,
            known.shape[1],
            probe.accuracy,
            probe.train_accuracy,
            knn_accuracy(known.to(device), train_labels, unseen.to(device), test_labels, k),
            measure_geometry(unseen, test.labels, seed),
            tuple(tuple(row) for row in confusion.tolist()),
        )

    return Evaluation(
        tuple(classes),
        len(train.labels),
        len(test.labels),
        k,
        measure("penultimate", train.penultimate, test.penultimate),
        measure("embedding", train.embedding, test.embedding),
    )
