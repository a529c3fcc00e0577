"""open_clip's CLIP from a configuration: a Modified ResNet or a transformer, and a text tower."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any

import torch

from tricouple.torchvision_ops import declare_missing

if TYPE_CHECKING:
    from open_clip import CLIP


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
