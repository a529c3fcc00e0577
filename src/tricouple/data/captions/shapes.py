"""Coloured shapes with captions, drawn by the program: image-text data for tests and first steps.

An image shows one shape in a frame; its form and colour and those of background and frame are what
the captions tell. No two images of all the splits agree in all four, so that every caption has one
right image, and test images are combinations that were never seen.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import torch
from torch import Tensor

from tricouple import checks
from tricouple.data.captions.sets import CaptionedImages

COLOURS = {
    "red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 60, 220), "yellow": (240, 220, 40),
    "purple": (130, 40, 160), "pink": (250, 150, 200), "white": (250, 250, 250),
    "black": (15, 15, 15),
}  # fmt: skip
TEMPLATES = (
    "a {colour} {form} on a {ground} background in a {frame} frame",
    "{colour} {form}, {ground} background, {frame} frame",
    "there is a {colour} {form} on {ground} ground inside a {frame} frame",
)
RADIUS = 0.25  # of a shape, in units of the side
FRAME = 0.14  # its width


def draw_shapes(sizes: tuple[int, ...], side: int) -> tuple[CaptionedImages, ...]:
    """Draw disjoint sets of captioned images, of these sizes; the same ones every time.

    Example:
        >>> train, test = draw_shapes((3, 2), side=16)
        >>> train.images.shape, len(train.captions), len(test)
        (torch.Size([3, 3, 16, 16]), 9, 2)
    """
    checks.count("model.vision.image_size", side)
    generator = torch.Generator().manual_seed(0)
    combinations = _combinations(generator)
    if sum(sizes) > N_SHAPES:
        raise ValueError(
            f"data=shapes has {N_SHAPES} different images, {sum(sizes)} were asked for: "
            "lower data.train_size, data.validation_size or data.test_size"
        )
    sets = []
    # Backwards: the last set, which is usually the test set, has colours that differ most.
    for size in reversed(sizes):
        chosen, combinations = combinations[:size], combinations[size:]
        images = torch.stack([_draw(combination, side, generator) for combination in chosen])
        captions = [
            tuple(
                text.format(form=form, colour=colour, ground=ground, frame=frame)
                for text in TEMPLATES
            )
            for form, colour, ground, frame in chosen
        ]
        sets.append(CaptionedImages.of(images, captions))
    return tuple(reversed(sets))


def _combinations(generator: torch.Generator) -> list[tuple[str, ...]]:
    """All forms in all colours, at random, but every choice of colours before one comes again."""
    colours = list(itertools.permutations(COLOURS, 3))
    forms = list(_FORMS)
    order = torch.randperm(len(colours), generator=generator).tolist()
    shift = torch.randint(len(forms), (len(colours),), generator=generator).tolist()
    return [
        (forms[(shift[index] + turn) % len(forms)], *colours[index])
        for turn in range(len(forms))
        for index in order
    ]


def _draw(combination: tuple[str, ...], side: int, generator: torch.Generator) -> Tensor:
    """One image, uint8 of shape (3, side, side), a little off the centre and noisy."""
    form, *names = combination
    row, column = 0.5 + 0.08 * (torch.rand(2, generator=generator) - 0.5)
    axis = (torch.arange(side) + 0.5) / side
    y, x = (axis[:, None] - row) / RADIUS, (axis[None, :] - column) / RADIUS
    middle = (axis - 0.5).abs() < 0.5 - FRAME
    colour, ground, frame = (torch.tensor(COLOURS[name])[:, None, None] for name in names)
    picture = torch.where(middle[:, None] & middle, ground, frame)
    picture = torch.where(_FORMS[form](x, y), colour, picture)
    noise = 8 * torch.randn((3, side, side), generator=generator)
    return (picture + noise).clamp(0, 255).to(torch.uint8)


def _cross(x: Tensor, y: Tensor) -> Tensor:
    near, far = torch.minimum(x.abs(), y.abs()), torch.maximum(x.abs(), y.abs())
    return (near < 0.3) & (far < 1)


def _ring(x: Tensor, y: Tensor) -> Tensor:
    distance = x**2 + y**2
    return (distance < 1) & (distance > 0.3)


# Which points of the plane are inside, for a shape of radius one about the origin; y points down.
_FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": lambda x, y: x**2 + y**2 < 1,
    "square": lambda x, y: torch.maximum(x.abs(), y.abs()) < 0.85,
    "triangle": lambda x, y: (y < 0.8) & (x.abs() < 0.55 * (y + 1)),
    "cross": _cross,
    "ring": _ring,
    "stripe": lambda x, y: (y.abs() < 0.35) & (x.abs() < 1.1),
}
N_SHAPES = math.perm(len(COLOURS), 3) * len(_FORMS)  # images that differ
