"""Random views of a batch, computed for all images at once on the device that they are on."""

from __future__ import annotations

from dataclasses import fields

import torch
from torch import Tensor

from tricouple.data.augment import colour, geometric
from tricouple.data.augment.parameters import Parameters, draw_parameters
from tricouple.data.augment.recipe import Recipe
from tricouple.data.normalisation import to_unit_range

_CHANGES = (colour.brightness, colour.contrast, colour.saturation, colour.hue)


def two_views(images: Tensor, recipe: Recipe, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Two independent random views of each image.

    Args:
        images: Shape (n, c, h, w) with h = w; 8-bit, or floating point in [0, 1].
        recipe: What to do, and how often.
        generator: Draws the parameters; on the CPU, whatever device the images are on.

    Returns:
        Two float32 tensors of shape (n, c, size, size), normalised; row i of both is image i.

    Example:
        >>> from tricouple.data import augment, images
        >>> data = images.load("digits")
        >>> batch, _ = data.train.batch(torch.arange(4))
        >>> generator = torch.Generator().manual_seed(0)
        >>> view0, view1 = two_views(batch, augment.recipe_for(data), generator)
        >>> view0.shape, torch.equal(view0, view1)
        (torch.Size([4, 1, 8, 8]), False)
    """
    return random_view(images, recipe, generator), random_view(images, recipe, generator)


@torch.no_grad()
def random_view(images: Tensor, recipe: Recipe, generator: torch.Generator) -> Tensor:
    """One random view of each image, shape (n, c, size, size); see ``two_views``.

    Example:
        >>> from tricouple.data import augment, images
        >>> data = images.load("digits", image_size=16)
        >>> recipe, generator = augment.recipe_for(data), torch.Generator().manual_seed(0)
        >>> random_view(data.train.images[:3], recipe, generator).shape
        torch.Size([3, 1, 16, 16])
    """
    n, _, height, width = images.shape
    if height != width:
        raise ValueError(f"images must be square, got {height}×{width}: resize or crop them first")
    parameters = draw_parameters(recipe, n, height, generator)
    # Half precision has fewer grey levels than the images.
    with torch.autocast(images.device.type, enabled=False):
        view = transform(to_unit_range(images), parameters, recipe.normalisation.size)
        return recipe.normalisation.standardise(view)


def transform(images: Tensor, parameters: Parameters, size: int) -> Tensor:
    """Do to each image what its parameters say: crop, rotate, jitter, grey, blur.

    Args:
        images: In [0, 1], shape (n, c, h, w).
        parameters: Drawn for these images; on the CPU.
        size: Side of the results.

    Returns:
        In [0, 1], shape (n, c, size, size).
    """
    here = _moved(parameters, images.device)
    x = geometric.resized_crop(images, here.boxes, size, here.mirrored)
    # Which images a step concerns is decided on the CPU, where asking does not wait for a device.
    if bool(parameters.degrees.any()):
        x = geometric.rotate(x, here.degrees)
    for turn in range(len(_CHANGES)):
        for kind, change in enumerate(_CHANGES):
            chosen = _positions(parameters.jittered & (parameters.order[:, turn] == kind), x)
            if len(chosen):
                x[chosen] = change(x[chosen], here.amounts[chosen, kind])
    chosen = _positions(parameters.grey, x)
    if len(chosen):
        x[chosen] = colour.grayscale(x[chosen])
    chosen = _positions(parameters.blurred, x)
    if len(chosen):
        x[chosen] = geometric.blur3(x[chosen], here.sigma[chosen])
    return x


def _positions(concerned: Tensor, like: Tensor) -> Tensor:
    return concerned.nonzero().flatten().to(like.device)


def _moved(parameters: Parameters, device: torch.device) -> Parameters:
    values = {field.name: getattr(parameters, field.name) for field in fields(parameters)}
    return Parameters(**{name: value.to(device) for name, value in values.items()})
