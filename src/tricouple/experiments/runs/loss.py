"""The settings of a loss: what its class takes, how sharp that makes it, and the loss itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from tricouple.losses.base import ContrastiveLoss
from tricouple.names import LOSSES

# Those that are not arguments of its class; ``target`` in files of earlier versions.
_ABOUT = ("name", "_target_", "target", "sharpness")


def loss_parameters(loss: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a loss's class.

    Example:
        >>> loss_parameters({"name": "iot", "_target_": "tricouple.IOT", "epsilon": 0.1})
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


def loss_words(loss: Mapping[str, Any]) -> list[str]:
    """A loss in names of folders and records.

    Example:
        >>> loss_words({"name": "iot", "epsilon": 0.1}), loss_words({"name": "vicreg"})
        (['iot', 'c10'], ['vicreg'])
    """
    sharpness = sharpness_of(loss)
    return [loss["name"], *([] if sharpness is None else [f"c{sharpness:g}"])]


def build_loss(loss: Mapping[str, Any]) -> ContrastiveLoss:
    """The loss that settings describe.

    Raises:
        ValueError: If it is none of ours, or its class does not take the settings.

    Example:
        >>> build_loss({"name": "iot", "_target_": "tricouple.IOT", "epsilon": 0.1}).epsilon
        0.1
    """
    target = loss.get("_target_")
    known = {entry.target for entry in LOSSES.values()} - {None}
    if target not in known:  # a configuration can come from anywhere, and names what is called
        raise ValueError(
            f"loss={loss['name']}: {target} is not built from a configuration: loss._target_ can "
            f"be {', '.join(sorted(map(str, known)))}; add a loss of your own to tricouple.names"
        )
    try:
        criterion = instantiate({"_target_": target, **loss_parameters(loss)}, _recursive_=False)
    except InstantiationException as error:
        raise ValueError(f"loss={loss['name']}: {error.__cause__ or error}") from error
    assert isinstance(criterion, ContrastiveLoss)
    return criterion
