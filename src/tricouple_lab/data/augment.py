"""Random views of every image of a batch, on the device that the batch is on.

Whole batches at a time, not image by image in worker processes: on a CPU that takes a tenth of the
processor time, about one percent of a ResNet-18 step, and on a GPU the images stay where they are.
Every image has parameters of its own, which torchvision's transforms of a batch have not; each
function agrees with torchvision's of the same name.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from tricouple_lab.data.images.sets import ImageData, Normalisation, to_unit_range
from tricouple_lab.data.sampler import Share

Range = tuple[float, float]

_PROPOSALS = 10  # boxes that an image draws before it settles for the whole
_LUMA = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Recipe:
    """A chain of random transformations, in this order; a probability of 0 leaves one out.

    The defaults are the paper's SimCLR-style pipeline. Every image draws its own parameters.

    Example:
        >>> crops = Recipe(Normalisation((0.5,), (0.5,), 32), flip=0, jitter=0, grayscale=0, blur=0)
        >>> crops.scale
        (0.2, 1.0)
    """

    normalisation: Normalisation  # the last step; its size is the size of the views
    scale: Range = (0.2, 1.0)  # share of the image's area that a crop covers
    ratio: Range = (3 / 4, 4 / 3)  # width over height of a crop
    rotation: float = 0.0  # largest angle, in degrees, in either direction
    flip: float = 0.5  # probability of a mirror image
    # Probability of changing brightness, contrast, saturation and hue, in random order.
    jitter: float = 0.8
    # Of these four changes: factors are drawn from [1 − s, 1 + s], hue shifts, in turns of the
    # colour wheel, from [−s, s].
    strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grayscale: float = 0.2  # probability of losing the colours
    blur: float = 0.5  # probability of a Gaussian blur of 3×3 pixels
    sigma: Range = (0.1, 2.0)  # range of its standard deviation, in pixels


def recipe_for(data: ImageData) -> Recipe:
    """The paper's recipe for a data set: crops and rotations for digits in grey, else SimCLR's.

    The paper ("SCL and UCL setups") does not give the scale of MNIST's crops; it is taken to be
    that of the others.

    Example:
        >>> from tricouple_lab.data import images
        >>> recipe_for(images.load("digits")).rotation
        15.0
    """
    if data.name in ("mnist", "digits"):
        return Recipe(
            data.normalisation, rotation=15.0, flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0
        )
    return Recipe(data.normalisation)


@torch.no_grad()
def random_view(
    images: Tensor, recipe: Recipe, generator: torch.Generator, share: Share | None = None
) -> Tensor:
    """One random view of each image; another call gives another, independent view.

    Args:
        images: Shape (n, c, h, w) with h = w; 8-bit, or floating point in [0, 1].
        recipe: What to do, and how often.
        generator: Draws the parameters; on the CPU, whatever device the images are on.
        share: Which images of a larger batch these are: what happens to an image does not depend
            on how many processes share its batch.

    Returns:
        Shape (n, c, size, size), float32 and normalised; row i is image i.

    Example:
        >>> from tricouple_lab.data import augment, images
        >>> data = images.load("digits", image_size=16)
        >>> recipe, generator = augment.recipe_for(data), torch.Generator().manual_seed(0)
        >>> view0, view1 = (random_view(data.train.images, recipe, generator) for _ in range(2))
        >>> view0.shape, torch.equal(view0, view1)
        (torch.Size([1438, 1, 16, 16]), False)
    """
    n, _, height, width = images.shape
    if height != width:
        raise ValueError(f"images must be square, got {height}×{width}: resize or crop them first")
    parameters = draw_parameters(recipe, share.total if share else n, height, generator)
    if share:
        parameters = Parameters(*(part[share.rows] for part in parameters))
    # Half precision has fewer grey levels than the images.
    with torch.autocast(images.device.type, enabled=False):
        view = transform(to_unit_range(images), parameters, recipe.normalisation.size)
        return recipe.normalisation.standardise(view)


# --- what happens to each image: drawn on the CPU, so that a seed gives the same everywhere -------


class Parameters(NamedTuple):
    """What happens to each of n images; shapes are (n,) unless said otherwise."""

    boxes: Tensor  # top, left, height and width of the crop, int64 of shape (n, 4)
    mirrored: Tensor  # whether the crop is flipped left to right
    degrees: Tensor  # of the rotation, counter-clockwise
    jittered: Tensor  # whether brightness, contrast, saturation and hue change
    amounts: Tensor  # three factors and the shift of the hue, shape (n, 4)
    order: Tensor  # which of the four changes comes first, second, …; shape (n, 4)
    grey: Tensor  # whether colours are removed
    blurred: Tensor  # whether the image is blurred
    sigma: Tensor  # standard deviation of the blur, in pixels


def draw_parameters(recipe: Recipe, n: int, side: int, generator: torch.Generator) -> Parameters:
    """Draw what happens to n square images of this side, in pixels; independently for each."""

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


def draw_boxes(n: int, side: int, scale: Range, ratio: Range, generator: torch.Generator) -> Tensor:
    """Draw crops of square images, distributed like those of torchvision's RandomResizedCrop.

    Each image draws up to ten boxes, with a uniform share of the area and a log-uniform ratio of
    width to height, and takes the first that fits, at a uniform place; if none fits, the whole:
    top, left, height and width, int64 of shape (n, 4).
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


