"""Captioned images, their tokens, the batches of pairs that training sees; shapes drawn here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple import checks
from tricouple.torchvision_ops import declare_missing
from tricouple_lab.data.images.files import ImageFiles
from tricouple_lab.data.images.sets import BatchedImages

if TYPE_CHECKING:
    from open_clip import SimpleTokenizer


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images and captions; several captions of one image share its identity.

    Example:
        >>> blank = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        >>> two = CaptionedImages.of(blank, [("a dog", "a puppy"), ("a cat",)])
        >>> two.owners, two
        (tensor([0, 0, 1]), CaptionedImages(2 images, 3 captions))
    """

    # An 8-bit tensor of shape (n, 3, side, side), or files that are decoded when indexed.
    images: Tensor | ImageFiles
    captions: tuple[str, ...]  # m ≥ n texts, those of the first image first
    owners: Tensor  # which image each caption is of, int64 of shape (m,), in ascending order

    @classmethod
    def of(cls, images: Tensor | ImageFiles, captions: list[tuple[str, ...]]) -> CaptionedImages:
        """A set from the captions of each image."""
        counts = torch.tensor([len(texts) for texts in captions])
        if len(images) != len(captions) or not len(captions) or int(counts.min()) < 1:
            raise ValueError(
                f"captions must hold one or more texts for each of {len(images)} images, got "
                f"{len(captions)} lists of {counts.tolist()[:5]} … texts"
            )
        owners = torch.repeat_interleave(torch.arange(len(counts)), counts)
        return cls(images, tuple(text for texts in captions for text in texts), owners)

    def __len__(self) -> int:
        return len(self.images)

    def __repr__(self) -> str:
        return f"CaptionedImages({len(self)} images, {len(self.captions)} captions)"


@dataclass(frozen=True, eq=False)
class CaptionData:
    """A data set to train and evaluate on."""

    train: CaptionedImages  # to learn from
    validation: CaptionedImages | None  # to choose settings on; None if there is none
    test: CaptionedImages  # to evaluate on
    notes: tuple[str, ...] = ()  # what was left out or done to the data; a command says each once


@dataclass(frozen=True, eq=False)
class Tokens:
    """Tokenised texts."""

    ids: Tensor  # int32 of shape (n, context length), zero after the end of a text
    truncated: int  # how many texts were too long and lost their end
    first_truncated: str  # the first of them; empty if there is none


def tokenise(texts: Sequence[str], context_length: int) -> Tokens:
    """Tokens of CLIP's own byte-pair encoding, cut to the context length.

    open_clip's tokenizer cuts as well, and does not say which texts it cut.
    """
    tokenizer = _tokenizer()
    ids = torch.zeros(len(texts), context_length, dtype=torch.int32)
    truncated: list[str] = []
    for row, text in enumerate(texts):
        found = [tokenizer.sot_token_id, *tokenizer.encode(text), tokenizer.eot_token_id]
        if len(found) > context_length:
            truncated.append(text)
            found = [*found[: context_length - 1], tokenizer.eot_token_id]
        ids[row, : len(found)] = torch.tensor(found, dtype=torch.int32)
    return Tokens(ids, len(truncated), truncated[0] if truncated else "")


@cache
def _tokenizer() -> SimpleTokenizer:
    declare_missing()
    from open_clip import SimpleTokenizer

    return SimpleTokenizer()


class PairBatch(NamedTuple):
    """A batch."""

    images: Tensor  # uint8 of shape (n, 3, side, side)
    tokens: Tensor  # of all captions that an image may be shown with, shape (n, k, context length)
    counts: Tensor  # how many of the k are captions, shape (n,); the rest is zero
    # Which image it is, shape (n,): equal ones are never negatives of each other.
    identities: Tensor


@dataclass(frozen=True, eq=False)
class PairSamples(BatchedImages):
    """What an epoch consists of: every image, or every caption."""

    tokens: Tensor  # of all captions, shape (m, context length)
    owners: Tensor  # which image each caption is of, ascending, shape (m,)
    all_captions: bool  # whether a sample is a caption with its image; or an image with all of its

    def __len__(self) -> int:
        return len(self.owners) if self.all_captions else len(self.images)

    def __getitem__(self, index: int) -> PairBatch:
        return self.__getitems__([index])

    def __getitems__(self, indices: Sequence[int]) -> PairBatch:
        """A batch in one step; loaders prefer this to item after item."""
        chosen = torch.as_tensor(indices)
        if self.all_captions:
            identities, tokens = self.owners[chosen], self.tokens[chosen, None]
            counts = torch.ones_like(identities)
        else:
            identities = chosen
            first = torch.searchsorted(self.owners, chosen)
            counts = torch.searchsorted(self.owners, chosen, right=True) - first
            place = torch.arange(int(counts.max()))
            real = place < counts[:, None]  # (n, k)
            tokens = self.tokens[(first[:, None] + place).clamp_max(len(self.tokens) - 1)]
            tokens = tokens * real[..., None]
        return PairBatch(self.images[identities], tokens.long(), counts, identities)


# --- coloured shapes with captions, drawn by the program, for tests and first steps ---------------


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

    An image shows one shape in a frame; its form and colour and those of background and frame are
    what the captions tell. No two images of all sets agree in all four: every caption has one right
    image, and test images are combinations that were never seen.

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
