"""What representations are worth: classifiers on them, their geometry, nearest neighbours.

Arrays are float32 of shape (n, d): a bank of labelled training samples, and queries.
"""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import tricouple as tc
from tricouple_lab.data.sources import ImageSplit, stratified

TEMPERATURE = 0.07  # of the votes of neighbours
THUMBNAIL = 64  # pixels
_AT_A_TIME = 1024  # queries whose similarities to the bank exist at a time
MOST = 4096  # samples that geometry looks at


@torch.inference_mode()
def encoded(encoder: Any, split: ImageSplit) -> dict[str, np.ndarray]:
    """Return ``features`` and ``embedding`` of a split, float32 of shape (n, d).

    The encoder is in evaluation mode; inputs are moved to its device.
    """
    device = next(encoder.parameters()).device
    found: dict[str, list[Tensor]] = {"features": [], "embedding": []}
    for part in split.batches():
        features = encoder.features(part.to(device))
        found["features"].append(features.float().cpu())
        found["embedding"].append(encoder.head(features).float().cpu())
    return {layer: torch.cat(parts).numpy() for layer, parts in found.items()}


# --- classifiers ----------------------------------------------------------------------------------


def knn_predictions(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, k: int
) -> np.ndarray:
    """Return the class of each query by a vote of its k most similar bank rows.

    The similarity is the cosine s; a vote weighs exp(s / 0.07), as in instance discrimination.

    Args:
        bank: float, shape (n, d).
        labels: Class of each bank row, int, shape (n,).
        queries: float, shape (m, d).
        k: Number of neighbours; at most n are used.

    Returns:
        int, shape (m,).

    Example:
        >>> bank, labels = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.array([4, 4, 7])
        >>> knn_predictions(bank, labels, np.array([[2.0, 0.5], [0.1, 1.0]]), k=1)
        array([4, 7])
    """
    classes, codes = np.unique(labels, return_inverse=True)
    votes = np.zeros((len(queries), len(classes)))
    similarity, nearest = nearest_rows(bank, queries, k)
    # Shifted by the largest, which a vote does not see, so that nothing underflows.
    weights = np.exp((similarity - similarity[:, :1]) / TEMPERATURE)
    rows = np.arange(len(queries))
    for neighbour in range(nearest.shape[1]):
        np.add.at(votes, (rows, codes[nearest[:, neighbour]]), weights[:, neighbour])
    found: np.ndarray = classes[votes.argmax(axis=1)]
    return found


def linear_predictions(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, weight_decay: float
) -> np.ndarray:
    """Return the class of each query by logistic regression on standardised inputs (L-BFGS).

    The penalty is weight_decay/2 · ‖W‖² beside the mean cross-entropy. Shapes as above.

    Example:
        >>> bank, labels = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.array([4, 4, 7])
        >>> linear_predictions(bank, labels, np.array([[2.0, 0.5], [0.1, 1.0]]), 1e-3)
        array([4, 7])
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    if len(np.unique(labels)) < 2:
        return np.full(len(queries), labels[0])
    mean, std = bank.mean(axis=0), bank.std(axis=0) + 1e-6
    probe = LogisticRegression(C=1 / max(weight_decay * len(bank), 1e-12), max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # 500 iterations are near enough
        probe.fit((bank - mean) / std, labels)
    found: np.ndarray = probe.predict((queries - mean) / std)
    return found


def nearest_mean_predictions(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray
) -> np.ndarray:
    """Return the class whose mean of unit bank rows has the largest cosine with each query.

    Example:
        >>> bank, labels = np.array([[1.0, 0.0], [0.9, 0.1], [0.0, 1.0]]), np.array([4, 4, 7])
        >>> nearest_mean_predictions(bank, labels, np.array([[2.0, 0.5], [0.1, 1.0]]))
        array([4, 7])
    """
    classes, codes = np.unique(labels, return_inverse=True)
    means = np.zeros((len(classes), bank.shape[1]))
    np.add.at(means, codes, _unit(bank))
    found: np.ndarray = classes[(_unit(queries) @ _unit(means).T).argmax(axis=1)]
    return found


def chance(bank_labels: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy of the guess that everything is of the most frequent training class."""
    if not len(labels):
        return 0.0
    values, counts = np.unique(bank_labels, return_counts=True)
    return float((labels == values[counts.argmax()]).mean())


