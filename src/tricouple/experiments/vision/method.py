"""From a configuration to what Lightning trains."""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping
from typing import Any

import torch

from tricouple.conf.schema import Train
from tricouple.data.augment import recipe_for
from tricouple.data.images import ImageData
from tricouple.models.encoders import Encoder, build_encoder
from tricouple.training.byol_training import BYOLTraining
from tricouple.training.module import LossTraining, Training, Views
from tricouple.training.seeds import derived_seed

# Of the entries of a loss, those that are not arguments of its class.
_ABOUT = ("name", "target", "sharpness")


def build_training(config: Train, data: ImageData, identity: str) -> Training:
    """The Lightning module of a run, with freshly initialised weights.

    Args:
        config: Of the run.
        data: Its images.
        identity: Of the run, kept in its checkpoints.
    """
    setting, training = config.setting, config.training
    encoder = build_run_encoder(config, data)
    views = Views(
        setting.views, recipe_for(data), random=setting.augment, by_class=setting.name == "scl"
    )
    options: dict[str, Any] = {
        "learning_rate": training.learning_rate,
        "weight_decay": training.weight_decay,
        "seed": config.seed,
        "identity": identity,
    }
    parameters = loss_parameters(config.loss)
    if config.loss["name"] == "byol":
        dim = encoder.head.out_features
        return BYOLTraining(encoder, views, head_dim=dim, **parameters, **options)
    module, _, name = str(config.loss["target"]).rpartition(".")
    criterion = getattr(importlib.import_module(module), name)
    try:
        return LossTraining(encoder, views, criterion(**parameters), **options)
    except (TypeError, ValueError) as error:
        raise ValueError(f"loss={config.loss['name']}: {error}") from error


def build_run_encoder(config: Train, data: ImageData) -> Encoder:
    """The encoder of a run, with the initial weights of its seed."""
    backbone = config.backbone
    head_dim = backbone.head_dim or data.n_classes
    if not head_dim:
        raise ValueError("backbone.head_dim must be given for data without classes, such as 128")
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return build_encoder(
        backbone.name,
        channels=data.channels,
        image_size=data.image_size,
        head_dim=head_dim,
        pretrained=backbone.pretrained,
        weights=backbone.weights,
    )


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
