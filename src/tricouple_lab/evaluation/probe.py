"""What frozen features know of classes: a linear classifier, nearest neighbours, class means.

``evaluate_features`` says all of it of a trained encoder, as a result that turns into JSON.

The paper's linear probe is AdamW, 1e-3, 500 epochs, batches of 256; its k-NN has k = 20 and cosine
distance.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tricouple import checks
from tricouple_lab.evaluation.features import Features, Geometry, measure_geometry

_SMALL_STEP = 4_000_000  # multiplications of a batch with the weights


def _check_part(part: str, features: Tensor, labels: Tensor | None = None) -> None:
    """Require finite features, and one label each if there are labels; train or test."""
    checks.matrix(f"{part}_features", features)
    if not bool(torch.isfinite(features).all()):
        raise ValueError(
            f"{part}_features must be finite, found NaN or infinity: the encoder diverged"
        )
    if labels is not None:
        checks.labels(f"{part}_labels", labels, len(features), features.device)


def _check_parts(
    train: Tensor, train_labels: Tensor, test: Tensor, test_labels: Tensor | None = None
) -> None:
    _check_part("train", train, train_labels)
    _check_part("test", test, test_labels)
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"test_features have {test.shape[1]} dimensions, train_features {train.shape[1]}"
        )


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What a linear probe reads from features."""

    accuracy: float  # share of test samples classified correctly
    train_accuracy: float  # the same of the training samples
    predictions: Tensor  # class of each test sample, shape (m,)


def linear_probe(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    n_classes: int,
    *,
    epochs: int = 500,
    lr: float = 1e-3,
    batch_size: int = 256,
    weight_decay: float = 0.0,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> ProbeResult:
    """Fit a linear layer by cross-entropy and measure its accuracy.

    Features, shape (n, d) and (m, d), are taken as they are: the paper does not speak of
    standardising them. Labels are from 0 to ``n_classes`` − 1.

    ``lr`` and ``weight_decay`` are of AdamW, the seed is of the initial weights and of the order of
    samples, and progress is called with the numbers of epochs done and of all after each.

    Example:
        >>> x = torch.tensor([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0], [0.1, 0.9]])
        >>> y = torch.tensor([0, 0, 1, 1])
        >>> linear_probe(x, y, x, y, 2, epochs=20, lr=0.1).accuracy
        1.0
    """
    _check_parts(train_features, train_labels, test_features, test_labels)
    for name, value in {"n_classes": n_classes, "epochs": epochs, "batch_size": batch_size}.items():
        checks.count(name, value)
    checks.positive_number("lr", lr)
    checks.non_negative_number("weight_decay", weight_decay)
    for part, labels in {"train": train_labels, "test": test_labels}.items():
        if int(labels.min()) < 0 or int(labels.max()) >= n_classes:
            raise ValueError(
                f"{part}_labels must be between 0 and n_classes − 1 = {n_classes - 1}, found "
                f"{int(labels.min())} to {int(labels.max())}"
            )
    both = (train_features.detach(), test_features.detach())
    train, test = (x.to(torch.promote_types(x.dtype, torch.float32)) for x in both)
    layer = _initial_layer(train, n_classes, seed)
    optimizer = torch.optim.AdamW(layer.parameters(), lr, weight_decay=weight_decay, fused=True)
    order = torch.Generator().manual_seed(seed)
    targets = nn.functional.one_hot(train_labels, n_classes).to(train.dtype)
    small = min(batch_size, len(train)) * layer.weight.numel() < _SMALL_STEP
    with threads(1 if small else torch.get_num_threads()):
        for epoch in range(epochs):
            # Shuffled once an epoch, so that every batch is a slice.
            shuffled = torch.randperm(len(train), generator=order).to(train.device)
            batches = zip(
                train[shuffled].split(batch_size), targets[shuffled].split(batch_size), strict=True
            )
            for features, wanted in batches:
                _set_gradient(layer, features, wanted)
                optimizer.step()
            if progress is not None:
                progress(epoch + 1, epochs)
    with torch.no_grad():
        predictions = layer(test).argmax(1)
        fitted = layer(train).argmax(1)
    return ProbeResult(
        int((predictions == test_labels).sum()) / len(test),
        int((fitted == train_labels).sum()) / len(train),
        predictions,
    )


def _initial_layer(features: Tensor, n_classes: int, seed: int) -> nn.Linear:
    """A linear layer with PyTorch's default distribution, from a generator of its own."""
    d = features.shape[1]
    layer: nn.Linear = nn.utils.skip_init(nn.Linear, d, n_classes, dtype=features.dtype)
    generator = torch.Generator().manual_seed(seed)
    for parameter in layer.parameters():
        nn.init.uniform_(parameter, -(d**-0.5), d**-0.5, generator=generator)
    return layer.to(features.device)


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Let torch use so many threads: on small tensors many of them only wait for each other.

    Example:
        >>> with threads(1):
        ...     torch.get_num_threads()
        1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@torch.no_grad()
def _set_gradient(layer: nn.Linear, features: Tensor, wanted: Tensor) -> None:
    """The gradient of the mean cross-entropy, ``(softmax − target)ᵀ x / b``.

    In closed form: by autograd a step takes 1.1 (512 features) to 1.6 times (10 features) as long,
    and rounds otherwise than in the stored studies.
    """
    residual = layer(features).softmax(1).sub_(wanted).div_(len(features))  # (b, K)
    layer.weight.grad = residual.T @ features
    layer.bias.grad = residual.sum(0)


_SIMILARITIES = 1 << 24  # how many of the test × train similarities exist at a time: 64 MB


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 20,
) -> float:
    """Share of test samples (m, d) whose k nearest training samples (n, d) vote for their class.

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> knn_accuracy(train, labels, torch.tensor([[5.0, 1.0], [1.0, 4.0]]), labels[1:3], k=2)
        1.0
    """
    _check_part("test", test_features, test_labels)
    predictions = knn_predictions(train_features, train_labels, test_features, k)
    return int((predictions == test_labels).sum()) / len(test_labels)


