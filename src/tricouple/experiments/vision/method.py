"""From a configuration to what Lightning trains."""

from __future__ import annotations

from typing import Any

import torch

from tricouple.conf.schema import Train
from tricouple.data.augment import recipe_for
from tricouple.data.images import ImageData
from tricouple.experiments.runs.loss_settings import build_loss, loss_parameters
from tricouple.models.encoders import Encoder, build_encoder
from tricouple.training.module import BYOLTraining, LossTraining, Training, Views
from tricouple.training.seeds import derived_seed


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
    if config.loss["name"] == "byol":
        dim, parameters = encoder.head.out_features, loss_parameters(config.loss)
        return BYOLTraining(encoder, views, head_dim=dim, **parameters, **options)
    return LossTraining(encoder, views, build_loss(config.loss), **options)


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