def confusion(labels: np.ndarray, predicted: np.ndarray, n_classes: int) -> np.ndarray:
    """Return how many samples of each class (row) were taken for each class (column).

    Example:
        >>> confusion(np.array([0, 0, 1]), np.array([0, 1, 1]), 2)
        array([[1, 1],
               [0, 1]])
    """
    counts = np.zeros((n_classes, n_classes), dtype=np.int64)
    np.add.at(counts, (labels, predicted), 1)
    return counts


# --- neighbours -----------------------------------------------------------------------------------


def nearest_rows(bank: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and indices of the k most similar bank rows, best first, shape (m, k)."""
    rows, k = torch.from_numpy(_unit(bank)), min(k, len(bank))
    found = [
        (part @ rows.T).topk(k, dim=1)
        for part in torch.from_numpy(_unit(queries)).split(_AT_A_TIME)
    ]
    if not found:
        return np.zeros((0, k)), np.zeros((0, k), dtype=np.int64)
    return (
        torch.cat([part.values for part in found]).numpy(),
        torch.cat([part.indices for part in found]).numpy(),
    )


def examples(
    train: ImageSplit,
    bank: np.ndarray,
    split: ImageSplit,
    queries: np.ndarray,
    count: int = 12,
    answers: int = 5,
) -> dict[str, np.ndarray]:
    """Return a few images with the training images whose embeddings are nearest.

    Args:
        train: The training samples.
        bank: Their embeddings.
        split: The samples that ask.
        queries: Their embeddings.
        count: Number of queries, of as many classes as possible.
        answers: Number of answers to each.

    Returns:
        ``examples_queries`` (q, h, w, 3), ``examples_answers`` (q, k, h, w, 3), uint8;
        ``examples_scores`` (q, k), the cosines; ``examples_right`` (q, k) if there are labels.
    """
    chosen = stratified(split.labels.numpy(), min(count, len(split)), seed=1)
    cosines, nearest = nearest_rows(bank, queries[chosen], answers)
    shown = thumbnails(train, nearest.flatten())
    found = {
        "examples_queries": thumbnails(split, chosen),
        "examples_answers": shown.reshape(*nearest.shape, *shown.shape[1:]),
        "examples_scores": cosines,
    }
    if (split.labels >= 0).all():
        found["examples_right"] = (
            train.labels.numpy()[nearest] == split.labels.numpy()[chosen][:, None]
        )
    return found


def thumbnails(split: ImageSplit, indices: np.ndarray) -> np.ndarray:
    """Return images of a split, at most 64 pixels wide, as uint8 of shape (n, h, w, 3)."""
    pictures = split.images or split
    pixels, _ = pictures.__getitems__(indices.tolist())
    if pixels.shape[-1] > THUMBNAIL:
        small = interpolate(pixels.float(), (THUMBNAIL, THUMBNAIL), mode="bilinear", antialias=True)
        pixels = small.round().clamp(0, 255).byte()
    return pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()


# --- geometry -------------------------------------------------------------------------------------


def geometry(
    embedding: np.ndarray, labels: np.ndarray | None
) -> tuple[dict[str, float], np.ndarray]:
    """Measure neural collapse and the effective rank, on at most 4,096 samples.

    Args:
        embedding: float, shape (n, d).
        labels: int, shape (n,); None if there are none.

    Returns:
        ``geometry/effective_rank``, and with labels of two classes ``geometry/nc1``, ``nc2_std``,
        ``nc2_deviation`` and ``spectrum_ratio``; the spectrum of the class means, (K − 1,) or ().
    """
    chosen = np.arange(len(embedding))
    if len(embedding) > MOST:
        chosen = stratified(np.zeros(len(embedding)) if labels is None else labels, MOST)
    rows = torch.from_numpy(np.ascontiguousarray(embedding[chosen]))
    found = {"geometry/effective_rank": tc.geometry.effective_rank(rows)} if len(rows) > 1 else {}
    if labels is None or len(np.unique(labels[chosen])) < 2:
        return found, np.zeros(0)
    collapse = tc.geometry.neural_collapse(rows, torch.from_numpy(labels[chosen]))
    found |= {f"geometry/{name}": value for name, value in collapse.row().items()}
    return found, collapse.spectrum.numpy()


def _unit(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    return found
