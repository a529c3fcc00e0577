"""From a configuration to the model and what Lightning trains."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from tricouple.conf.schema import Clip
from tricouple.data.normalisation import Normalisation
from tricouple.experiments.runs.loss_settings import build_loss
from tricouple.models.clip import build_clip
from tricouple.training.pairs import BothDirections, PairTraining
from tricouple.training.seeds import derived_seed

if TYPE_CHECKING:
    from open_clip import CLIP

# Of the images that CLIP was trained on; all public CLIP models use these.
CLIP_MEAN = (0.48145466, 0.4578275, 0.40821073)
CLIP_STD = (0.26862954, 0.26130258, 0.27577711)


def build_model(config: Clip) -> CLIP:
    """Both encoders, with the initial weights of the run's seed."""
    model = config.model
    torch.manual_seed(derived_seed(config.seed, "weights"))
    return build_clip(model.embed_dim, model.vision, model.text)


def build_training(config: Clip, identity: str) -> PairTraining:
    """The Lightning module of a run, with freshly initialised weights.

    Args:
        config: Of the run.
        identity: Of the run, kept in its checkpoints.
    """
    training = config.training
    return PairTraining(
        build_model(config),
        BothDirections(build_loss(config.loss), learn=training.learn_temperature),
        normalisation_of(config),
        augment=training.augment,
        decoupled_decay=training.decoupled_decay,
        learning_rate=training.learning_rate,
        weight_decay=training.weight_decay,
        seed=config.seed,
        identity=identity,
    )


def normalisation_of(config: Clip) -> Normalisation:
    """CLIP's own, at the size of the run's model."""
    return Normalisation(CLIP_MEAN, CLIP_STD, image_size(config))


def image_size(config: Clip) -> int:
    """Side of the images that the model sees."""
    size = config.model.vision.get("image_size")
    if not isinstance(size, int) or size < 1:
        raise ValueError(f"model.vision.image_size must be a whole number of pixels, got {size!r}")
    return size