def knn_predictions(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, k: int = 20
) -> Tensor:
    """The class that most of the k nearest training samples have, by cosine; shape (m,).

    Where classes share the most votes, the smallest label wins, as in scikit-learn. Which of
    several training samples at exactly the distance of the k-th neighbour get a vote is left open.

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]])
        >>> knn_predictions(train, torch.tensor([7, 7, 4]), torch.tensor([[3.0, 2.0]]), k=3)
        tensor([7])
    """
    _check_parts(train_features, train_labels, test_features)
    checks.count("k", k)
    n = len(train_features)
    if k > n:
        raise ValueError(f"k is {k}, but there are only {n} training samples: use k <= {n}")
    classes, codes = torch.unique(train_labels, return_inverse=True)
    dtype = torch.promote_types(train_features.dtype, torch.float32)
    train = normalize(train_features.detach().to(dtype), dim=1)
    test = normalize(test_features.detach().to(dtype), dim=1)
    winners = []
    for chunk in test.split(max(1, _SIMILARITIES // n)):
        neighbours = (chunk @ train.T).topk(k, dim=1, sorted=False).indices  # (chunk, k)
        votes = chunk.new_zeros(len(chunk), len(classes))
        votes.scatter_add_(1, codes[neighbours], torch.ones_like(neighbours, dtype=dtype))
        winners.append(votes.argmax(1))  # the first of equals: the smallest label
    predictions: Tensor = classes[torch.cat(winners)]
    return predictions


def nearest_mean(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor
) -> tuple[Tensor, Tensor]:
    """The class whose mean direction is nearest to each test sample, and its cosine; (m,) both.

    Example:
        >>> z = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
        >>> nearest_mean(z, torch.tensor([3, 5]), torch.tensor([[0.6, 0.8]]))
        (tensor([5]), tensor([0.8000]))
    """
    _check_parts(train_features, train_labels, test_features)
    classes, codes = train_labels.unique(return_inverse=True)
    train, test = (normalize(part.detach(), dim=1) for part in (train_features, test_features))
    sums = train.new_zeros(len(classes), train.shape[1]).index_add(0, codes, train)
    cosines, winners = (test @ normalize(sums, dim=1).T).max(1)
    return classes[winners], cosines


@dataclass(frozen=True)
class Detection:
    """How well a score tells samples of known classes from others."""

    auroc: float  # chance that one of the first scores higher than one of the others; ties half
    fpr95: float  # share of the others at or above the score that 95 % of the first reach


def detect(inside: Tensor, outside: Tensor) -> Detection:
    """Detection by a score that is high inside: of known classes, shape (n,), and others (m,).

    Example:
        >>> detect(torch.tensor([0.9, 0.8, 0.7]), torch.tensor([0.1, 0.75]))
        Detection(auroc=0.8333333333333334, fpr95=0.5)
    """
    inside, outside = inside.double().sort().values, outside.double().sort().values
    below, reached = (
        torch.searchsorted(outside, inside, right=right).double().mean() for right in (False, True)
    )
    threshold = inside[int(0.05 * len(inside))]
    return Detection(
        float((below + reached) / 2 / len(outside)),
        float((outside >= threshold).double().mean()),
    )


# --- everything that is measured of a trained encoder ---------------------------------------------


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
    seed: int = 0,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Evaluation:
    """Linear probe, k-NN, confusion and geometry of both kinds of features.

    Args:
        train: Labelled features that the probe and k-NN learn from.
        test: Labelled features that are measured.
        classes: Names of the classes 0, 1, …
        k: Neighbours that vote; all training samples if there are fewer.
        seed: Of the probe, and of the samples whose geometry is measured.
        device: Where the probe and k-NN are computed.
        **options: Of ``linear_probe``.

    Example:
        >>> x = torch.eye(3).repeat(8, 1)
        >>> features = Features(x, x[:, :2] + 0.1, torch.arange(3).repeat(8))
        >>> evaluate_features(features, features, "abc", k=5, epochs=5).penultimate.knn
        1.0
    """
    for part, features in {"train": train, "test": test}.items():
        for _, values in features.kinds():
            _check_part(part, values, features.labels)
    k = min(k, len(train.labels))
    n_classes = len(classes)
    train_labels, test_labels = train.labels.to(device), test.labels.to(device)

    def measure(kind: str, known: Tensor, unseen: Tensor) -> FeatureReport:
        here = known.to(device), train_labels, unseen.to(device), test_labels
        probe = linear_probe(*here, n_classes, seed=seed, **options)
        pairs = test.labels * n_classes + probe.predictions.cpu()  # true class, predicted class
        confusion = torch.bincount(pairs, minlength=n_classes**2).reshape(n_classes, n_classes)
        return FeatureReport(
            kind,
            known.shape[1],
            probe.accuracy,
            probe.train_accuracy,
            knn_accuracy(*here, k),
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
