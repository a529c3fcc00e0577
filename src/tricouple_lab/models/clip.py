"""CLIP: open_clip's image and text towers in three sizes, and its tokens."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tricouple_lab.names import UserError


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
# Mean and standard deviation of the images that CLIP was trained on: all public models use them.
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


def image_side(name: str) -> int:
    """Return the side of the square images that a model takes, in pixels."""
    return int(TOWERS[name].vision["image_size"])


def build_clip(name: str) -> Any:
    """Build both towers with open_clip's initial weights.

    The sharpness belongs to the loss: ``logit_scale`` of the model does not learn.

    Returns:
        ``open_clip.CLIP`` with ``encode_image``, uint8-normalised images (n, 3, side, side) →
        (n, d), and ``encode_text``, token ids (n, context length) → (n, d).
    """
    model = open_clip().CLIP(*TOWERS[name])
    model.logit_scale.requires_grad_(False)
    model.visual.to(memory_format=torch.channels_last)  # faster convolutions
    return model


def open_clip() -> Any:
    """Import open_clip, or say which extra has it."""
    try:
        import open_clip
    except ModuleNotFoundError as error:
        if error.name != "open_clip":
            raise
        raise UserError("tricouple clip needs open_clip: pip install '.[clip]'") from None
    return open_clip


def normalise(images: Tensor) -> Tensor:
    """Give images the mean and standard deviation that CLIP expects.

    Args:
        images: uint8, or float in [0, 1]; shape (n, 3, side, side).
    """
    values = images.float() / 255 if images.dtype == torch.uint8 else images
    mean, std = (torch.tensor(part, device=images.device).view(3, 1, 1) for part in (MEAN, STD))
    return ((values - mean) / std).contiguous(memory_format=torch.channels_last)


def tokenise(texts: Sequence[str], name: str) -> tuple[Tensor, list[str]]:
    """Return tokens of CLIP's byte-pair encoding, and the texts that were too long.

    open_clip's tokenizer cuts long texts as well, but does not say which.

    Returns:
        int64 ids of shape (n, context length), zero after the end of a text; the cut texts.
    """
    length, tokenizer = TOWERS[name].text["context_length"], _tokenizer()
    ids, cut = torch.zeros(len(texts), length, dtype=torch.int64), []
    for row, text in enumerate(texts):
        found = [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]
        if len(found) > length:
            cut.append(text)
            found = [*found[: length - 1], tokenizer.eot_token_id]
        ids[row, : len(found)] = torch.tensor(found)
    return ids, cut


@cache
def _tokenizer() -> Any:
    return open_clip().SimpleTokenizer()
