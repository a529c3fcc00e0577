"""Reading the settings of a loss: what its class takes, and how sharp that makes it."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

from tricouple.losses.base import ContrastiveLoss

# Of the entries of a loss, those that are not arguments of its class.
_ABOUT = ("name", "target", "sharpness")


def loss_parameters(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a loss's class.

    Example:
        >>> loss_parameters({"name": "iot", "target": "tricouple.IOT", "epsilon": 0.1})
        {'epsilon': 0.1}
    """
    return {name: value for name, value in loss.items() if name not in _ABOUT}


def sharpness_of(loss: Mapping[str, Any]) -> float | None:
    """The sharpness c of a loss, 1/(τε), 1/ε or 1/τ; None if it has neither τ nor ε.

    Example:
        >>> sharpness_of({"temperature": 0.5, "epsilon": 0.1}), sharpness_of({"eps": 1e-4})
        (20.0, None)
    """
    names = ("temperature", "epsilon", "epsilon_pos", "regularisation")
    factors = [float(loss[name]) for name in names if name in loss]
    return float(f"{1 / math.prod(factors):.4g}") if factors else None


def build_loss(loss: Mapping[str, Any]) -> ContrastiveLoss:
    """The loss that settings describe.

    Raises:
        ValueError: If its class does not take them; the message names the loss.

    Example:
        >>> build_loss({"name": "iot", "target": "tricouple.IOT", "epsilon": 0.1}).epsilon
        0.1
    """
    module, _, name = str(loss["target"]).rpartition(".")
    try:
        criterion = getattr(importlib.import_module(module), name)(**loss_parameters(loss))
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss={loss['name']}: {error}") from error
    assert isinstance(criterion, ContrastiveLoss)
    return criterion
