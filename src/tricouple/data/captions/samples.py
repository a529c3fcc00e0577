"""Batches of images and tokens to train on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tricouple.data.captions.pictures import Pictures


class PairBatch(NamedTuple):
    """A batch.

    Attributes:
        images: uint8 of shape (n, 3, side, side).
        tokens: Of all captions that an image may be shown with, shape (n, k, context length).
        counts: How many of the k are captions, shape (n,); the rest is zero.
        identities: Which image it is, shape (n,): equal ones are never negatives of each other.
    """

    images: Tensor
    tokens: Tensor
    counts: Tensor
    identities: Tensor


@dataclass(frozen=True, eq=False)
class PairSamples(Dataset[PairBatch]):
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

    images: Tensor | Pictures
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

    @property
    def in_memory(self) -> bool:
        """Whether batches cost no decoding, so that loaders need no worker processes."""
        return isinstance(self.images, Tensor)
