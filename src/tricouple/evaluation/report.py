"""Everything that is measured of a trained encoder, and its figures."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

from tricouple import geometry
from tricouple.data.stratified import apportion, class_sizes, draw
from tricouple.evaluation.confusion import confusion_matrix
from tricouple.evaluation.features import Features
from tricouple.evaluation.figures import confusion_figure, tsne_figure
from tricouple.evaluation.inputs import check_labelled
from tricouple.evaluation.knn import knn_accuracy
from tricouple.evaluation.probe import linear_probe
from tricouple.evaluation.results import Evaluation, FeatureReport, Geometry

GEOMETRY_SAMPLES = 4096  # pairwise measures take matrices of this size squared
TSNE_SAMPLES = 2000  # seconds, not minutes


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
        confusion = confusion_matrix(test.labels, probe.predictions.cpu(), n_classes)
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


def measure_geometry(features: Tensor, labels: Tensor, seed: int = 0) -> Geometry | None:
    """All of ``tricouple.geometry``, on at most ``GEOMETRY_SAMPLES`` samples in class proportions.

    Returns:
        The measures; None if there are no two classes, or no two samples of one.

    Example:
        >>> measure_geometry(torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2)).alpha
        1.0
    """
    chosen = sample(labels, GEOMETRY_SAMPLES, seed)
    features, labels = features[chosen], labels[chosen]
    counts = class_sizes(labels)
    if len(counts) < 2 or int(counts.max()) < 2:
        return None
    collapse = geometry.neural_collapse(features, labels)
    distances = geometry.two_distance(features, labels)
    return Geometry(
        len(features),
        collapse.nc1,
        collapse.nc2_std,
        collapse.nc2_deviation,
        tuple(collapse.spectrum.tolist()),
        geometry.effective_rank(features),
        distances.alpha,
        distances.beta,
        geometry.uniformity(features),
    )


def write_figures(result: Evaluation, test: Features, folder: Path, seed: int = 0) -> list[Path]:
    """Write the confusion matrix and the t-SNE of both kinds of features as PNG files.

    Args:
        result: Of ``evaluate_features``.
        test: The features that it measured.
        folder: Where to write; created if it does not exist.
        seed: Of the samples that are drawn and of t-SNE.

    Returns:
        The files: ``confusion_penultimate.png``, ``tsne_penultimate.png``, and so on.
    """
    folder.mkdir(parents=True, exist_ok=True)
    chosen = sample(test.labels, TSNE_SAMPLES, seed)
    written = []
    for report, (kind, features) in zip(
        (result.penultimate, result.embedding), test.kinds(), strict=True
    ):
        path = folder / f"confusion_{kind}.png"
        title = f"linear probe on {kind} features: {100 * report.linear:.1f} % right"
        confusion_figure(torch.tensor(report.confusion), result.classes, title, path)
        written.append(path)
        path = folder / f"tsne_{kind}.png"
        title = f"t-SNE of {len(chosen)} {kind} features of the test set"
        tsne_figure(features[chosen], test.labels[chosen], result.classes, title, path, seed)
        written.append(path)
    return written


def sample(labels: Tensor, size: int, seed: int) -> Tensor:
    """Positions of at most ``size`` samples in the proportions of their classes.

    Example:
        >>> sample(torch.tensor([0, 0, 1, 1, 1, 1]), 3, seed=0).shape
        torch.Size([3])
    """
    if len(labels) <= size:
        return torch.arange(len(labels))
    counts = class_sizes(labels)
    shares = apportion(counts, size, torch.zeros_like(counts), counts)
    return draw(labels, shares, seed).nonzero().flatten()
