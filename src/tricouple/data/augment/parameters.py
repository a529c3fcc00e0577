"""The random part of an augmentation: what happens to each image of a batch.

Parameters are drawn on the CPU and independently for every image, so that a seed gives the same
views on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.data.augment.recipe import Recipe

_PROPOSALS = 10  # boxes that an image draws before it settles for the whole


@dataclass(frozen=True, eq=False)
class Parameters:
    """What happens to each of n images.

    Attributes:
        boxes: Top, left, height and width of the crop, int64 of shape (n, 4).
        mirrored: Whether the crop is flipped left to right, bool of shape (n,), like the others.
        degrees: Angle of rotation, counter-clockwise.
        jittered: Whether brightness, contrast, saturation and hue change.
        amounts: Three factors and the shift of the hue, shape (n, 4).
        order: Which of the four changes comes first, second, …; int64 of shape (n, 4).
        grey: Whether colours are removed.
        blurred: Whether the image is blurred.
        sigma: Standard deviation of the blur, in pixels.
    """

    boxes: Tensor
    mirrored: Tensor
    degrees: Tensor
    jittered: Tensor
    amounts: Tensor
    order: Tensor
    grey: Tensor
    blurred: Tensor
    sigma: Tensor


def draw_parameters(recipe: Recipe, n: int, side: int, generator: torch.Generator) -> Parameters:
    """Draw what happens to n square images.

    Args:
        recipe: The distribution.
        n: How many images.
        side: Of the images, in pixels.
        generator: On the CPU.

    Example:
        >>> from tricouple.data.normalisation import Normalisation
        >>> recipe = Recipe(Normalisation((0.5,), (0.5,), size=32))
        >>> draw_parameters(recipe, 256, 32, torch.Generator().manual_seed(0)).boxes.shape
        torch.Size([256, 4])
    """

    def uniform(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(n, generator=generator)

    def happens(probability: float) -> Tensor:
        return torch.rand(n, generator=generator) < probability

    *factors, hue = recipe.strengths
    return Parameters(
        boxes=draw_boxes(n, side, recipe.scale, recipe.ratio, generator),
        mirrored=happens(recipe.flip),
        degrees=uniform(-recipe.rotation, recipe.rotation),
        jittered=happens(recipe.jitter),
        amounts=torch.stack(
            [*(uniform(max(0.0, 1 - s), 1 + s) for s in factors), uniform(-hue, hue)], 1
        ),
        order=torch.rand((n, 4), generator=generator).argsort(1),
        grey=happens(recipe.grayscale),
        blurred=happens(recipe.blur),
        sigma=uniform(*recipe.sigma),
    )


def draw_boxes(
    n: int,
    side: int,
    scale: tuple[float, float],
    ratio: tuple[float, float],
    generator: torch.Generator,
) -> Tensor:
    """Draw crops of square images, distributed like those of torchvision's RandomResizedCrop.

    Each image draws up to ten boxes, with a uniform share of the area and a log-uniform ratio of
    width to height, and takes the first that fits, at a uniform place; if none fits, the whole.

    Args:
        n: How many boxes.
        side: Of the images, in pixels.
        scale: Range of the share of the area.
        ratio: Range of width over height.
        generator: On the CPU.

    Returns:
        Top, left, height and width, int64 of shape (n, 4).
    """
    u = torch.rand((4, n, _PROPOSALS), generator=generator, dtype=torch.float64)
    area = side**2 * (scale[0] + (scale[1] - scale[0]) * u[0])
    low, high = map(math.log, ratio)
    aspect = (low + (high - low) * u[1]).exp()
    sizes = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()]).round()  # (2, n, 10)
    fits = ((sizes >= 1) & (sizes <= side)).all(0)
    first = fits.long().argmax(1, keepdim=True)
    sizes = sizes.gather(2, first.expand(2, n, 1))[..., 0]
    sizes = torch.where(fits.any(1), sizes, side)  # height and width, (2, n)
    corners = (u[2:, :, 0] * (side - sizes + 1)).floor()
    return torch.cat([corners, sizes]).T.long()
