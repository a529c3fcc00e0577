"""Coloured shapes with captions, drawn by the program: nothing to download."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from tricouple_lab.names import UserError

COLOURS = {
    "red": (220, 30, 30), "green": (30, 160, 50), "blue": (40, 60, 220), "yellow": (240, 220, 40),
    "purple": (130, 40, 160), "pink": (250, 150, 200), "white": (250, 250, 250),
    "black": (15, 15, 15),
}  # fmt: skip
TEMPLATES = (
    "a {1} {0} on a {2} background in a {3} frame",
    "{1} {0}, {2} background, {3} frame",
    "there is a {1} {0} on {2} ground inside a {3} frame",
)
RADIUS = 0.25  # of a shape, relative to the side of the image
FRAME = 0.14  # width of the frame


def draw_shapes(sizes: Sequence[int], side: int) -> list[tuple[Tensor, list[tuple[str, ...]]]]:
    """Draw disjoint sets of images of these sizes with three captions each; the same every time.

    An image shows a shape in a frame; its form, its colour and those of background and frame are in
    the captions. No two images of all sets agree in all four: every caption has one right image.
    Images are uint8 (size, 3, side, side).
    """
    if sum(sizes) > N_SHAPES:
        wanted = f"{sum(sizes)} were asked for by data.train_size, validation_size and test_size"
        raise UserError(f"data=shapes has {N_SHAPES} different images, {wanted}")
    generator = torch.Generator().manual_seed(0)
    colours, forms = list(itertools.permutations(COLOURS, 3)), list(FORMS)
    order = torch.randperm(len(colours), generator=generator).tolist()
    shift = torch.randint(len(forms), (len(colours),), generator=generator).tolist()
    # Every choice of colours comes once before one comes again with another form.
    combinations = [
        (forms[(shift[index] + turn) % len(forms)], *colours[index])
        for turn in range(len(forms))
        for index in order
    ]
    sets = []
    for size in reversed(sizes):  # the last set, for the test, has colours that differ most
        chosen, combinations = combinations[:size], combinations[size:]
        images = torch.stack([_draw(combination, side, generator) for combination in chosen])
        captions = [tuple(text.format(*names) for text in TEMPLATES) for names in chosen]
        sets.append((images, captions))
    return sets[::-1]


def _draw(combination: Sequence[str], side: int, generator: torch.Generator) -> Tensor:
    """One image, uint8 of shape (3, side, side), a little off the centre and noisy."""
    form, *names = combination
    row, column = 0.5 + 0.08 * (torch.rand(2, generator=generator) - 0.5)
    axis = (torch.arange(side) + 0.5) / side
    y, x = (axis[:, None] - row) / RADIUS, (axis[None, :] - column) / RADIUS
    middle = (axis - 0.5).abs() < 0.5 - FRAME
    colour, ground, frame = (torch.tensor(COLOURS[name])[:, None, None] for name in names)
    picture = torch.where(middle[:, None] & middle, ground, frame)
    picture = torch.where(FORMS[form](x, y), colour, picture)
    noise = 8 * torch.randn((3, side, side), generator=generator)
    return (picture + noise).clamp(0, 255).to(torch.uint8)


# Which points of the plane are inside a shape of radius 1 about the origin; y points down.
FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "circle": lambda x, y: x**2 + y**2 < 1,
    "square": lambda x, y: torch.maximum(x.abs(), y.abs()) < 0.85,
    "triangle": lambda x, y: (y < 0.8) & (x.abs() < 0.55 * (y + 1)),
    "cross": lambda x, y: (x.abs().minimum(y.abs()) < 0.3) & (x.abs().maximum(y.abs()) < 1),
    "ring": lambda x, y: (x**2 + y**2 < 1) & (x**2 + y**2 > 0.3),
    "stripe": lambda x, y: (y.abs() < 0.35) & (x.abs() < 1.1),
}
N_SHAPES = math.perm(len(COLOURS), 3) * len(FORMS)  # images that differ
