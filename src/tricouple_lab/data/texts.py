"""Texts with classes, or in pairs: intents as published, tables of one's own, phrases made here."""

from __future__ import annotations

import csv
import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tricouple_lab.data import TextSource
from tricouple_lab.data.images import DataError, folder_of, split, subset
from tricouple_lab.data.sampler import shuffled
from tricouple_lab.data.tables import Problems, clean, require_columns, table

NAMED = 5  # classes that an error names, of many


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts and their classes, or texts and what belongs to each.

    Example:
        >>> Texts(("hello", "good bye"), torch.tensor([0, 1]))
        Texts(2 texts)
    """

    texts: tuple[str, ...]  # one a sample
    labels: Tensor  # index into the class names, int64, shape (n,); of pairs, equal for equal texts
    answers: tuple[str, ...] = ()  # of pairs, the text that belongs to each
    noun = "texts"

    def __len__(self) -> int:
        return len(self.texts)

    def __repr__(self) -> str:
        return f"Texts({len(self)} {'pairs' if self.answers else 'texts'})"

    def take(self, indices: Tensor) -> Texts:
        """A smaller set, of the samples at some positions."""
        places = indices.tolist()
        texts, answers = (tuple(part[i] for i in places if part) for part in self.columns)
        return Texts(texts, self.labels[indices], answers)

    @property
    def columns(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The texts and the answers."""
        return self.texts, self.answers


@dataclass(frozen=True, eq=False)
class TextData:
    """A data set of texts."""

    train: Texts  # to learn from
    test: Texts  # to evaluate on
    classes: tuple[str, ...]  # their names; none of pairs
    groups: Tensor  # of each class, such as a domain, shape (K,); all zero where there are none
    out_of_scope: tuple[str, ...] = ()  # test texts that belong to no class
    validation: Texts | None = None  # to choose settings on
    notes: tuple[str, ...] = ()  # what was left out, a sentence each


def load(wanted: TextSource, seed: int) -> TextData:
    """Read a data set and cut it to size.

    The test set is the same for every seed; the seed chooses what is held out for validation, then
    the training texts.

    Raises:
        DataError: If files are missing, or are not what they should be.
        ValueError: If the sizes are not possible.
    """
    if wanted.name == "phrases":
        data = make_phrases()
    elif wanted.name == "csv":
        data = _own(wanted)
    else:
        data = load_texts(wanted.name, wanted.root)
    train, validation = data.train, data.validation
    if wanted.validation_size:
        train, validation = _parted(train, wanted.validation_size, seed, "data.validation_size")
    if wanted.shots is not None:
        train = draw_shots(train, data.classes, wanted.shots, seed)
    elif wanted.train_size is not None:
        train = _fewer(train, wanted.train_size, seed)
    return replace(data, train=train, validation=validation)


def draw_shots(texts: Texts, classes: Sequence[str], shots: int, seed: int) -> Texts:
    """So many texts of every class, at random; an error names the classes that have fewer."""
    if texts.answers:
        raise ValueError("data.shots counts texts of a class, and pairs have none: leave it out")
    counts = texts.labels.bincount(minlength=len(classes)).tolist()
    few = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if n < shots]
    if few:
        more = f" and {len(few) - NAMED} more" * (len(few) > NAMED)
        raise ValueError(
            f"data.shots is {shots}, but {len(few)} of {len(classes)} classes have fewer training "
            f"texts: {', '.join(few[:NAMED])}{more}; use {min(counts)} or less, or add texts"
        )
    order = shuffled(len(texts), seed)
    by_class = order[texts.labels[order].argsort(stable=True)].split(counts)
    return texts.take(torch.cat([own[:shots] for own in by_class]))


def _parted(texts: Texts, size: int | float, seed: int, name: str) -> tuple[Texts, Texts]:
    """The rest, and what is held out; all pairs of one text stay together."""
    if not texts.answers:
        return split(texts, size, seed, name=name)
    identities = texts.labels.unique()
    n = len(identities)
    count = max(1, round(size * n)) if isinstance(size, float) else size
    if not 0 < count < n:
        raise ValueError(f"{name} is {size}, but there are pairs of {n} texts: use less")
    drawn = torch.isin(texts.labels, identities[shuffled(n, seed)[:count]])
    return texts.take((~drawn).nonzero()[:, 0]), texts.take(drawn.nonzero()[:, 0])


