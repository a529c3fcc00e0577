"""What a data set is, what training needs of it, and how batches are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from tricouple import checks
from tricouple.data.images.files import ImageFiles, usable_cores
from tricouple.data.sampler import SharedBatches

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class BatchedSet(Dataset[Any]):
    """Samples in batches, by ``__getitems__(indices)``."""

    noun = "samples"  # what they are called
    in_memory: bool = True  # whether batches cost no decoding, so that loaders need no workers

    def __len__(self) -> int:
        raise NotImplementedError


@dataclass(frozen=True, eq=False, repr=False)
class BatchedImages(BatchedSet):
    """Images, and what else a subclass knows of them."""

    noun = "images"
    images: Tensor | ImageFiles

    def __len__(self) -> int:
        return len(self.images)

    @property
    def in_memory(self) -> bool:  # type: ignore[override]
        """Whether they are decoded."""
        return isinstance(self.images, Tensor)


@dataclass(frozen=True, eq=False, repr=False)
class ImageSet(BatchedImages):
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
            return self.images[indices], torch.full_like(indices, -1)
        return self.images[indices], self.labels[indices]

    def take(self, indices: Tensor) -> ImageSet:
        """A smaller set, of the images at some positions."""
        chosen = self.images
        images = chosen.take(indices) if isinstance(chosen, ImageFiles) else chosen[indices]
        return ImageSet(images, None if self.labels is None else self.labels[indices])


@dataclass(frozen=True)
class Normalisation:
    """Resizes images, scales them to [0, 1] and standardises each channel.

    Batches travel as 8-bit tensors of the stored size, a quarter of the bytes or less, and are
    enlarged and converted where they are used.

    Example:
        >>> normalisation = Normalisation((0.5,), (0.5,), size=4)
        >>> normalisation(torch.full((1, 1, 2, 2), 255, dtype=torch.uint8)).unique()
        tensor([1.])
    """

    mean: tuple[float, ...]  # of each channel, on the scale [0, 1]
    std: tuple[float, ...]  # of each channel
    size: int  # side of the square images that the network sees

    def __call__(self, images: Tensor) -> Tensor:
        """Prepare images (n, c, h, w), 8-bit or in [0, 1]: float32 (n, c, size, size)."""
        found, square = to_unit_range(images), (self.size, self.size)
        if found.shape[-2:] != square:
            found = interpolate(found, square, mode="bilinear", antialias=True)
        return self.standardise(found)

    def standardise(self, images: Tensor) -> Tensor:
        """``(images − mean) / std`` for floating-point images in [0, 1]."""
        if images.shape[1] != len(self.mean):
            raise ValueError(
                f"images have {images.shape[1]} channels, the normalisation {len(self.mean)}"
            )
        mean = images.new_tensor(self.mean)[:, None, None]
        return (images - mean) / images.new_tensor(self.std)[:, None, None]


def imagenet_statistics(channels: int) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and standard deviation of ImageNet; of grey images, the mean over the channels."""
    if channels == 3:
        return IMAGENET_MEAN, IMAGENET_STD
    return (sum(IMAGENET_MEAN) / 3,), (sum(IMAGENET_STD) / 3,)


def to_unit_range(images: Tensor) -> Tensor:
    """Images in [0, 1] as float32: 8-bit ones are divided by 255, others taken as they are.

    Example:
        >>> to_unit_range(torch.tensor([[[[0, 255]]]], dtype=torch.uint8))
        tensor([[[[0., 1.]]]])
    """
    if images.ndim != 4:
        raise ValueError(f"images must have shape (n, c, h, w), got {tuple(images.shape)}")
    if images.dtype == torch.uint8:
        return images.float() / 255
    if not images.is_floating_point():
        raise TypeError(f"images must be uint8 or floating point, got {images.dtype}")
    return images.float()


@dataclass(frozen=True, eq=False)
class ImageData:
    """A data set to train and evaluate on.

    Example:
        >>> from tricouple.data import images
        >>> data = images.load("digits")
        >>> data.test, data.classes[3], data.mean
        (ImageSet(359 labelled images of 1×8×8), '3', (0.3058,))
    """

    name: str  # as in ``load``
    train: ImageSet  # images to learn from; unlabelled if ``train.labels`` is None
    # Labelled images to fit linear probes and k-NN on: ``train`` itself if it is labelled. None if
    # there are no labels.
    probe: ImageSet | None
    test: ImageSet | None  # labelled images to evaluate on; None if there are none
    classes: tuple[str, ...]  # name of each label; empty if there are no labels
    normalisation: Normalisation  # the paper's for this data set, with the size that networks see
    # What is missing or differs from the published data set, and what was done about it; a command
    # says each once.
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


