"""What a data set is: 8-bit images, labels, classes and the paper's normalisation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import Dataset

from tricouple.data.images.files import ImageFiles
from tricouple.data.normalisation import Normalisation

UNLABELLED = -1


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(Dataset[tuple[Tensor, Tensor]]):
    """Images and their labels, as PyTorch's loaders take them.

    Attributes:
        images: An 8-bit tensor of shape (n, c, h, w), or files that are decoded when indexed, for
            sets that memory cannot hold.
        labels: Class of each image, int64 of shape (n,); None if unknown. Batches of an unlabelled
            set carry the label −1.

    Example:
        >>> two = ImageSet(torch.zeros(2, 1, 8, 8, dtype=torch.uint8), torch.tensor([4, 2]))
        >>> image, label = two[1]
        >>> image.shape, label
        (torch.Size([1, 8, 8]), tensor(2))
    """

    images: Tensor | ImageFiles
    labels: Tensor | None = None

    def __post_init__(self) -> None:
        if isinstance(self.images, Tensor) and (
            self.images.dtype != torch.uint8 or self.images.ndim != 4
        ):
            raise ValueError(
                "images must be uint8 of shape (n, c, h, w), got "
                f"{self.images.dtype} of shape {tuple(self.images.shape)}"
            )
        if self.labels is not None and (
            self.labels.dtype != torch.int64 or self.labels.shape != (len(self.images),)
        ):
            raise ValueError(
                f"labels must be int64 of shape ({len(self.images)},), got "
                f"{self.labels.dtype} of shape {tuple(self.labels.shape)}"
            )

    def __repr__(self) -> str:
        n, c, h, w = self.images.shape
        kind = "unlabelled" if self.labels is None else "labelled"
        return f"ImageSet({n} {kind} images of {c}×{h}×{w})"

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        images, labels = self.batch(torch.tensor([range(len(self))[index]]))
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch in one step; loaders prefer this to item after item."""
        return self.batch(torch.as_tensor(indices))

    def batch(self, indices: Tensor) -> tuple[Tensor, Tensor]:
        """The images and labels at some positions.

        Args:
            indices: Positions, int64 of shape (b,).

        Returns:
            Images, uint8 of shape (b, c, h, w), and labels of shape (b,), −1 where unlabelled.
        """
        if self.labels is None:
            return self.images[indices], torch.full_like(indices, UNLABELLED)
        return self.images[indices], self.labels[indices]

    def take(self, indices: Tensor) -> ImageSet:
        """A smaller set, of the images at some positions."""
        chosen = self.images
        images = chosen.take(indices) if isinstance(chosen, ImageFiles) else chosen[indices]
        return ImageSet(images, None if self.labels is None else self.labels[indices])

    @property
    def in_memory(self) -> bool:
        """Whether batches cost no decoding, so that loaders need no worker processes."""
        return isinstance(self.images, Tensor)


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set to train and evaluate on.

    Attributes:
        name: As in ``load``.
        train: Images to learn from; unlabelled if ``train.labels`` is None.
        probe: Labelled images to fit linear probes and k-NN on: ``train`` itself if it is labelled.
            None if there are no labels.
        test: Labelled images to evaluate on; None if there are none.
        classes: Name of each label; empty if there are no labels.
        normalisation: The paper's for this data set, with the size that networks see.
        notes: What is missing or differs from the published data set, and what was done about it;
            a command says each once.

    Example:
        >>> from tricouple.data import images
        >>> data = images.load("digits")
        >>> data.test, data.classes[3], data.mean
        (ImageSet(359 labelled images of 1×8×8), '3', (0.3058,))
    """

    name: str
    train: ImageSet
    probe: ImageSet | None
    test: ImageSet | None
    classes: tuple[str, ...]
    normalisation: Normalisation
    notes: tuple[str, ...] = ()

    @property
    def mean(self) -> tuple[float, ...]:
        """Mean of each channel, on the scale [0, 1]."""
        return self.normalisation.mean

    @property
    def std(self) -> tuple[float, ...]:
        """Standard deviation of each channel."""
        return self.normalisation.std

    @property
    def channels(self) -> int:
        """1 for grey images, 3 for colour."""
        return self.train.images.shape[1]

    @property
    def image_size(self) -> int:
        """Side of the square images that networks see; the stored ones may be smaller."""
        return self.normalisation.size

    @property
    def n_classes(self) -> int:
        """How many classes there are."""
        return len(self.classes)
