"""Captioned images, their tokens, and the batches of pairs that training sees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tricouple.data.images.files import ImageFiles
from tricouple.data.images.sets import BatchedImages
from tricouple.torchvision_ops import declare_missing

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

    Example:
        >>> tokens = tokenise(["a dog", "dog " * 9], context_length=6)
        >>> tokens.ids.shape, tokens.truncated
        (torch.Size([2, 6]), 1)
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
    """What an epoch consists of: every image, or every caption.

    Attributes:
        images: As in ``CaptionedImages``.
        tokens: Of all captions, shape (m, context length).
        owners: Which image each caption is of, ascending, shape (m,).
        all_captions: Whether a sample is a caption with its image, or an image with its captions.

    Example:
        >>> images = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        >>> samples = PairSamples(images, torch.ones(3, 5), torch.tensor([0, 0, 1]), True)
        >>> len(samples), samples.__getitems__([0, 1]).identities
        (3, tensor([0, 0]))
    """

    tokens: Tensor
    owners: Tensor
    all_captions: bool

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
