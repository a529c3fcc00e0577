"""Tiny-ImageNet from its folder tree; the labelled validation images are the test set."""

from __future__ import annotations

from pathlib import Path

import torch

from tricouple.data.images.download import TINY_IMAGENET, fetch, missing
from tricouple.data.images.errors import DataError
from tricouple.data.images.files import ImageFiles, find_images
from tricouple.data.images.sets import ImageSet
from tricouple.data.images.source import Found, Request, count_note
from tricouple.data.normalisation import IMAGENET_MEAN, IMAGENET_STD

SIZE = 64
_Labelled = list[tuple[Path, str]]


def read(request: Request) -> Found:
    """``train/<wnid>/images/*.JPEG``, ``val/images`` and ``val/val_annotations.txt``."""
    folder = request.root / "tiny-imagenet-200"
    expected = (
        f"train/<class>/images/*.JPEG, val/images/*.JPEG and val/val_annotations.txt in {folder}"
    )
    if not (folder / "train").is_dir():
        if not request.download:
            raise DataError(missing("tiny_imagenet", expected))
        fetch("tiny_imagenet", request.root, expected, _download)
    training = _by_folder(folder / "train")
    if not training:
        raise DataError(missing("tiny_imagenet", expected))
    wnids = sorted({wnid for _, wnid in training})
    notes = [] if len(wnids) == 200 else [f"{len(wnids)} of 200 classes are here"]
    notes += count_note("train", len(training), 100_000)
    testing, test_notes = _validation(folder / "val", wnids)
    return Found(
        _images(training, wnids),
        _images(testing, wnids) if testing else None,
        _readable(folder / "words.txt", wnids),
        IMAGENET_MEAN,
        IMAGENET_STD,
        tuple(notes + test_notes),
    )


def _download(root: Path) -> None:
    from tricouple.data.images.download import torchvision_datasets

    url, md5 = TINY_IMAGENET
    torchvision_datasets().utils.download_and_extract_archive(url, root, md5=md5)


def _images(labelled: _Labelled, wnids: list[str]) -> ImageSet:
    codes = {wnid: code for code, wnid in enumerate(wnids)}
    files = ImageFiles(tuple(path for path, _ in labelled), channels=3, size=SIZE)
    return ImageSet(files.in_memory(), torch.tensor([codes[wnid] for _, wnid in labelled]))


def _by_folder(folder: Path) -> _Labelled:
    return [(path, path.relative_to(folder).parts[0]) for path in find_images(folder)]


def _validation(folder: Path, wnids: list[str]) -> tuple[_Labelled, list[str]]:
    """Validation images: labelled by their annotations, or sorted into folders by an older tool."""
    annotations = folder / "val_annotations.txt"
    if not annotations.is_file():
        labelled = [(path, wnid) for path, wnid in _by_folder(folder) if wnid in set(wnids)]
        if not labelled:
            return [], ["val/val_annotations.txt is missing: there is no test set"]
        return labelled, count_note("test", len(labelled), 10_000)
    rows = []
    for number, line in enumerate(annotations.read_text().splitlines(), 1):
        fields = line.split("\t")
        if len(fields) < 2:
            raise DataError(f"{annotations}, line {number}: expected file and class, got {line!r}")
        rows.append((folder / "images" / fields[0], fields[1]))
    known = [(path, wnid) for path, wnid in rows if wnid in set(wnids)]
    here = [(path, wnid) for path, wnid in known if path.is_file()]
    notes = count_note("test", len(here), 10_000)
    if len(known) < len(rows):
        notes.append(f"{len(rows) - len(known)} test images of classes without training images")
    if len(here) < len(known):
        notes.append(f"{len(known) - len(here)} of the annotated test images are missing")
    return here, notes


def _readable(words: Path, wnids: list[str]) -> tuple[str, ...]:
    """The first name of each class in ``words.txt``, where there is one."""
    if not words.is_file():
        return tuple(wnids)
    rows = (line.partition("\t") for line in words.read_text().splitlines())
    names = {wnid: text.partition(",")[0] for wnid, _, text in rows}
    return tuple(names.get(wnid, wnid) for wnid in wnids)
