"""Names in the vision study: data sets, backbones, losses and what is measured of them."""

from __future__ import annotations

from tricouple.report.words import method_name

SETTINGS = {"scl": "SCL", "ucl": "UCL"}
DATA = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "tiny_imagenet": "Tiny-ImageNet",
    "digits": "digits",
    "folder": "own images",
}
BACKBONES = {
    "resnet18": "ResNet-18",
    "resnet34": "ResNet-34",
    "resnet50": "ResNet-50",
    "vit_base_patch16_224": "ViT-B/16",
}
# The losses of the command line, in the order of the paper's tables, by their name in the report.
LOSSES = {
    "infonce": "infonce",
    "invaspread": "invaspread",
    "iot": "iot",
    "iot_uniformity": "iot_uniformity",
    "pushpull": "pushpull",
    "neg_mmiot": "neg_mmiot",
    "dbot": "dbot",
    "vicreg": "vicreg",
    "byol": "byol",
}
FEATURES = {
    "penultimate": "features before the projection",
    "embedding": "embeddings after the projection",
}
MEASURES = {"linear": "linear probe", "knn": "k-NN"}


def loss_name(loss: str) -> str:
    """Return the name of a loss of the command line.

    Example:
        >>> loss_name("pushpull"), loss_name("my_loss")
        ('PushPull', 'my_loss')
    """
    return method_name(LOSSES.get(loss, loss))


def rank(name: str, order: dict[str, str]) -> tuple[int, str]:
    """Sort names as a table of names lists them; others come last.

    Example:
        >>> sorted(["cifar10", "mnist", "faces"], key=lambda name: rank(name, DATA))
        ['mnist', 'cifar10', 'faces']
    """
    names = list(order)
    return (names.index(name) if name in order else len(names), name)
