"""Frozen features of the studies, cached by the digest of what they are computed from."""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from tricouple_lab.config.schema import Backbone, CaptionData, ImageData, TextData, TextModel
from tricouple_lab.data.captions import load_captions
from tricouple_lab.data.sources import ImageSplit, hold_out, load_images
from tricouple_lab.data.texts import load_texts
from tricouple_lab.models import backbones, sentences

IMAGES = Backbone(name="efficientnet_lite0", train="head")
TEXTS = TextModel(name="minilm")
SIDE = 128
Map = Callable[[Tensor], Tensor]


class Split(NamedTuple):
    """Images and their captions, as features."""

    images: Tensor  # (N, D)
    texts: Tensor  # (N, K, E), K captions per image


class Labelled(NamedTuple):
    """Samples with classes, as features; both parts of one data set."""

    x: Tensor  # (N, D)
    test_x: Tensor
    y: Tensor  # int64 (N,)
    test_y: Tensor
    names: tuple[str, ...] = ()  # of the classes


def flickr8k() -> tuple[dict[str, Split], str]:
    """Train (6000 images), validation and test (1000 each), five captions each; their digest."""
    found = load_captions(CaptionData(name="flickr8k"), SIDE).splits
    pixels = {
        name: ImageSplit(split.pixels, split.index, torch.zeros(len(split), dtype=torch.int64))
        for name, split in found.items()
    }
    images = backbones.frozen_features(IMAGES, SIDE, pixels)[0]
    texts = _sentences(*(split.captions for split in found.values()))
    splits = {  # five captions of every image
        name: Split(images[name].pixels, own.unflatten(0, (-1, 5)))
        for name, own in zip(found, texts, strict=True)
    }
    return splits, digest(*(part for split in splits.values() for part in split))


def cifar100() -> tuple[Labelled, str]:
    """All images of the folder, and the names of the classes; their digest."""
    found = load_images(ImageData(name="cifar100", image_size=SIDE, validation_share=0.0))
    parts = {name: found.splits[name] for name in ("train", "test")}
    train, test = backbones.frozen_features(IMAGES, SIDE, parts)[0].values()
    data = Labelled(train.pixels, test.pixels, train.labels, test.labels, found.classes)
    return data, digest(*data[:4])


def clinc150() -> tuple[Labelled, str]:
    """The imbalanced part, 25 to 100 texts per intent; its digest."""
    found = load_texts(TextData(name="clinc150_imbalanced"), 0)
    train, test = found.splits["train"], found.splits["test"]
    x, test_x = _sentences(train.texts, test.texts)
    data = Labelled(x, test_x, train.labels, test.labels, found.classes)
    return data, digest(*data[:4])


def class_names(names: tuple[str, ...]) -> Tensor:
    """Features (classes, E) of "a photo of a NAME"."""
    return _sentences([f"a photo of a {name.replace('_', ' ')}" for name in names])[0]


def _sentences(*columns: Sequence[str]) -> list[Tensor]:
    weights = sentences.folder_digest(sentences.model_folder(TEXTS))
    return sentences.frozen_features(columns, TEXTS, weights)[0]


def generated_pairs(n: int = 240, captions: int = 2) -> tuple[dict[str, Split], str]:
    """Pairs of noisy views of 8 hidden numbers, for a first look without data."""
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(8, 24, generator=generator), torch.randn(8, 16, generator=generator)
    splits = {}
    for name, size in (("train", n), ("validation", n // 4), ("test", n // 4)):
        hidden = torch.randn(size, 8, generator=generator)
        x = hidden @ left + 0.5 * torch.randn(size, 24, generator=generator)
        y = (hidden @ right)[:, None] + 0.5 * torch.randn(size, captions, 16, generator=generator)
        splits[name] = Split(x, y)
    return splits, digest(*(part for split in splits.values() for part in split))


PAIRS = {"flickr8k": flickr8k, "generated": generated_pairs}


def mapped(splits: Mapping[str, Split], of_images: Map, of_texts: Map) -> dict[str, Split]:
    """Images and captions by a function of each."""
    return {name: Split(of_images(own.images), of_texts(own.texts)) for name, own in splits.items()}


def generated_classes(n_classes: int = 5, size: int = 40) -> tuple[Labelled, str]:
    """Gaussian classes, for a first look without data."""
    generator = torch.Generator().manual_seed(0)
    means = 0.6 * torch.randn(n_classes, 16, generator=generator)
    y = torch.arange(n_classes).repeat(size)
    x, test = (means[y] + torch.randn(len(y), 16, generator=generator) for _ in range(2))
    return Labelled(x, test, y, y), digest(x, test, y)


def held_out(y: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Indices by class: the rest, and a share of each class."""
    rest, held = hold_out(y.numpy(), share, seed)
    return torch.from_numpy(rest), torch.from_numpy(held)


def digest(*tensors: Tensor) -> str:
    """The first digits of a sha256 of tensors."""
    content = hashlib.sha256()
    for tensor in tensors:
        content.update(tensor.numpy().tobytes())
    return content.hexdigest()[:12]