def _fewer(texts: Texts, size: int, seed: int) -> Texts:
    if not texts.answers:
        return subset(texts, size, seed, name="data.train_size")
    if not 0 < size <= len(texts):
        raise ValueError(f"data.train_size is {size}, but there are {len(texts)} pairs")
    return texts.take(shuffled(len(texts), seed)[:size].sort().values)


# --- published ------------------------------------------------------------------------------------


def load_texts(name: str, root: Path | str | None = None) -> TextData:
    """Read a published data set: ``"banking77"``, ``"clinc150"`` or ``"clinc150_imbalanced"``.

    The folder that data sets live in, ``intents/…`` below it, is by default TRICOUPLE_DATA, or
    ``~/.cache/tricouple``.

    Raises:
        DataError: If files are missing or are not what they should be.
    """
    if name not in _FILES:
        raise ValueError(
            f"data must be 'banking77', 'clinc150' or 'clinc150_imbalanced', got {name!r}"
        )
    folder, here = published_files(name, root)
    wanted = [folder / own for own in _FILES[name]]
    absent = [path for path in wanted if path not in here]
    if absent:
        raise DataError(
            f"{' and '.join(map(str, absent))} {'is' if len(absent) == 1 else 'are'} missing: put "
            "the published files there, or name the folder that holds intents/ by TRICOUPLE_DATA "
            "or data.root"
        )
    if name == "banking77":
        train, test = map(_table, wanted)
        return _data(train, test, {}, ())
    parts, domains = map(_json, wanted)
    try:
        train, test, validation = (
            [(str(text), str(label)) for text, label in parts[part]]
            for part in ("train", "test", "val")
        )
        strangers = tuple(str(text) for text, _ in parts["oos_test"])
        group = {str(label): number for number, own in enumerate(domains.values()) for label in own}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise DataError(f"{folder} does not hold CLINC150 as published: {error!r}") from error
    return _data(train, test, group, strangers, validation)


_FILES = {
    "banking77": ("train.csv", "test.csv"),
    "clinc150": ("data_full.json", "domains.json"),
    "clinc150_imbalanced": ("data_imbalanced.json", "domains.json"),
}


def published_files(name: str, root: Path | str | None = None) -> tuple[Path, list[Path]]:
    """The folder of a published data set, and the files there that ``load_texts`` would read now.

    Example:
        >>> published_files("banking77", "/nowhere")[1]
        []
    """
    folder = folder_of(root) / "intents" / name.removesuffix("_imbalanced")
    return folder, [path for own in _FILES.get(name, ()) if (path := folder / own).is_file()]


def _data(
    train: Sequence[tuple[str, str]],
    test: Sequence[tuple[str, str]],
    groups: dict[str, int],
    out_of_scope: tuple[str, ...],
    validation: Sequence[tuple[str, str]] | None = None,
) -> TextData:
    classes = tuple(sorted({label for _, label in train}))
    codes = {label: code for code, label in enumerate(classes)}
    unknown = sorted({label for _, label in (*test, *(validation or ()))} - set(codes))
    if unknown:
        more = f" and {len(unknown) - NAMED} more" * (len(unknown) > NAMED)
        raise DataError(
            f"test texts of a class without training texts: {', '.join(unknown[:NAMED])}{more}"
        )
    sets = [
        Texts(tuple(text for text, _ in own), torch.tensor([codes[label] for _, label in own]))
        for own in (train, test, validation or ())
    ]
    group = torch.tensor([groups.get(label, 0) for label in classes])
    held = sets[2] if validation is not None else None
    return TextData(sets[0], sets[1], classes, group, out_of_scope, held)


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
    try:
        yield
    except (OSError, ValueError, csv.Error) as error:
        raise DataError(f"cannot read {path}: {error}") from error


# --- one's own ------------------------------------------------------------------------------------


