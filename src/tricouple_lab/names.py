"""One table of names: what the command line, result files, tables and pictures call a thing.

A loss has one key (the word after ``loss=``), one class, one name and the sharpness that the paper
gives it. Whoever adds a loss adds a line here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class LossName:
    """What a loss is called."""

    name: str  # in tables and pictures
    # What is called to build it, importable; None for training methods without a loss of
    # embeddings.
    target: str | None
    # c = 1/(τε) of the paper's settings, 1/ε or 1/τ where there is only one of the two; None where
    # the paper has none. Its image-text table does not state ε of IOT and Fused-Gromov: theirs
    # there is that of the public code, c = 100.
    paper_sharpness: float | None = None
    # Whether it has a meaning within one set of embeddings (``tricouple train``).
    within: bool = True
    across: bool = True  # whether it has one across two sets (``tricouple clip``)


# In the order of the paper's tables.
LOSSES = {
    "infonce": LossName("InfoNCE", "tricouple.InfoNCE", 10.0),
    "invaspread": LossName("InvaSpread", "tricouple.InvaSpread", 10.0, across=False),
    "iot": LossName("IOT", "tricouple.IOT", 10.0),
    "iot_uniformity": LossName("IOT with uniformity", "tricouple.IOT"),
    "dbot": LossName("DBOT", "tricouple.DBOT"),
    "fused_gromov": LossName("Fused-Gromov", "tricouple.FusedGromov", within=False),
    "pushpull": LossName("PushPull", "tricouple.PushPull", 100.0),
    "neg_mmiot": LossName("Neg-MMIOT", "tricouple.NegMMIOT", 100.0),
    "dbot_published": LossName("DBOT, published code", "tricouple.DBOT", within=False),
    "fused_gromov_published": LossName(
        "Fused-Gromov, published code", "tricouple.FusedGromov", within=False
    ),
    "vicreg": LossName("VICReg", "tricouple.VICReg", across=False),
    "byol": LossName("BYOL", None, across=False),
}

SHAPINGS = {"linear": "linear", "log_sigmoid": "log-sigmoid"}

# Keys of result files that were written before a loss had one key.
KEYS_BEFORE = {"info_nce": "infonce", "push_pull": "pushpull", "inva_spread": "invaspread"}

SETTINGS = {"scl": "SCL", "ucl": "UCL"}
DATA = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny-ImageNet",
    "digits": "digits",
    "folder": "own images",
    "flickr8k": "Flickr8k",
    "coco": "MS-COCO",
    "banking77": "BANKING77",
    "clinc150": "CLINC150",
    "clinc150_imbalanced": "CLINC150, imbalanced",
    "phrases": "phrases",
    "csv": "own texts",
}
BACKBONES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "vit_base_patch16_224": "ViT-B/16",
}
FEATURES = {
    "penultimate": "features before the projection",
    "embedding": "embeddings after the projection",
}
MEASURES = {"linear": "linear probe", "knn": "k-NN"}
ENCODERS = {"minilm": "MiniLM", "words": "bag of words"}
QUANTITIES = {
    "nc1": "NC1, scatter within classes",
    "nc2_std": "NC2, std of class-mean cosines",
    "nc2_deviation": "NC2, deviation from the ETF",
    "alpha": "α, similarity within classes",
    "beta": "β, similarity across classes",
    "effective_rank": "effective rank",
    "knn": "k-NN accuracy",
    "directions": "directions of the class means",
    "loss": "training loss",
    "image_to_text": "recall@1 in batches, image → text",
    "text_to_image": "recall@1 in batches, text → image",
    "gap": "modality gap",
    "alignment": "alignment",
    "image_uniformity": "uniformity of the images",
    "text_uniformity": "uniformity of the texts",
    "matched": "cosine, matched",
    "unmatched": "cosine, others",
    "image_rank": "effective rank, images",
    "text_rank": "effective rank, texts",
    "sharpness": "sharpness c that learns",
    "recall": "recall@1, mean of both directions",
}
AXES = {
    "epsilon": "ε",
    "temperature": "τ",
    "sharpness": "sharpness c = 1/(τε)",
    "n_iters": "Sinkhorn iterations",
    "dim": "embedding dimension",
    "data_dim": "data dimension",
    "per_class": "samples of a class",
    "batch_per_class": "samples of a class in a batch",
    "carry_over": "carry-over between batches",
    "learning_rate": "learning rate",
    "weight_decay": "weight decay",
    "steps": "training steps",
    "schedule": "learning-rate schedule",
    "sampler": "batch sampler",
    "kappa": "noise κ",
    "imbalance": "class imbalance",
    "n_classes": "number of classes K",
}


def loss_name(key: str, shaping: str | None = None) -> str:
    """Return the name of a loss, with its ψ if that is not the usual one.

    Example:
        >>> loss_name("pushpull"), loss_name("neg_mmiot", "log_sigmoid"), loss_name("my_loss")
        ('PushPull', 'Neg-MMIOT (log-sigmoid ψ)', 'my_loss')
    """
    name = LOSSES[key].name if key in LOSSES else key
    if shaping in (None, "linear"):
        return name
    return f"{name} ({SHAPINGS.get(str(shaping), shaping)} ψ)"


def rank(key: str, table: Mapping[str, object]) -> tuple[int, str]:
    """Sort keys as a table of names lists them; others come last.

    Example:
        >>> sorted(["cifar10", "mnist", "faces"], key=lambda key: rank(key, DATA))
        ['mnist', 'cifar10', 'faces']
    """
    keys = list(table)
    return (keys.index(key) if key in table else len(keys), key)
