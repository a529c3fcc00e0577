"""The types of the configuration. Values, and why they are what they are, stand in the YAML files.

Fields have no defaults here: a value that no file gives is an error, not a second opinion.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf


@dataclass
class Data:
    """Which images, how many, of what size.

    Attributes:
        name: A data set of ``tricouple.data.images``.
        root: Folder that data sets live in; None for TRICOUPLE_DATA or the user's cache.
        eval_root: For ``folder``: labelled images to evaluate on.
        download: Whether missing data may be fetched from the network.
        image_size: Side that networks see; None for the stored size (224 for pretrained ones).
        train_size: Size of a stratified training subset; None for all images.
        max_train_size: Size of the subset where ``train_size`` asks for none and there are more
            images than this; None for no limit.
        validation_size: How many of these are held out, to choose settings on; 0 for none.
        paper_epochs: How long the paper trains on this data set.
    """

    name: str
    root: str | None
    eval_root: str | None
    download: bool
    image_size: int | None
    train_size: int | None
    max_train_size: int | None
    validation_size: int
    paper_epochs: int

    def places(self) -> tuple[str, ...]:
        """Settings that do not decide what is trained on: places, and what others overrule."""
        places = ["download", "paper_epochs"]
        if self.name != "folder":
            places += ["root", "eval_root"]
        if self.train_size is not None:  # then the limit decides nothing
            places.append("max_train_size")
        return tuple(places)


@dataclass
class Setting:
    """What the loss sees.

    Attributes:
        name: ``scl``: identities are classes; ``ucl``: identities are images.
        views: Views of each image in a batch.
        augment: Whether views are random (the paper's recipe of the data set) or the image itself.
    """

    name: str
    views: int
    augment: bool


@dataclass
class Backbone:
    """The encoder; see ``tricouple.models.encoders``.

    Attributes:
        name: A model of timm.
        pretrained: Start from timm's weights.
        weights: Start from this file of weights.
        head_dim: Dimension of the embedding; None for the number of classes, as in the paper.
    """

    name: str
    pretrained: bool
    weights: str | None
    head_dim: int | None


@dataclass
class Scale:
    """How much is computed.

    Attributes:
        name: ``smoke``, ``cpu`` or ``paper``.
        sharpness: c = 1/(τε) of every loss that has one; None for the paper's own τ and ε.
    """

    name: str
    sharpness: float | None


@dataclass
class Training:
    """The optimisation (Adam).

    Attributes:
        epochs: Passes over the training images.
        batch_size: Images in a batch (of each process).
        learning_rate: Of Adam.
        weight_decay: Of Adam.
        geometry_every: Epochs between two measurements of the geometry.
        geometry_samples: Held-out images that it is measured on.
    """

    epochs: int
    batch_size: int
    learning_rate: float
    weight_decay: float
    geometry_every: int
    geometry_samples: int


@dataclass
class Evaluation:
    """What is measured of the trained encoder; not part of a run's identity.

    Attributes:
        part: ``test``, or ``validation`` for the images that ``data.validation_size`` held out.
        neighbours: k of k-NN.
        probe_epochs: Of the linear probe.
        probe_learning_rate: Of its AdamW.
        probe_batch_size: Of its steps.
        probe_weight_decay: Of its AdamW.
        figures: Whether to draw confusion matrices and t-SNE.
    """

    part: str
    neighbours: int
    probe_epochs: int
    probe_learning_rate: float
    probe_batch_size: int
    probe_weight_decay: float
    figures: bool


@dataclass
class Train:
    """A training run.

    Attributes:
        data: The images.
        setting: What the loss sees of them.
        loss: Name, target and parameters of the loss; its sharpness is informative.
        backbone: The encoder.
        scale: How much is computed.
        training: The optimisation.
        evaluation: What is measured at the end.
        trainer: Arguments of Lightning's ``Trainer``.
        seed: Of the weights, the subset, the order of images and the views.
        runs: Folder of all runs.
        run: Folder of this run; None for a name made from the configuration.
        progress: Whether to show a progress bar on a terminal.
    """

    data: Data
    setting: Setting
    loss: dict[str, Any]
    backbone: Backbone
    scale: Scale
    training: Training
    evaluation: Evaluation
    trainer: dict[str, Any]
    seed: int
    runs: str
    run: str | None
    progress: bool


@dataclass
class Captions:
    """Which images and captions; the fields are those of ``tricouple.data.captions.Source``."""

    name: str
    format: str
    root: str | None
    folder: str | None
    train: str | None
    validation: str | None
    test: str | None
    train_images: str
    validation_images: str
    test_images: str
    image_column: str
    caption_column: str
    separator: str
    skip: bool
    train_size: int | None
    validation_size: int
    test_size: int
    cache: str | None

    def places(self) -> tuple[str, ...]:
        """Settings that say where data are, not what they show."""
        own_data = self.folder is None and self.format != "shapes"
        return ("cache", *(() if own_data else ("root", "folder")))


@dataclass
class Model:
    """open_clip's CLIP.

    Attributes:
        name: In the names of runs.
        embed_dim: Dimension of the joint space.
        vision: Arguments of open_clip's ``CLIPVisionCfg``; four numbers of layers make a Modified
            ResNet, one a vision transformer.
        text: Arguments of open_clip's ``CLIPTextCfg``.
    """

    name: str
    embed_dim: int
    vision: dict[str, Any]
    text: dict[str, Any]


@dataclass
class PairTraining(Training):
    """The optimisation of two encoders.

    Attributes:
        decoupled_decay: Whether weight decay acts on the weights (AdamW) or on the gradient (Adam).
        captions: ``one``: an epoch shows every image once, with a random one of its captions;
            ``all``: every caption once.
        augment: Whether to train on random crops (of 90 % of the image or more), as CLIP does.
        learn_temperature: Whether the sharpness of the loss is a parameter, as in CLIP.
    """

    decoupled_decay: bool
    captions: str
    augment: bool
    learn_temperature: bool


@dataclass
class PairEvaluation:
    """What is measured of the trained encoders; not part of a run's identity.

    Attributes:
        part: ``test`` or ``validation``.
        zero_shot: Image sets with classes to recognise by their names, on the test part only.
        zero_shot_size: At most this many images of each; None for all.
        gallery: How many queries of each direction to show in the report.
    """

    part: str
    zero_shot: list[str]
    zero_shot_size: int | None
    gallery: int


@dataclass
class Clip:
    """A training run on images and captions; what is not said here is as in ``Train``.

    Attributes:
        model: The encoders.
        seed: Of the weights, the subset, the order of images, the captions and the crops.
    """

    data: Captions
    loss: dict[str, Any]
    model: Model
    scale: Scale
    training: PairTraining
    evaluation: PairEvaluation
    trainer: dict[str, Any]
    seed: int
    runs: str
    run: str | None
    progress: bool


RunConfig: TypeAlias = Train | Clip


@dataclass
class Study:
    """Losses compared at settings that are chosen for each of them in the same way.

    Attributes:
        name: Of the study.
        base: Words of the configuration that all runs share.
        blocks: Words for each comparison; losses are compared within a block.
        losses: Names of the losses.
        sharpness: Grid for c; empty for what the scale gives each loss.
        learning_rates: Grid; the sharpness is chosen at the first.
        seeds: Of the final runs; settings are chosen at the first.
    """

    name: str
    base: list[str]
    blocks: list[list[str]]
    losses: list[str]
    sharpness: list[float]
    learning_rates: list[float]
    seeds: list[int]


def register() -> None:
    """Make the types and the resolvers known to Hydra; the YAML files refer to both."""
    ConfigStore.instance().store(name="train_schema", node=Train)
    ConfigStore.instance().store(name="clip_schema", node=Clip)
    OmegaConf.register_new_resolver(
        "either", lambda first, second: second if first is None else first, replace=True
    )
    OmegaConf.register_new_resolver("reciprocal", _reciprocal, replace=True)


def _reciprocal(*factors: float) -> float:
    """One over the product: τ = 1/(cε) for a wanted sharpness c."""
    # Fewer digits than a float has: 1/(3 · 0.1) should read 3.33333 in folder names and tables.
    return float(f"{1 / math.prod(factors, start=1.0):.6g}")
