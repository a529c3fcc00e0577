"""k-nearest-neighbour classification of frozen features (the paper: k = 20, cosine distance)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tricouple import checks
from tricouple.evaluation.features import check_features, check_labelled, check_same_width
from tricouple.numeric import compute_dtype

_SIMILARITIES = 1 << 24  # how many of the test × train similarities exist at a time: 64 MB


def knn_accuracy(
    train_features: Tensor,
    train_labels: Tensor,
    test_features: Tensor,
    test_labels: Tensor,
    k: int = 20,
) -> float:
    """Share of test samples whose k nearest training samples vote for the right class.

    Args:
        train_features: Shape (n, d), need not be normalised.
        train_labels: Class of each training sample, shape (n,).
        test_features: Shape (m, d).
        test_labels: Class of each test sample, shape (m,).
        k: How many neighbours vote, each with one vote.

    Returns:
        The accuracy, between 0 and 1.

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [0.1, 3.0]])
        >>> labels = torch.tensor([0, 0, 1, 1])
        >>> knn_accuracy(train, labels, torch.tensor([[5.0, 1.0], [1.0, 4.0]]), labels[1:3], k=2)
        1.0
    """
    check_labelled("test", test_features, test_labels)
    predictions = knn_predictions(train_features, train_labels, test_features, k)
    return int((predictions == test_labels).sum()) / len(test_labels)


def knn_predictions(
    train_features: Tensor, train_labels: Tensor, test_features: Tensor, k: int = 20
) -> Tensor:
    """The class that most of the k nearest training samples have, by cosine similarity.

    Where classes share the most votes, the smallest label wins, as in scikit-learn. Which of
    several training samples at exactly the distance of the k-th neighbour get a vote is left open.

    Args:
        train_features: Shape (n, d), need not be normalised.
        train_labels: Class of each training sample, any integers, shape (n,).
        test_features: Shape (m, d).
        k: How many neighbours vote; at most n.

    Returns:
        One label a test sample, shape (m,).

    Example:
        >>> train = torch.tensor([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0]])
        >>> knn_predictions(train, torch.tensor([7, 7, 4]), torch.tensor([[3.0, 2.0]]), k=3)
        tensor([7])
    """
    check_labelled("train", train_features, train_labels)
    check_features("test_features", test_features)
    check_same_width(train_features, test_features)
    checks.count("k", k)
    n = len(train_features)
    if k > n:
        raise ValueError(f"k is {k}, but there are only {n} training samples: use k <= {n}")
    classes, codes = torch.unique(train_labels, return_inverse=True)
    dtype = compute_dtype(train_features.dtype)
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
