"""The types of the configuration of image-text training; values stand in the YAML files."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tricouple.conf.schema import Scale, Training


@dataclass
class Captions:
    """Which images and captions; see ``tricouple.data.captions``.

    Attributes:
        name: Of the data set, in the names of runs.
        format: ``shapes``, ``coco``, ``csv`` or ``shards``.
        root: Folder of the data set; None for ``folder`` inside TRICOUPLE_DATA or the user's cache.
        folder: Where data folders have this set.
        train: File of captions to train on, or a pattern of shards; relative to the root.
        validation: The same, to choose settings on; None to hold images out of the training set.
        test: The same, to evaluate on; None to hold images out of the training set.
        train_images: Folder that the training images are named from, relative to the root.
        validation_images: The same for the validation images.
        test_images: The same for the test images.
        image_column: Of a CSV file: names of image files.
        caption_column: Of a CSV file: captions.
        separator: Of a CSV file: what is between two columns.
        skip: Leave out what is not usable (missing files, empty captions, unknown images) and say
            how much, instead of refusing.
        train_size: Train on this many images at most; None for all.
        validation_size: How many images to hold out if there is no file for validation.
        test_size: How many images to hold out if there is no file for the test.
        cache: Folder for decoded images; None to decode them again and again.
    """

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
    """A training run on images and captions.

    Attributes:
        data: The images and captions.
        loss: Name, target and parameters of the loss; its sharpness is informative.
        model: The encoders.
        scale: How much is computed.
        training: The optimisation.
        evaluation: What is measured at the end.
        trainer: Arguments of Lightning's ``Trainer``.
        seed: Of the weights, the subset, the order of images, the captions and the crops.
        runs: Folder of all runs.
        run: Folder of this run; None for a name made from the configuration.
        progress: Whether to show a progress bar on a terminal.
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
