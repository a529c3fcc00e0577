"""What a set of captioned images is; several captions of one image share its identity."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from tricouple.data.captions.pictures import Picture, Pictures


@dataclass(frozen=True)
class Entry:
    """An image and its captions, one or more, as a reader found them."""

    picture: Picture
    captions: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class CaptionedImages:
    """Images and captions.

    Attributes:
        images: An 8-bit tensor of shape (n, 3, side, side), or pictures that are decoded when
            indexed.
        captions: m ≥ n texts, those of the first image first.
        owners: Which image each caption is of, int64 of shape (m,), in ascending order.

    Example:
        >>> blank = torch.zeros(2, 3, 4, 4, dtype=torch.uint8)
        >>> two = CaptionedImages.of(blank, [("a dog", "a puppy"), ("a cat",)])
        >>> two.owners, two
        (tensor([0, 0, 1]), CaptionedImages(2 images, 3 captions))
    """

    images: Tensor | Pictures
    captions: tuple[str, ...]
    owners: Tensor

    @classmethod
    def of(cls, images: Tensor | Pictures, captions: list[tuple[str, ...]]) -> CaptionedImages:
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
    """A data set to train and evaluate on.

    Attributes:
        train: To learn from.
        validation: To choose settings on; None if there is none.
        test: To evaluate on.
        notes: What was left out or done to the data; a command says each once.
    """

    train: CaptionedImages
    validation: CaptionedImages | None
    test: CaptionedImages
    notes: tuple[str, ...] = ()
