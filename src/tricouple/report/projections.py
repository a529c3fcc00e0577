"""Ways to see unit vectors in the plane. Pure functions: arrays in, arrays out."""

from __future__ import annotations

import warnings

import numpy as np
import numpy.typing as npt

from tricouple.report.read import Array

Labels = npt.NDArray[np.int64]


def unit(embeddings: Array) -> Array:
    """Scale the last axis to length one; zero vectors stay zero.

    Example:
        >>> unit(np.array([[3.0, 4.0], [0.0, 0.0]])).tolist()
        [[0.6, 0.8], [0.0, 0.0]]
    """
    lengths = np.linalg.norm(embeddings, axis=-1, keepdims=True)
    return embeddings / np.where(lengths > 0, lengths, 1.0)


def class_means(z: Array, labels: Labels) -> Array:
    """Mean of each class, (K, d), in the order of the labels.

    Example:
        >>> class_means(np.array([[0.0], [2.0], [5.0]]), np.array([4, 4, 7])).tolist()
        [[1.0], [5.0]]
    """
    return np.stack([z[labels == label].mean(axis=0) for label in np.unique(labels)])


def leading_plane(means: Array) -> Array:
    """The two leading directions of class means (K, d), as orthonormal columns (d, 2).

    The means are not centred: when all classes point the same way, that way is a leading
    direction and the picture shows them in one place.

    Example:
        >>> leading_plane(np.array([[2.0, 0.0, 0.0], [0.0, 0.0, -1.0]])).T.tolist()
        [[1.0, 0.0, 0.0], [0.0, 0.0, 1.0]]
    """
    directions = np.linalg.svd(means)[2][:2]  # (2, d), or (1, d) in one dimension
    largest = np.abs(directions).argmax(axis=1)
    # A singular vector is known up to its sign: fix it, so that the page does not flip.
    signs = np.sign(directions[np.arange(len(directions)), largest])
    plane = (directions * signs[:, None]).T + 0.0
    return np.pad(plane, ((0, 0), (0, 2 - plane.shape[1])))


def tsne(z: Array, seed: int = 0) -> Array:
    """Points in the plane, within ±1, that are neighbours where the directions of rows are.

    Args:
        z: Shape (n, d), normalised here.
        seed: Equal seeds give equal points.

    Returns:
        Shape (n, 2); all zero where there is nothing to tell apart.

    Example:
        >>> tsne(np.eye(12)).shape
        (12, 2)
    """
    # Distances of unit vectors order like their cosines, and are much faster here.
    z = unit(z)
    if len(z) < 3 or np.ptp(z, axis=0).max() < 1e-6:
        return np.zeros((len(z), 2))
    from sklearn.manifold import TSNE  # seconds to import, and not every page needs it

    perplexity = min(30.0, (len(z) - 1) / 3)
    model = TSNE(perplexity=perplexity, init="pca", max_iter=500, random_state=seed)
    with warnings.catch_warnings():
        # Its initial projection divides by the spread, which a nearly collapsed z has not.
        warnings.simplefilter("ignore", RuntimeWarning)
        points = np.asarray(model.fit_transform(z), dtype=np.float64)
    points -= points.mean(axis=0)
    return points / max(float(np.abs(points).max()), 1e-12)


def thin(count: int, limit: int) -> npt.NDArray[np.int64]:
    """Return at most `limit` positions out of `count`, evenly spread, first and last included.

    Example:
        >>> thin(9, 3).tolist(), thin(2, 5).tolist()
        ([0, 4, 8], [0, 1])
    """
    return np.unique(np.linspace(0, count - 1, min(count, limit)).round().astype(np.int64))