@dataclass(frozen=True, eq=False)
class Found:
    """The images of a data set as a reader found them, before subsets are drawn."""

    train: ImageSet
    test: ImageSet | None
    classes: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    notes: tuple[str, ...] = ()


def loader(
    samples: BatchedSet,
    batch_size: int,
    *,
    order: Sampler[int] | None = None,
    drop_last: bool = False,
    workers: int | None = None,
    rank: int = 0,
    n_processes: int = 1,
) -> DataLoader[Any]:
    """Batches of a set; of an ``ImageSet`` uint8 of shape (b, c, h, w) and int64 of shape (b,).

    Args:
        samples: The set; labels of images are −1 if it has none.
        batch_size: How many samples a batch holds.
        order: Of the samples; by default that of the set.
        drop_last: Leave out a last batch that is smaller than the others.
        workers: Processes that decode files; by default one a core, and none for images that are
            in memory, where indexing is all there is to do.
        rank: Of this process, which has a share of each batch.
        n_processes: Which share batches, and cores.

    Example:
        >>> five = ImageSet(torch.zeros(5, 1, 2, 2, dtype=torch.uint8))
        >>> [len(batch) for batch, _ in loader(five, 2)]
        [2, 2, 1]
    """
    if workers is None:
        workers = 0 if samples.in_memory else max(1, usable_cores() // n_processes)
    batches = BatchSampler(order or range(len(samples)), batch_size, drop_last)
    return DataLoader(
        samples,
        batch_sampler=SharedBatches(batches, rank, n_processes) if n_processes > 1 else batches,
        # Loaders draw a number even if nothing is random: not from the generator of a training run.
        generator=torch.Generator(),
        num_workers=workers,
        persistent_workers=workers > 0,
        collate_fn=_as_it_is,
    )


def _as_it_is(batch: Any) -> Any:
    """Sets give whole batches already; nothing is left to collate."""
    return batch


def check_supervised(data: ImageData) -> None:
    """Require labels, two classes, and two images of every class: an anchor and a positive.

    Raises:
        ValueError: If supervised contrastive learning has nothing to learn from.

    Example:
        >>> from tricouple.data import images
        >>> check_supervised(images.load("digits", train_size=20))
    """
    labels = data.train.labels
    if labels is None:
        raise ValueError(
            f"data {data.name!r} has no labels, which setting=scl needs: sort the images into "
            "folders, one a class and two or more, or use setting=ucl"
            + f" ({'; '.join(data.notes)})"
            * bool(data.notes)
        )
    counts = torch.bincount(labels, minlength=data.n_classes)
    if int((counts > 0).sum()) < 2:
        raise ValueError(f"data {data.name!r} has one class only: negatives need a second")
    single = [data.classes[index] for index in (counts == 1).nonzero().flatten().tolist()]
    if single:
        raise ValueError(
            f"class {single[0]!r} of data {data.name!r} has one training image"
            + (f" (as have {len(single) - 1} others)" if len(single) > 1 else "")
            + ": setting=scl needs a positive for it; add images, raise train_size or use "
            "setting=ucl"
        )


def check_batch_size(samples: BatchedSet, batch_size: int, *, name: str = "batch_size") -> None:
    """Require a batch of at least two samples that the set can fill.

    Args:
        samples: The training set.
        batch_size: Samples in a batch.
        name: What error messages call ``batch_size``.

    Raises:
        ValueError: If ``batch_size`` is larger than the set, or below 2.

    Example:
        >>> from tricouple.data import images
        >>> check_batch_size(images.load("digits").train, 256)
    """
    checks.count(name, batch_size)
    if batch_size < 2:
        raise ValueError(f"{name} must be at least 2 to hold a negative, got {batch_size}")
    if batch_size > len(samples):
        raise ValueError(
            f"{name} is {batch_size}, but there are only {len(samples)} training {samples.noun}: "
            f"use {len(samples)} or less"
        )
