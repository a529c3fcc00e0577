"""Data sets by name."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from tricouple import checks
from tricouple.data.images import cifar, digits, folder, mnist, svhn, tiny_imagenet
from tricouple.data.images.sets import ImageData
from tricouple.data.images.source import Found, Request
from tricouple.data.images.split import split, subset
from tricouple.data.normalisation import Normalisation

_READERS: dict[str, Callable[[Request], Found]] = {
    "digits": digits.read,
    "mnist": mnist.read,
    "svhn": svhn.read,
    "cifar10": cifar.read_cifar10,
    "cifar100": cifar.read_cifar100,
    "tiny_imagenet": tiny_imagenet.read,
    "folder": folder.read,
}
NAMES = tuple(_READERS)


def load(
    name: str,
    root: Path | str | None = None,
    *,
    train_size: int | None = None,
    seed: int = 0,
    image_size: int | None = None,
    download: bool = True,
    eval_root: Path | str | None = None,
) -> ImageData:
    """Read a data set, from disk or, if it is not there, from the network.

    A partial or re-ordered copy is taken as it is; ``notes`` say what differs. Damaged files are
    refused.

    Args:
        name: One of ``NAMES``.
        root: The folder that data sets live in, each in the layout torchvision uses; by default
            the environment variable TRICOUPLE_DATA, or ``~/.cache/tricouple``. For ``folder``, the
            images' own folder.
        train_size: Train on a stratified subset of this many images.
        seed: Chooses the subset. The test set is the same for every seed.
        image_size: Side of the images that networks see; by default the stored one.
        download: Whether a data set that is not on disk may be downloaded.
        eval_root: For ``folder``: another folder, of labelled images to evaluate on.

    Raises:
        DataError: If files are missing, unreadable or damaged; it names them.
        ValueError: If an argument is not possible.

    Example:
        >>> data = load("digits", train_size=100)
        >>> data.train.images.shape
        torch.Size([100, 1, 8, 8])
    """
    checks.one_of("data", name, NAMES)
    if train_size is not None:
        checks.count("train_size", train_size)
    if image_size is not None:
        checks.count("image_size", image_size)
    if eval_root is not None and name != "folder":
        raise ValueError(f"eval_root is for data 'folder'; {name!r} has its own test set")
    request = Request(
        _root(name, root), download, image_size, None if eval_root is None else Path(eval_root)
    )
    found = _READERS[name](request)
    train = found.train
    if train_size is not None:
        train = subset(train, train_size, seed, name="train_size")
    probe, test = train, found.test
    if train.labels is None and test is not None:
        probe, test = split(test, 0.5)
    side = max(train.images.shape[2:])
    return ImageData(
        name,
        train,
        probe if probe.labels is not None else None,
        test,
        found.classes,
        Normalisation(found.mean, found.std, image_size or side),
        found.notes,
    )


def _root(name: str, root: Path | str | None) -> Path:
    if root is not None:
        return Path(root).expanduser()
    if name == "folder":
        raise ValueError("data 'folder' needs root: the folder of images")
    return Path(os.environ.get("TRICOUPLE_DATA") or "~/.cache/tricouple").expanduser()
