"""Changes of colour of a batch; every image has parameters of its own.

All take images in [0, 1] of shape (n, c, h, w) and factors of shape (n,), and agree with
torchvision's functions of the same names. On grey images, saturation and hue have no meaning and
change nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

_LUMA = (0.2989, 0.587, 0.114)


def luma(images: Tensor) -> Tensor:
    """How bright each pixel looks, shape (n, 1, h, w)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    grey: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return grey


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Scale all values: 0 is black, 1 the image itself."""
    return (images * _per_image(factors)).clamp_(0, 1)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the mean grey of each image: 0 is that grey, 1 the image itself."""
    mean = luma(images).mean((1, 2, 3), keepdim=True)
    return mean.lerp(images, _per_image(factors)).clamp_(0, 1)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the grey of each pixel: 0 is without colours, 1 the image itself."""
    if images.shape[1] == 1:
        return images
    return luma(images).lerp(images, _per_image(factors)).clamp_(0, 1)


def hue(images: Tensor, shifts: Tensor) -> Tensor:
    """Turn the colour wheel: ±0.5 is half a turn, 0 the image itself."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.unbind(1)  # (n, h, w)
    value = images.amax(1)
    chroma = value - images.amin(1)
    # The hue in sixths of a turn, from the channel that is largest.
    divisor = torch.where(chroma > 0, chroma, 1)
    sixths = torch.where(
        value == red,
        (green - blue) / divisor,
        torch.where(value == green, (blue - red) / divisor + 2, (red - green) / divisor + 4),
    )
    turned = sixths + 6 * shifts[:, None, None]
    # Along the wheel each channel is a trapezium: value − chroma · clamp(min(k, 4 − k), 0, 1).
    channels = []
    for offset in (5, 3, 1):
        k = (turned + offset).remainder_(6)
        channels.append(value - chroma * torch.minimum(k, 4 - k).clamp_(0, 1))
    return torch.stack(channels, 1)


def grayscale(images: Tensor) -> Tensor:
    """Images without colours and with as many channels as before."""
    return luma(images).expand_as(images)


def _per_image(factors: Tensor) -> Tensor:
    return factors[:, None, None, None]