def transform(images: Tensor, parameters: Parameters, size: int) -> Tensor:
    """Do to each image what its parameters say: crop, rotate, jitter, grey, blur.

    From (n, c, h, w) to (n, c, size, size), both in [0, 1]; the parameters are on the CPU.
    """
    here = Parameters(*(part.to(images.device) for part in parameters))
    x = resized_crop(images, here.boxes, size, here.mirrored)
    # Which images a step concerns is decided on the CPU, where asking does not wait for a device.
    if bool(parameters.degrees.any()):
        x = rotate(x, here.degrees)
    steps = [
        (parameters.jittered & (parameters.order[:, turn] == kind), change, here.amounts[:, kind])
        for turn in range(4)
        for kind, change in enumerate((brightness, contrast, saturation, hue))
    ]
    steps += [(parameters.grey, grayscale, here.sigma), (parameters.blurred, blur3, here.sigma)]
    for concerned, change, amounts in steps:
        chosen = concerned.nonzero().flatten().to(x.device)
        if len(chosen):
            x[chosen] = change(x[chosen], amounts[chosen])
    return x


# --- the changes: floating-point images of shape (n, c, h, w), amounts of shape (n,) --------------


def resized_crop(images: Tensor, boxes: Tensor, size: int, mirrored: Tensor) -> Tensor:
    """Cut a box out of each image and resize it to a square: bilinear, antialiased.

    Bilinear interpolation is linear along each axis, so that two batched matrix products do it,
    mirroring included.
    """
    n, c, h, w = images.shape
    top, left, height, width = boxes.to(images.dtype).unbind(1)
    rows = _interpolation(top, height, h, size)  # (n, size, h)
    columns = _interpolation(left, width, w, size)  # (n, size, w)
    columns = torch.where(mirrored[:, None, None], columns.flip(1), columns)
    narrow = images.reshape(n, c * h, w) @ columns.mT  # (n, c·h, size)
    stacked = narrow.reshape(n, c, h, size).transpose(1, 2).reshape(n, h, c * size)
    return (rows @ stacked).reshape(n, size, c, size).transpose(1, 2).contiguous()


def _interpolation(start: Tensor, length: Tensor, n_pixels: int, size: int) -> Tensor:
    """Weights of the pixels of an axis in ``size`` samples of an interval, (n, size, n_pixels).

    A triangle around each sample's position, as wide as the distance of samples but at least one
    pixel; pixels outside the interval have no weight. Each row sums to one.
    """
    pixel = torch.arange(n_pixels, device=start.device, dtype=start.dtype)
    sample = torch.arange(size, device=start.device, dtype=start.dtype) + 0.5
    start, length = start[:, None], length[:, None]
    step = length / size
    centres = start + step * sample - 0.5  # (n, size)
    distance = (pixel - centres[..., None]).abs() / step.clamp_min(1.0)[..., None]
    inside = (pixel >= start) & (pixel < start + length)  # (n, n_pixels)
    weights = (1 - distance).clamp_min(0.0) * inside[:, None]
    return weights / weights.sum(2, keepdim=True)


def rotate(images: Tensor, degrees: Tensor) -> Tensor:
    """Rotate counter-clockwise about the centre: nearest pixel, black where nothing is known.

    Nearest, because that is the default of torchvision's RandomRotation, which the paper names.
    """
    angles = degrees.to(images.dtype).deg2rad()
    cos, sin, zero = angles.cos(), angles.sin(), torch.zeros_like(angles)
    matrices = torch.stack([cos, -sin, zero, sin, cos, zero], 1).reshape(-1, 2, 3)
    grid = affine_grid(matrices, list(images.shape), align_corners=False)
    return grid_sample(images, grid, mode="nearest", align_corners=False)


def brightness(images: Tensor, factors: Tensor) -> Tensor:
    """Scale all values: 0 is black, 1 the image itself."""
    return (images * factors[:, None, None, None]).clamp_(0, 1)


def contrast(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the mean grey of each image: 0 is that grey, 1 the image itself."""
    mean = _luma(images).mean((1, 2, 3), keepdim=True)
    return mean.lerp(images, factors[:, None, None, None]).clamp_(0, 1)


def saturation(images: Tensor, factors: Tensor) -> Tensor:
    """Blend with the grey of each pixel: 0 is without colours, 1 the image itself."""
    if images.shape[1] == 1:
        return images
    return _luma(images).lerp(images, factors[:, None, None, None]).clamp_(0, 1)


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


def grayscale(images: Tensor, _: Tensor | None = None) -> Tensor:
    """Images without colours and with as many channels as before."""
    return _luma(images).expand_as(images)


def blur3(images: Tensor, sigma: Tensor) -> Tensor:
    """Blur with a Gaussian on 3×3 pixels, edges reflected; sigma in pixels."""
    side = torch.exp(-0.5 / sigma.to(images.dtype).square())
    side = (side / (1 + 2 * side))[:, None, None, None]  # weight of each neighbour
    centre = 1 - 2 * side
    x = pad(images, (1, 1, 0, 0), mode="reflect")
    x = centre * images + side * (x[..., :-2] + x[..., 2:])
    y = pad(x, (0, 0, 1, 1), mode="reflect")
    return centre * x + side * (y[..., :-2, :] + y[..., 2:, :])


def _luma(images: Tensor) -> Tensor:
    """How bright each pixel looks, shape (n, 1, h, w)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    grey: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return grey
