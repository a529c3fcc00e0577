"""Encoders: any backbone of timm with a linear projection, and the synthetic study's perceptron.

A ResNet shrinks a 32×32 image to 2×2 and then to a single pixel, where most of its weights are.
CPU libraries treat these maps like large ones, and the weight gradient alone then takes half of a
training step; as the matrix products that they are (``SmallMapConv2d``) the whole step of a
ResNet-18 takes half the time.
"""

from __future__ import annotations

import difflib
import math
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear, unfold

from tricouple import checks
from tricouple.torchvision_ops import declare_missing

if TYPE_CHECKING:
    from open_clip import CLIP
    from timm.models import PretrainedCfg

declare_missing()  # timm imports torchvision


class Encoder(nn.Module):
    """A backbone, from images (n, c, h, w) to pooled features (n, d), and a linear head."""

    def __init__(self, backbone: nn.Module, n_features: int, head_dim: int) -> None:
        super().__init__()
        # Convolutions are faster with the channels in the last place in memory.
        self.backbone = backbone.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.head = nn.Linear(n_features, head_dim)

    def features(self, images: Tensor) -> Tensor:
        """The penultimate features, shape (n, d): what probes look at."""
        features: Tensor = self.backbone(images.contiguous(memory_format=torch.channels_last))
        return features

    def project(self, features: Tensor) -> Tensor:
        """The embedding of features, shape (n, head_dim); losses normalise it themselves."""
        embedding: Tensor = self.head(features)
        return embedding

    def forward(self, images: Tensor) -> Tensor:
        """The embedding of images: ``project(features(images))``."""
        return self.project(self.features(images))


