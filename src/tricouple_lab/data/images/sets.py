"""What a data set is, what training needs of it, and how parts and batches are drawn from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import BatchSampler, DataLoader, Dataset, Sampler

from tricouple import checks
from tricouple_lab.data.images.files import ImageFiles, usable_cores
from tricouple_lab.data.sampler import SharedBatches, shuffled

if TYPE_CHECKING:
    from tricouple_lab.data.texts import Texts

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
        images, labels = self.__getitems__([range(len(self))[index]])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[Tensor, Tensor]:
        """A batch in one step; loaders prefer this to item after item."""
        chosen = torch.as_tensor(indices)
        labels = torch.full_like(chosen, -1) if self.labels is None else self.labels[chosen]
        return self.images[chosen], labels

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
        >>> from tricouple_lab.data import images
        >>> data = images.load("digits")
        >>> data.test, data.classes[3], data.normalisation.mean
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


# --- subsets and splits that keep the proportions of the classes ----------------------------------

S = TypeVar("S", ImageSet, "Texts")


def subset(samples: S, size: int, seed: int = 0, *, name: str = "size") -> S:
    """A random subset with the class proportions of the whole, and at least one sample a class.

    Without labels it is drawn uniformly. Error messages call its size by the given name.

    Example:
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> subset(ten, 4).labels
        tensor([0, 0, 1, 1])
    """
    checks.count(name, size)
    if size > len(samples):
        raise ValueError(f"{name} is {size}, but there are only {len(samples)} {samples.noun}")
    labels = _strata(samples)
    n_classes = len(labels.unique())
    if size < n_classes:
        raise ValueError(
            f"{name} is {size}, but there are {n_classes} classes: "
            f"use {n_classes} or more, so that each has one"
        )
    return samples.take(stratified(labels, size, seed, least=1).nonzero().flatten())


def split(
    samples: S, held_out: int | float, seed: int = 0, *, name: str = "held_out"
) -> tuple[S, S]:
    """The rest and a part held out, both with the class proportions of the whole.

    Both parts have a sample of each class; the only sample of a class stays in the first part.
    Without labels the split is uniform. What is held out is a number of samples, or a fraction
    between 0 and 1; error messages call it by the given name.

    Example:
        >>> ten = ImageSet(torch.zeros(10, 1, 2, 2, dtype=torch.uint8), torch.arange(10) // 5)
        >>> rest, validation = split(ten, 0.4)
        >>> rest.labels, validation.labels
        (tensor([0, 0, 0, 1, 1, 1]), tensor([0, 0, 1, 1]))
    """
    labels = _strata(samples)
    most = labels.unique(return_counts=True)[1] - 1
    low, high = int(most.clamp_max(1).sum()), int(most.sum())
    if isinstance(held_out, float):
        if not 0 < held_out < 1:
            raise ValueError(
                f"{name} must be a fraction between 0 and 1 or a whole number, got {held_out}"
            )
        size = min(max(round(held_out * len(samples)), low), high)
    else:
        checks.count(name, held_out)
        size = held_out
    if size == 0 or not low <= size <= high:
        raise ValueError(
            f"{name} is {held_out}, but {len(samples)} {samples.noun} of {len(most)} classes can "
            f"spare {low} to {high}, if each class is to be in both parts"
        )
    drawn = stratified(labels, size, seed, least=1, left=1)
    return samples.take((~drawn).nonzero().flatten()), samples.take(drawn.nonzero().flatten())


def stratified(labels: Tensor, size: int, seed: int, *, least: int = 0, left: int = 0) -> Tensor:
    """Draw samples in the proportions of their classes.

    By hand, since scikit-learn's stratified splits draw other samples than the stored studies did,
    and refuse classes of one sample.

    Labels are any integers, shape (n,). Of every class that has them to spare ``least`` samples are
    drawn, and ``left`` samples of each are not. Returns which were drawn, bool of shape (n,).

    Example:
        >>> labels = torch.tensor([0] + [1] * 30 + [2] * 60)
        >>> labels[stratified(labels, 10, seed=0, least=1)].bincount()
        tensor([1, 3, 6])
    """
    _, codes, counts = torch.unique(labels, return_inverse=True, return_counts=True)
    most = counts - left
    bottom = most.clamp_max(least)
    exact = size * counts.double() / counts.sum()
    shares = exact.floor().long().clamp(bottom, most)
    # One by one, the class that lags its exact share most gains, or that which leads it most loses.
    while (missing := size - int(shares.sum())) != 0:
        step = 1 if missing > 0 else -1
        room = shares < most if step > 0 else shares > bottom
        lag = torch.where(room, step * (exact - shares), -torch.inf)
        shares[lag.argmax()] += step
    order = shuffled(len(labels), seed)
    by_class = order[codes[order].argsort(stable=True)]
    starts = counts.cumsum(0) - counts
    rank = torch.arange(len(labels)) - starts[codes[by_class]]  # place within the own class
    drawn = torch.zeros(len(labels), dtype=torch.bool)
    drawn[by_class] = rank < shares[codes[by_class]]
    return drawn


def _strata(samples: ImageSet | Texts) -> Tensor:
    """The labels; without any, all samples are of one class."""
    if samples.labels is None:
        return torch.zeros(len(samples), dtype=torch.int64)
    return samples.labels


# --- batches --------------------------------------------------------------------------------------


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
        batch_size: How many samples a batch holds, of all processes that share it.
        order: Of the samples; by default that of the set.
        drop_last: Leave out a last batch that is smaller than the others.
        workers: Processes that decode files; by default one a core, and none for images that are
            in memory, where indexing is all there is to do.
        rank: Of this process.
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
        >>> from tricouple_lab.data import images
        >>> check_supervised(images.load("digits"))
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
    """Require batches of two samples or more that a training set can fill.

    Error messages call their size by the given name.

    Example:
        >>> from tricouple_lab.data import images
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
