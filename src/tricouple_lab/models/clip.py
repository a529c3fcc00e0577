"""CLIP: open_clip's image and text towers in three sizes, and its tokens."""

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import open_clip
import torch
from torch import Tensor

_tokenizer = cache(open_clip.SimpleTokenizer)


class Towers(NamedTuple):
    """Arguments of ``open_clip.CLIP``: dimension of the joint space, both towers."""

    embed_dim: int
    vision: dict[str, Any]  # of CLIPVisionCfg; four numbers of layers: Modified ResNet
    text: dict[str, Any]  # of CLIPTextCfg


TOWERS = {
    # Enough for coloured shapes.
    "tiny": Towers(
        64,
        {"layers": [1, 1, 1, 1], "width": 8, "head_width": 32, "image_size": 32},
        {"context_length": 16, "width": 64, "heads": 2, "layers": 2},
    ),
    # For a CPU core: a step of 64 pairs takes about 0.15 s.
    "small": Towers(
        128,
        {"layers": [1, 1, 1, 1], "width": 16, "head_width": 32, "image_size": 48},
        {"context_length": 24, "width": 96, "heads": 3, "layers": 2},
    ),
    # The paper's: Modified ResNet-50 with attention pooling, a text transformer of 6 layers.
    "rn50": Towers(
        1024,
        {"layers": [3, 4, 6, 3], "width": 64, "image_size": 224},
        {"context_length": 77, "width": 512, "heads": 8, "layers": 6},
    ),
}


def image_side(name: str) -> int:
    """Return the side of the square images that a model takes, in pixels."""
    return int(TOWERS[name].vision["image_size"])


def build_clip(name: str) -> Any:
    """Build both towers, an ``open_clip.CLIP`` with initial weights.

    The sharpness belongs to the loss: ``logit_scale`` of the model does not learn.
    """
    model = open_clip.CLIP(*TOWERS[name])
    model.logit_scale.requires_grad_(False)
    model.visual.to(memory_format=torch.channels_last)  # faster convolutions
    return model


def normalise(images: Tensor) -> Tensor:
    """Give images, uint8 or in [0, 1], the mean and standard deviation that CLIP expects."""
    values = images.float() / 255 if images.dtype == torch.uint8 else images
    both = open_clip.OPENAI_DATASET_MEAN, open_clip.OPENAI_DATASET_STD
    mean, std = (torch.tensor(part, device=images.device).view(3, 1, 1) for part in both)
    return ((values - mean) / std).contiguous(memory_format=torch.channels_last)


def tokenise(texts: Sequence[str], name: str) -> tuple[Tensor, list[str]]:
    """Return ids of CLIP's byte-pair encoding (n, context length), and the texts that are cut."""
    length, tokenizer = TOWERS[name].text["context_length"], _tokenizer()
    cut = [text for text in texts if len(tokenizer.encode(text)) + 2 > length]  # start and end
    return tokenizer(list(texts), context_length=length), cut
