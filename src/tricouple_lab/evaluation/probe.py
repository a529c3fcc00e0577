"""Evaluation of representations: classifiers, geometry, nearest neighbours.

Arrays are float32 of shape (n, d): a bank of labelled training samples, and queries.
"""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import interpolate

import tricouple as tc
from tricouple_lab.config.schema import Evaluation
from tricouple_lab.data.sources import ImageSplit, stratified

TEMPERATURE = 0.07  # of the votes of neighbours
THUMBNAIL = 64  # pixels
ANSWERS = 5  # what is retrieved for a query on the page
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


def knn_predictions(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, k: int
) -> np.ndarray:
    """Return the class of each query, int (m,), by a vote of its k most similar bank rows.

    The similarity is the cosine s; a vote weighs exp(s / 0.07), as in instance discrimination.
    """
    from sklearn.neighbors import KNeighborsClassifier

    def votes(distances: np.ndarray) -> np.ndarray:  # of unit rows: d²/2 = 1 − s
        return np.exp(-(distances**2) / (2 * TEMPERATURE))

    probe = KNeighborsClassifier(min(k, len(bank)), weights=votes, algorithm="brute")
    found: np.ndarray = probe.fit(_unit(bank), labels).predict(_unit(queries))
    return found


def linear_predictions(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray, weight_decay: float
) -> np.ndarray:
    """Return the class of each query by logistic regression on standardised inputs (L-BFGS).

    The penalty weight_decay/2 · ‖W‖² is added to the mean cross-entropy.
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


def nearest_mean(
    bank: np.ndarray, labels: np.ndarray, queries: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the class whose mean of unit bank rows is nearest to each query, and its cosine."""
    classes, codes = np.unique(labels, return_inverse=True)
    means = np.zeros((len(classes), bank.shape[1]))
    np.add.at(means, codes, _unit(bank))
    cosines = _unit(queries) @ _unit(means).T
    return classes[cosines.argmax(axis=1)], cosines.max(axis=1)


def accuracies(
    bank: dict[str, np.ndarray],
    bank_labels: np.ndarray,
    queries: dict[str, np.ndarray],
    labels: np.ndarray,
    settings: Evaluation,
    kinds: Sequence[str],
) -> tuple[dict[str, float], np.ndarray]:
    """Return ``LAYER/KIND`` of each layer and kind, and what the first kind predicts.

    Kinds are ``knn``, ``linear``, and ``nearest_mean`` or ``ncm``. The predictions are those of the
    last layer.
    """
    metrics, first = {}, labels
    for layer, queried in queries.items():
        rows = bank[layer], bank_labels, queried
        for kind in kinds:
            if kind == "knn":
                predicted = knn_predictions(*rows, settings.knn_k)
            elif kind == "linear":
                predicted = linear_predictions(*rows, settings.probe_weight_decay)
            else:
                predicted = nearest_mean(*rows)[0]
            metrics[f"{layer}/{kind}"] = float((predicted == labels).mean())
            first = predicted if kind == kinds[0] else first
    return metrics, first


def chance(bank_labels: np.ndarray, labels: np.ndarray) -> float:
    """Return the accuracy of the guess that everything is of the most frequent training class."""
    if not len(labels):
        return 0.0
    values, counts = np.unique(bank_labels, return_counts=True)
    return float((labels == values[counts.argmax()]).mean())


def nearest_rows(bank: np.ndarray, queries: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return cosines and indices of the k most similar bank rows, best first, shape (m, k)."""
    rows, k = torch.from_numpy(_unit(bank)), min(k, len(bank))
    parts = torch.from_numpy(_unit(queries)).split(_AT_A_TIME)
    found = zip(*((part @ rows.T).topk(k, dim=1) for part in parts), strict=True)
    cosines, indices = (torch.cat(columns).numpy() for columns in found)
    return cosines, indices


def examples(
    stem: str,
    queries: np.ndarray,
    bank: np.ndarray,
    asked: np.ndarray,
    answers: Callable[[np.ndarray], np.ndarray],
    ids: np.ndarray,
    bank_ids: np.ndarray,
) -> dict[str, np.ndarray]:
    """Return queries (q, d) with the five nearest rows of a bank (n, d), as arrays ``STEM_…``.

    The page shows ``asked`` (q,) for the queries, texts or images, and ``answers`` of the rows.
    Answers with the id of the query are right; a negative id is unknown.
    """
    cosines, nearest = nearest_rows(bank, queries, ANSWERS)
    found = {"queries": asked, "answers": answers(nearest), "scores": cosines}
    if (ids >= 0).all():
        found["right"] = bank_ids[nearest] == ids[:, None]
    return {f"{stem}_{name}": value for name, value in found.items()}


def thumbnails(split: ImageSplit, indices: np.ndarray) -> np.ndarray:
    """Return images of a split, at most 64 pixels wide: uint8 (…, h, w, 3) for indices (…)."""
    pixels, _ = (split.images or split).__getitems__(indices.ravel().tolist())
    if pixels.shape[-1] > THUMBNAIL:
        small = interpolate(pixels.float(), (THUMBNAIL, THUMBNAIL), mode="bilinear", antialias=True)
        pixels = small.round().clamp(0, 255).byte()
    shown = pixels.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().numpy()
    return shown.reshape(*indices.shape, *shown.shape[1:])


def geometry(
    embedding: np.ndarray, labels: np.ndarray | None
) -> tuple[dict[str, float], np.ndarray]:
    """Measure neural collapse and the effective rank, on at most 4,096 samples.

    Returns ``geometry/effective_rank``, and with labels of two classes ``geometry/nc1``,
    ``nc2_std``, ``nc2_deviation``, ``spectrum_ratio``; and the spectrum of the class means.
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


def collapse_note(embedding: np.ndarray, n_classes: int = 0) -> str | None:
    """Return a warning if embeddings, shape (n, d), nearly all point in the same direction.

    Their median cosine is 0.99 or more, or their effective rank below 1.05, except for two classes.
    """
    rows = torch.from_numpy(np.asarray(embedding[:1000], dtype=np.float32))
    if len(rows) < 3:
        return None
    unit = torch.nn.functional.normalize(rows, dim=1)
    cosines = (unit @ unit.T)[tuple(torch.triu_indices(len(unit), len(unit), 1))]
    median, rank = float(cosines.median()), tc.geometry.effective_rank(rows)
    if median < 0.99 and (rank >= 1.05 or n_classes == 2):
        return None
    return (
        f"the embeddings have collapsed: the median cosine of two of them is {median:.3f}, their "
        f"effective rank {rank:.1f}; train longer, lower the learning rate or raise loss.sharpness"
    )


def _unit(rows: np.ndarray) -> np.ndarray:
    found: np.ndarray = rows / np.linalg.norm(rows, axis=1, keepdims=True).clip(1e-12)
    return found
