"""What every evaluation requires of features and labels."""

from __future__ import annotations

import torch
from torch import Tensor

from tricouple import checks


def check_features(name: str, features: Tensor) -> None:
    """Require a finite matrix, one row a sample."""
    checks.matrix(name, features)
    if not bool(torch.isfinite(features).all()):
        raise ValueError(f"{name} must be finite, found NaN or infinity: the encoder diverged")


def check_labelled(part: str, features: Tensor, labels: Tensor) -> None:
    """Require features and one label each; ``part`` is train or test."""
    check_features(f"{part}_features", features)
    checks.identities(f"{part}_labels", labels, len(features), features.device)


def check_same_width(train: Tensor, test: Tensor) -> None:
    """Require that training and test features come from the same encoder."""
    if train.shape[1] != test.shape[1]:
        raise ValueError(
            f"test_features have {test.shape[1]} dimensions, train_features {train.shape[1]}"
        )