def _own(wanted: TextSource) -> TextData:
    """Tables of texts with classes, or of pairs."""
    assert wanted.path is not None
    notes: list[str] = []
    paths = [Path(p).expanduser() for p in (wanted.path, wanted.test_path) if p is not None]
    wrong, tables = [], []
    for path in paths:
        try:
            tables.append(_read(path, wanted, notes))
        except DataError as error:
            wrong.append(str(error))
    if wrong:
        raise DataError("; ".join(wrong))
    kinds, rows = zip(*tables, strict=True)
    if len(set(kinds)) > 1:
        raise DataError(f"{paths[0]} has the column {kinds[0]!r}, {paths[1]} has {kinds[1]!r}")
    if kinds[0] == wanted.pair_column:
        parts = [_pairs(own) for own in rows]
        data = TextData(parts[0], parts[-1], (), torch.empty(0))
    else:
        data = _data(rows[0], rows[-1], {}, ())
        if len(data.classes) < 2:
            raise DataError(f"{paths[0]} has the class {data.classes[0]!r} only: two are needed")
    if len(paths) == 1:
        share: int | float = 0.2 if wanted.test_size is None else wanted.test_size
        train, test = _parted(data.train, share, 0, "data.test_size")
        data = replace(data, train=train, test=test)
        if wanted.test_size is None:
            notes.append(f"{len(test)} of {len(rows[0])} rows are held out for the test")
    return replace(data, notes=tuple(notes))


def _read(path: Path, wanted: TextSource, notes: list[str]) -> tuple[str, list[tuple[str, str]]]:
    """The title of the second column, that of classes or of pairs, and the rows."""
    problems = Problems(str(path))
    with table(path, wanted.separator) as lines:
        names = list(lines.fieldnames or [])
        columns = {"text_column": wanted.text_column}
        there = {
            name: column
            for name in ("label_column", "pair_column")
            if (column := getattr(wanted, name)) is not None and column in names
        }
        if len(there) == 2:
            raise DataError(
                f"{path} has both {wanted.label_column!r} and {wanted.pair_column!r}: set "
                "data.label_column=null for pairs, or data.pair_column=null for classes"
            )
        if not there:
            settings = "label_column for classes, data.pair_column for pairs"
            there = {settings: wanted.label_column or wanted.pair_column or "label"}
        require_columns(path, names, columns | there, wanted.separator)
        ((setting, column),) = there.items()
        rows = []
        for row in lines:
            text, other = (clean(row[name] or "") for name in (wanted.text_column, column))
            if not text:
                problems.add("empty texts", f"line {lines.line_num}")
            if not other:
                what = "empty texts of pairs" if setting == "pair_column" else "texts without class"
                problems.add(what, f"line {lines.line_num}")
            if text and other:
                rows.append((text, other))
    notes += problems.settle(skip=wanted.skip)
    if not rows:
        raise DataError(f"{path} has no row with a text")
    return column, rows


def _pairs(rows: Sequence[tuple[str, str]]) -> Texts:
    texts, answers = zip(*rows, strict=True)
    codes = {text: code for code, text in enumerate(dict.fromkeys(texts))}
    return Texts(texts, torch.tensor([codes[text] for text in texts]), answers)


# --- made by the program --------------------------------------------------------------------------

OPENINGS = ("", "please ", "could you ", "i want to ", "help me to ")
INTENTS = {
    "buy": ("buy", "order", "purchase"),
    "return": ("return", "send back", "give back"),
    "repair": ("repair", "fix", "mend"),
    "find": ("find", "look for", "locate"),
    "clean": ("clean", "wash", "wipe"),
    "sell": ("sell", "trade", "get money for"),
    "lend": ("lend", "loan", "let someone use"),
    "measure": ("measure", "weigh", "size up"),
    "pack": ("pack", "wrap", "box"),
    "insure": ("insure", "cover", "protect"),
}
STRANGE = ("paint", "photograph", "describe", "praise")
THINGS = (
    "the lamp", "my bicycle", "a chair", "the old clock", "this camera", "her violin", "a kettle",
    "the blue door", "our table", "that mirror",
)  # fmt: skip


def make_phrases() -> TextData:
    """Wishes in a shop: ten intents in three words each, about anything; others out of scope.

    The same ones every time; a third is for the test.

    Example:
        >>> data = make_phrases()
        >>> len(data.train), len(data.test), data.classes[:2]
        (1000, 500, ('buy', 'clean'))
    """
    made = [
        (f"{opening}{word} {thing}", intent)
        for intent, words in INTENTS.items()
        for opening, word, thing in itertools.product(OPENINGS, words, THINGS)
    ]
    places = shuffled(len(made), 0).tolist()
    rows = [made[place] for place in places]
    third = len(rows) // 3
    strange = tuple(f"{o}{word} {t}" for o, word, t in itertools.product(OPENINGS, STRANGE, THINGS))
    return _data(rows[third:], rows[:third], {}, strange)
