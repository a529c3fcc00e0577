"""Labelled texts: intents as published, or any CSV of one's own."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tricouple.data.images.files import DataError
from tricouple.data.images.readers import data_home


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and their classes.

    Attributes:
        texts: One a sample.
        labels: Index into the class names, int64, shape (n,).

    Example:
        >>> Texts(("hello", "good bye"), torch.tensor([0, 1]))
        Texts(2 texts)
    """

    texts: tuple[str, ...]
    labels: Tensor

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Texts({len(self)} texts)"


@dataclass(frozen=True, eq=False)
class TextData:
    """A data set of texts.

    Attributes:
        train: To learn from.
        test: To evaluate on.
        classes: Their names.
        groups: The group of classes (such as a domain) that each class belongs to, shape (K,);
            all zero where a data set has none.
        out_of_scope: Test texts that belong to no class.
    """

    train: Texts
    test: Texts
    classes: tuple[str, ...]
    groups: Tensor
    out_of_scope: tuple[str, ...] = ()


def load_texts(name: str, root: Path | str | None = None) -> TextData:
    """Read a data set of texts.

    Args:
        name: ``"banking77"``, ``"clinc150"`` or ``"clinc150_imbalanced"``.
        root: The folder that data sets live in, ``intents/…`` below it; by default the
            environment variable TRICOUPLE_DATA, or ``~/.cache/tricouple``.

    Raises:
        DataError: If files are missing or are not what they should be.
    """
    home = (data_home() if root is None else Path(root).expanduser()) / "intents"
    if name == "banking77":
        folder = home / "banking77"
        train, test = (_table(folder / f"{part}.csv") for part in ("train", "test"))
        return _data(train, test, {}, ())
    if name not in ("clinc150", "clinc150_imbalanced"):
        raise ValueError(
            f"data must be 'banking77', 'clinc150' or 'clinc150_imbalanced', got {name!r}"
        )
    folder = home / "clinc150"
    parts = _json(folder / f"data_{'full' if name == 'clinc150' else 'imbalanced'}.json")
    domains = _json(folder / "domains.json")
    try:
        train, test = (
            [(str(text), str(label)) for text, label in parts[part]] for part in ("train", "test")
        )
        strangers = tuple(str(text) for text, _ in parts["oos_test"])
        group = {str(label): number for number, own in enumerate(domains.values()) for label in own}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder} does not hold CLINC150 as published: {error!r}") from error
    return _data(train, test, group, strangers)


def _data(
    train: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]],
    groups: dict[str, int],
    out_of_scope: tuple[str, ...],
) -> TextData:
    classes = tuple(sorted({label for _, label in train}))
    codes = {label: code for code, label in enumerate(classes)}
    unknown = sorted({label for _, label in test} - set(codes))
    if unknown:
        raise DataError(f"test texts of a class without training texts: {', '.join(unknown[:5])}")
    sets = [
        Texts(tuple(text for text, _ in own), torch.tensor([codes[label] for _, label in own]))
        for own in (train, test)
    ]
    group = torch.tensor([groups.get(label, 0) for label in classes])
    return TextData(sets[0], sets[1], classes, group, out_of_scope)


def _table(path: Path) -> list[tuple[str, str]]:
    """Rows of a CSV file whose first two columns are text and class, under a line of titles."""
    with _named(path), path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file, strict=True))[1:]
    if not rows or any(len(row) < 2 for row in rows):
        raise DataError(f"{path} should have lines 'text,class' below its titles")
    return [(row[0], row[1]) for row in rows]


def _json(path: Path) -> Any:
    with _named(path):
        return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def _named(path: Path) -> Iterator[None]:
    """Errors of reading a file name it."""
    if not path.is_file():
        raise DataError(
            f"{path} is missing: put the published files there, or name the folder that holds "
            "intents/ by TRICOUPLE_DATA"
        )
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error