def build_encoder(
    name: str,
    *,
    channels: int,
    image_size: int,
    head_dim: int,
    pretrained: bool = False,
    weights: Path | str | None = None,
) -> Encoder:
    """Build an encoder as the paper does ("SCL and UCL setups").

    Convolutions and the head get Kaiming's initialisation; the linear layers inside transformers
    keep timm's, which is what they are trained with elsewhere. A pretrained backbone keeps its
    weights, and its new head is drawn from N(0, 0.01²) with zero bias.

    Args:
        name: Any model of timm, such as ``"resnet18"`` or ``"vit_base_patch16_224"``.
        channels: Of the images.
        image_size: Side of the images.
        head_dim: Dimension of the embedding; the paper takes the number of classes.
        pretrained: Start from timm's pretrained weights, downloaded if they are not in its cache.
        weights: Start from this file instead (.pth or .safetensors, weights only).

    Example:
        >>> encoder = build_encoder("resnet18", channels=1, image_size=28, head_dim=10)
        >>> encoder(torch.randn(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    check_name(name)
    if weights is not None:
        check_weights(name, Path(weights))
    backbone, n_features = _backbone(name, channels, image_size, pretrained, weights)
    encoder = Encoder(backbone, n_features, head_dim)
    if pretrained or weights is not None:
        nn.init.normal_(encoder.head.weight, std=0.01)
    else:
        initialise(backbone)
        nn.init.kaiming_normal_(encoder.head.weight, nonlinearity="linear")
    nn.init.zeros_(encoder.head.bias)
    return encoder


def initialise(network: nn.Module) -> None:
    """Kaiming's initialisation of convolutions; normalisations start as the identity.

    timm starts the last normalisation of a residual branch at zero; torchvision, which the paper
    used, does not.
    """
    for layer in network.modules():
        if isinstance(layer, nn.Conv2d):
            nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)
        elif isinstance(layer, nn.BatchNorm2d):
            nn.init.ones_(layer.weight)
            nn.init.zeros_(layer.bias)


def check_name(name: str) -> None:
    """Require the name of a timm model; the error offers the nearest ones."""
    import timm

    if not timm.is_model(name):
        near = difflib.get_close_matches(name, timm.list_models(), n=5, cutoff=0.5)
        offer = f": did you mean {', '.join(near)}?" if near else ""
        raise ValueError(f"backbone.name {name!r} is not a model of timm{offer}")


def check_weights(name: str, path: Path) -> None:
    """Require a file with all weights of a backbone: timm would go on without those that lack."""
    import timm
    from timm.models import load_state_dict

    if not path.is_file():
        raise ValueError(f"backbone.weights: {path} is not a file")
    try:
        found = load_state_dict(str(path))
    except Exception as error:  # damaged files raise nearly anything
        raise ValueError(
            f"backbone.weights: {path} is no file of weights ({type(error).__name__}: {error})"
        ) from error
    with torch.device("meta"):
        wanted = [key for key, _ in timm.create_model(name, num_classes=0).named_parameters()]
    missing = [key for key in wanted if key not in found]
    if missing:
        raise ValueError(
            f"backbone.weights: {path} lacks {len(missing)} of the {len(wanted)} parameters of "
            f"{name!r}, such as {missing[0]}"
        )


def fitting_size(name: str, image_size: int) -> int:
    """The smallest size from ``image_size`` on that the patches of a transformer can tile."""
    check_name(name)
    import timm

    if not _published(name).fixed_input_size:
        return image_size
    with torch.device("meta"):
        embedding = getattr(timm.create_model(name, num_classes=0), "patch_embed", None)
    patch = 1 if embedding is None else int(embedding.patch_size[0])
    return patch * math.ceil(image_size / patch)


def _backbone(
    name: str, channels: int, image_size: int, pretrained: bool, weights: Path | str | None
) -> tuple[nn.Module, int]:
    """The network without its classifier, and the dimension of its features."""
    import timm

    published = _published(name)
    # Transformers have positions for one size of image; convolutions take any.
    size: dict[str, Any] = {"img_size": image_size} if published.fixed_input_size else {}
    try:
        backbone = timm.create_model(
            name,
            pretrained=pretrained or weights is not None,
            pretrained_cfg_overlay=None if weights is None else {"file": str(weights)},
            in_chans=channels,
            num_classes=0,
            **size,
        )
        backbone = adapt_to_small_maps(backbone)
        # The dimension by trial: the models of timm do not all tell it.
        with torch.no_grad():
            features = backbone.eval()(torch.zeros(1, channels, image_size, image_size))
    except OSError as error:
        raise ValueError(
            f"no pretrained weights for {name!r} ({error}): connect to the network once, or give "
            "a file of weights as backbone.weights"
        ) from error
    except (ArithmeticError, AssertionError, RuntimeError) as error:
        # What the models of timm raise when a feature map shrinks to nothing.
        usual = published.input_size[-1]
        raise ValueError(
            f"backbone {name!r} cannot take images of {image_size}×{image_size}, it is made for "
            f"{usual}×{usual}: set data.image_size to {usual} or near it"
        ) from error
    return backbone.train(), int(features.shape[1])


def _published(name: str) -> PretrainedCfg:
    from timm.models import get_pretrained_cfg

    published = get_pretrained_cfg(name)
    assert published is not None  # every registered model has one
    return published


def three_layer_mlp(in_dim: int, hidden: int, out_dim: int) -> nn.Sequential:
    """Three linear layers with ReLU in between, (N, in_dim) to (N, out_dim).

    No normalisation layers: an embedding then depends on its own input alone, so what is measured
    on the whole training set is what the losses see in a batch.
    """
    for name, width in {"in_dim": in_dim, "hidden": hidden, "out_dim": out_dim}.items():
        checks.count(name, width)
    return nn.Sequential(
        nn.Linear(in_dim, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, out_dim),
    )


LARGEST = 4  # pixels of a map for which the matrix product is faster


class SmallMapConv2d(nn.Conv2d):
    """A padded 3×3 convolution with the same parameters, values and gradients as ``nn.Conv2d``."""

    def forward(self, input: Tensor) -> Tensor:
        """Convolve maps, shape (n, c, h, w)."""
        n, _, height, width = input.shape
        if height * width > LARGEST or input.device.type != "cpu":
            return super().forward(input)
        if height == width == 1:
            # Around a single pixel there is only padding: the centre of the kernel is all it sees.
            return linear(input.flatten(1), self.weight[:, :, 1, 1], self.bias)[:, :, None, None]
        down, across = ((size - 1) // self.stride[0] + 1 for size in (height, width))
        patches = unfold(input, 3, padding=1, stride=self.stride[0])  # (n, 9c, down·across)
        rows = linear(patches.mT.flatten(0, 1), self.weight.flatten(1), self.bias)
        # Channels last, as the layers around want them.
        return rows.view(n, down, across, -1).permute(0, 3, 1, 2)


def adapt_to_small_maps(network: nn.Module) -> nn.Module:
    """Replace all padded 3×3 convolutions of a network, in place; parameters and names stay."""
    for layer in network.modules():
        if (
            type(layer) is nn.Conv2d
            and layer.kernel_size == (3, 3)
            and layer.padding == (1, 1)
            and layer.dilation == (1, 1)
            and layer.stride[0] == layer.stride[1]
            and layer.groups == 1
            and layer.padding_mode == "zeros"
        ):
            layer.__class__ = SmallMapConv2d  # which computes otherwise, and has no more state
    return network


# --- open_clip's CLIP -----------------------------------------------------------------------------


def build_clip(embed_dim: int, vision: dict[str, Any], text: dict[str, Any]) -> CLIP:
    """Build both encoders, with open_clip's initial weights.

    The temperature belongs to the loss here, so that of the model does not learn.

    Args:
        embed_dim: Dimension of the joint space.
        vision: Arguments of ``open_clip.model.CLIPVisionCfg``: four numbers of ``layers`` make a
            Modified ResNet with attention pooling, one number a vision transformer.
        text: Arguments of ``open_clip.model.CLIPTextCfg``.

    Raises:
        ValueError: If open_clip has no such argument, or cannot build such a network.

    Example:
        >>> vision = {"layers": [1, 1, 1, 1], "width": 8, "head_width": 32, "image_size": 32}
        >>> text = {"context_length": 8, "width": 32, "heads": 1, "layers": 1}
        >>> model = build_clip(16, vision, text)
        >>> model.encode_image(torch.randn(2, 3, 32, 32)).shape
        torch.Size([2, 16])
        >>> model.encode_text(torch.ones(2, 8, dtype=torch.long)).shape
        torch.Size([2, 16])
    """
    declare_missing()
    from open_clip import CLIP
    from open_clip.model import CLIPTextCfg, CLIPVisionCfg

    for name, cls, given in (("vision", CLIPVisionCfg, vision), ("text", CLIPTextCfg, text)):
        known = [field.name for field in fields(cls)]
        for key in given:
            if key not in known:
                raise ValueError(
                    f"model.{name}.{key}: open_clip has no such setting but {', '.join(known)}"
                )
    try:
        model = CLIP(embed_dim, CLIPVisionCfg(**vision), CLIPTextCfg(**text))
        size = int(vision["image_size"])
        with torch.no_grad():
            model.eval().encode_image(torch.zeros(1, 3, size, size))
    except (ArithmeticError, AssertionError, RuntimeError, TypeError, ValueError) as error:
        raise ValueError(f"model: open_clip cannot build it: {error}") from error
    model.logit_scale.requires_grad_(False)
    # Convolutions are faster with the channels in the last place in memory.
    model.visual.to(memory_format=torch.channels_last)
    return model.train()
