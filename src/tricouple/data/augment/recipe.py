"""The augmentations of the paper ("SCL and UCL setups"), by data set."""

from __future__ import annotations

from dataclasses import dataclass

from tricouple.data.images.sets import ImageData
from tricouple.data.normalisation import Normalisation


@dataclass(frozen=True)
class Recipe:
    """A chain of random transformations, in this order; a probability of 0 leaves one out.

    The defaults are the paper's SimCLR-style pipeline. Every image draws its own parameters.

    Attributes:
        normalisation: The last step; its size is the size of the views.
        scale: Share of the image's area that a crop covers.
        ratio: Width over height of a crop.
        rotation: Largest angle, in degrees, in either direction.
        flip: Probability of a mirror image.
        jitter: Probability of changing brightness, contrast, saturation and hue, in random order.
        strengths: Of these four changes: factors are drawn from [1 − s, 1 + s], hue shifts, in
            turns of the colour wheel, from [−s, s].
        grayscale: Probability of losing the colours.
        blur: Probability of a Gaussian blur of 3×3 pixels.
        sigma: Range of its standard deviation, in pixels.

    Example:
        >>> crops = Recipe(Normalisation((0.5,), (0.5,), 32), flip=0, jitter=0, grayscale=0, blur=0)
        >>> crops.scale
        (0.2, 1.0)
    """

    normalisation: Normalisation
    scale: tuple[float, float] = (0.2, 1.0)
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    rotation: float = 0.0
    flip: float = 0.5
    jitter: float = 0.8
    strengths: tuple[float, float, float, float] = (0.4, 0.4, 0.4, 0.1)
    grayscale: float = 0.2
    blur: float = 0.5
    sigma: tuple[float, float] = (0.1, 2.0)


def recipe_for(data: ImageData) -> Recipe:
    """The paper's recipe for a data set: crops and rotations for digits in grey, else SimCLR's.

    The paper does not give the scale of MNIST's crops; it is taken to be that of the others.

    Example:
        >>> from tricouple.data import images
        >>> recipe_for(images.load("digits")).rotation
        15.0
    """
    if data.name in ("mnist", "digits"):
        return Recipe(
            data.normalisation, rotation=15.0, flip=0.0, jitter=0.0, grayscale=0.0, blur=0.0
        )
    return Recipe(data.normalisation)
