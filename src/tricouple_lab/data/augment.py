"""Random views of each image of a batch, on the device that the batch is on.

Whole batches at a time: on a CPU that takes about one percent of a training step of a ResNet-18,
and on a GPU the images stay where they are. Each image has parameters of its own; each change
agrees with torchvision's of the same name.
"""

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, grid_sample, pad

from tricouple_lab.data.sources import unit_range
from tricouple_lab.tasks.base import Share

Range = tuple[float, float]

_PROPOSALS = 10  # boxes that an image draws before it settles for the whole
_LUMA = (0.2989, 0.587, 0.114)


@dataclass(frozen=True)
class Recipe:
    """A chain of random changes, in this order; a probability of 0 leaves one out.

    The defaults are the paper's SimCLR-style views.
    """

    scale: Range = (0.2, 1.0)  # share of the image's area that a crop covers
    ratio: Range = (3 / 4, 4 / 3)  # width over height of a crop
    rotation: float = 0.0  # largest angle, in degrees, in either direction
    flip: float = 0.5  # probability of a mirror image
    # Probability of changing brightness, contrast, saturation and hue, in random order.
    jitter: float = 0.8
    # Of these four: factors are drawn from [1 − s, 1 + s], hue shifts, in turns, from [−s, s].
    strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grayscale: float = 0.2  # probability of losing the colours
    blur: float = 0.5  # probability of a Gaussian blur of 3×3 pixels
    sigma: Range = (0.1, 2.0)  # range of its standard deviation, in pixels


COLOUR = Recipe()
# The paper ("SCL and UCL setups") does not give the scale of MNIST's crops: as for the others.
DIGITS = replace(COLOUR, rotation=15.0, flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0)


@torch.no_grad()
def random_view(
    images: Tensor, seed: int, recipe: Recipe, size: int, share: Share | None = None
) -> Tensor:
    """Return one random view of each image; another seed gives another, independent view.

    What happens to an image depends neither on the device nor on how many processes share its
    batch: ``share`` says which images of it these are.

    Shape:
        images (n, c, side, side), 8-bit or in [0, 1]; views (n, c, size, size), float32 in [0, 1].
    """
    n, _, side, _ = images.shape
    share = share or Share()
    # One row of random numbers per image of the whole batch, so that a share is a slice of rows.
    generator = torch.Generator().manual_seed(seed)
    drawn = torch.rand((n * share.world, _COLUMNS), generator=generator)
    parameters = draw_parameters(drawn[share.rank :: share.world], recipe, side)
    # Half precision has fewer grey levels than the images.
    with torch.autocast(images.device.type, enabled=False):
        return transform(unit_range(images, side), parameters, size)


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


_COLUMNS = 2 * _PROPOSALS + 2 + 6 + 4 + 4  # boxes, corners, six single numbers, amounts, order


def draw_parameters(uniform: Tensor, recipe: Recipe, side: int) -> Parameters:
    """Map uniform numbers, a row per image, to what happens to square images of this side."""
    boxes, corners, single, amounts, order = uniform.split([2 * _PROPOSALS, 2, 6, 4, 4], dim=1)
    flip, angle, jitter, grey, blur, sigma = single.unbind(1)
    strengths = torch.tensor(recipe.strengths)
    factors = strengths * (2 * amounts - 1) + torch.tensor([1.0, 1.0, 1.0, 0.0])
    return Parameters(
        boxes=draw_boxes(boxes.reshape(-1, 2, _PROPOSALS), corners, side, recipe),
        mirrored=flip < recipe.flip,
        degrees=recipe.rotation * (2 * angle - 1),
        jittered=jitter < recipe.jitter,
        amounts=torch.cat([factors[:, :3].clamp_min(0), factors[:, 3:]], 1),
        order=order.argsort(1),
        grey=grey < recipe.grayscale,
        blurred=blur < recipe.blur,
        sigma=recipe.sigma[0] + (recipe.sigma[1] - recipe.sigma[0]) * sigma,
    )


def draw_boxes(uniform: Tensor, corners: Tensor, side: int, recipe: Recipe) -> Tensor:
    """Return crops distributed like those of torchvision's RandomResizedCrop, int64 (n, 4).

    Each image draws ten boxes, with a uniform share of the area and a log-uniform ratio of width
    to height (n, 2, 10), and takes the first that fits, at a uniform place (n, 2); if none fits,
    the whole.
    """
    shares, aspects = uniform.double().unbind(1)  # (n, 10)
    area = side**2 * (recipe.scale[0] + (recipe.scale[1] - recipe.scale[0]) * shares)
    low, high = map(math.log, recipe.ratio)
    aspect = (low + (high - low) * aspects).exp()
    sizes = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], 1).round()  # (n, 2, 10)
    fits = ((sizes >= 1) & (sizes <= side)).all(1)  # (n, 10)
    first = fits.long().argmax(1)[:, None, None].expand(-1, 2, 1)
    chosen = torch.where(fits.any(1)[:, None], sizes.gather(2, first)[..., 0], side)  # (n, 2)
    return torch.cat([(corners * (side - chosen + 1)).floor(), chosen], 1).long()


def transform(images: Tensor, parameters: Parameters, size: int) -> Tensor:
    """Do to each image what its parameters say: crop, mirror, rotate, jitter, grey, blur."""
    here = Parameters(*(part.to(images.device) for part in parameters))
    view = resized_crop(images, here.boxes, size, here.mirrored)
    # Which images a step concerns is decided on the CPU, where asking does not wait for a device.
    if bool(parameters.degrees.any()):
        view = rotate(view, here.degrees)
    steps = [
        (parameters.jittered & (parameters.order[:, turn] == kind), change, here.amounts[:, kind])
        for turn in range(4)
        for kind, change in enumerate((brightness, contrast, saturation, hue))
    ]
    steps += [(parameters.grey, grayscale, here.sigma), (parameters.blurred, blur3, here.sigma)]
    for concerned, change, amounts in steps:
        chosen = concerned.nonzero().flatten().to(view.device)
        if len(chosen):
            view[chosen] = change(view[chosen], amounts[chosen])
    return view


def resized_crop(images: Tensor, boxes: Tensor, size: int, mirrored: Tensor) -> Tensor:
    """Cut a box out of each image and resize it to a square: bilinear, antialiased.

    Bilinear interpolation is linear along each axis: two batched matrix products do it, mirroring
    included.
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
    """Return weights of an axis' pixels in ``size`` samples of an interval, (n, size, n_pixels).

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
    """Rotate counter-clockwise about the centre: nearest pixel, black where nothing is known."""
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
    """Remove the colours; the number of channels stays."""
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
    """Return how bright each pixel looks, shape (n, 1, h, w)."""
    if images.shape[1] == 1:
        return images
    red, green, blue = images.split(1, 1)
    grey: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return grey
