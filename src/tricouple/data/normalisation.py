"""From 8-bit images to what a network sees: size, scale, mean and standard deviation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import interpolate

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Normalisation:
    """Resizes images, scales them to [0, 1] and standardises each channel.

    Batches travel as 8-bit tensors of the stored size, a quarter of the bytes or less, and are
    enlarged and converted where they are used.

    Example:
        >>> normalisation = Normalisation((0.5,), (0.5,), size=4)
        >>> normalisation(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).unique()
        tensor([1.])
    """

    mean: tuple[float, ...]  # of each channel, on the scale [0, 1]
    std: tuple[float, ...]  # of each channel
    size: int  # side of the square images that the network sees

    def __call__(self, images: Tensor) -> Tensor:
        """Prepare images (n, c, h, w), 8-bit or in [0, 1]: float32 (n, c, size, size)."""
        found, square = to_unit_range(images), (self.size, self.size)
        if found.shape[-2:] != square:
            found = interpolate(found, square, mode="bilinear", antialias=True)
        return self.standardise(found)

    def standardise(self, images: Tensor) -> Tensor:
        """``(images − mean) / std`` for floating-point images in [0, 1]."""
        if images.shape[1] != len(self.mean):
            raise ValueError(
                f"images have {images.shape[1]} channels, the normalisation {len(self.mean)}"
            )
        mean = images.new_tensor(self.mean)[:, None, None]
        return (images - mean) / images.new_tensor(self.std)[:, None, None]


def imagenet_statistics(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of ImageNet; of grey images, the mean over the channels."""
    if channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    return (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,)


def to_unit_range(images: Tensor) -> Tensor:
    """Images in [0, 1] as float32: 8-bit ones are divided by 255, others taken as they are.

    Example:
        >>> to_unit_range(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[0., 1.]]]])
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape (n, c, h, w), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    return images.float()
