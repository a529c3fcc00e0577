"""Texts with classes, or pairs of texts: generated phrases, published intents, own tables."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tricouple_lab import names
from tricouple_lab.config.schema import TextData
from tricouple_lab.data.sources import data_folder, hold_out, stratified
from tricouple_lab.data.tables import (
    check_sizes,
    clean,
    parquet_tables,
    read_table,
    require_columns,
    tables_of,
)
from tricouple_lab.names import UserError

OUT_OF_SCOPE = "oos"  # CLINC150's label of texts that belong to no class
TEST_SHARE = 0.2  # of a table without a test set


@dataclass(frozen=True, eq=False)
class TextSplit:
    """Texts and their classes, or texts and what belongs to each."""

    texts: tuple[str, ...]
    labels: Tensor  # int64 (n,): class, −1 out of scope; of pairs: equal for equal texts
    pairs: tuple[str, ...] = ()  # the text that belongs to each; empty if there are classes

    def __len__(self) -> int:
        return len(self.texts)

    def rows(self, indices: np.ndarray | Sequence[int]) -> TextSplit:
        """Return some of the rows."""
        chosen = np.asarray(indices, dtype=np.int64)
        texts, pairs = (tuple(part[i] for i in chosen if part) for part in (self.texts, self.pairs))
        return TextSplit(texts, self.labels[chosen], pairs)


@dataclass(frozen=True, eq=False)
class TextSets:
    """A data set."""

    splits: dict[str, TextSplit]  # train, validation, test, and out_of_scope if there are any
    classes: tuple[str, ...]  # empty for pairs
    notes: tuple[str, ...] = ()  # printed once

    def digest(self) -> str:
        """Return a sha256 of texts and labels."""
        content = hashlib.sha256(repr(self.classes).encode())
        for name, split in self.splits.items():
            content.update(repr((name, split.texts, split.pairs, split.labels.tolist())).encode())
        return content.hexdigest()


def load_texts(config: TextData, seed: int) -> TextSets:
    """Read a data set, hold out validation and test texts if it has none, and cut it to size.

    Held-out texts are the same for every seed; the seed draws the ``shots`` of each class.
    """
    check_sizes(config, {"train_size": 1, "test_size": 1, "shots": 1, "validation_share": 0})
    notes: list[str] = []
    if config.name == "phrases":
        frames = phrases()
    elif config.name == "csv":
        frames = _own_tables(config, notes)
    else:
        frames = _published(config.name)
    outside = "" if config.name == "csv" else OUT_OF_SCOPE
    labels = set(frames["train"].get("label", ())) - {outside}
    classes = tuple(sorted(labels))
    splits = _coded(frames, classes, outside)
    for name, share in (("test", TEST_SHARE), ("validation", config.validation_share)):
        if name not in splits and share > 0:
            rest, held_out = hold_out_texts(splits["train"], share, 0)
            splits[name] = splits["train"].rows(held_out)
            splits["train"] = splits["train"].rows(rest)
    for name, size in (("train", config.train_size), ("test", config.test_size)):
        if size is not None and size < len(splits[name]):
            kept = stratified(splits[name].labels.numpy(), size)
            notes.append(f"{size} of {len(splits[name])} {name} texts are used (data.{name}_size)")
            splits[name] = splits[name].rows(kept)
    if config.shots is not None:
        splits["train"] = _shots(splits["train"], classes, config.shots, seed)
    repeated = len(set(splits["test"].texts) & set(splits["train"].texts))
    if repeated:
        notes.append(f"{repeated} test texts also occur in the training texts")
    order = ("train", "validation", "test", "out_of_scope")
    some = {key: splits[key] for key in order if len(splits.get(key, ()))}
    return TextSets(some, classes, tuple(notes))


def hold_out_texts(split: TextSplit, share: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Split indices by class, or so that all pairs of one text stay together: (rest, held out)."""
    if not split.pairs:
        return hold_out(split.labels.numpy(), share, seed)
    identities = np.unique(split.labels.numpy())
    count = max(1, round(share * len(identities)))
    chosen = np.random.default_rng(seed).permutation(identities)[:count]
    held_out = np.isin(split.labels.numpy(), chosen)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _shots(split: TextSplit, classes: Sequence[str], shots: int, seed: int) -> TextSplit:
    if split.pairs:
        raise UserError(f"data.shots={shots}: counts texts of a class, and these are pairs")
    counts = split.labels.bincount(minlength=len(classes)).tolist()
    few = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if n < shots]
    if few:
        raise UserError(
            f"data.shots={shots}: {len(few)} of {len(classes)} classes have fewer training texts, "
            f"such as {few[0]}; use {min(counts)} or less"
        )
    order = np.random.default_rng(seed).permutation(len(split))
    rank = pd.Series(split.labels.numpy()[order]).groupby(split.labels.numpy()[order]).cumcount()
    return split.rows(np.sort(order[rank.to_numpy() < shots]))


def _coded(
    frames: dict[str, pd.DataFrame], classes: tuple[str, ...], outside: str
) -> dict[str, TextSplit]:
    """Replace labels by indices; test texts labelled ``outside`` become a split of their own."""
    splits = {}
    for name, frame in frames.items():
        texts, other = tuple(frame["text"]), tuple(frame[frame.columns[1]])
        if not classes:
            splits[name] = TextSplit(texts, torch.from_numpy(pd.factorize(frame["text"])[0]), other)
            continue
        unknown = sorted(set(other) - {*classes, outside})
        if unknown:
            raise UserError(
                f"{name} texts of classes without training texts: {', '.join(unknown[:5])}"
            )
        codes = {label: index for index, label in enumerate(classes)}
        found = TextSplit(texts, torch.tensor([codes.get(label, -1) for label in other]))
        splits[name] = found.rows(np.flatnonzero(found.labels >= 0))
        if name == "test":
            splits["out_of_scope"] = found.rows(np.flatnonzero(found.labels < 0))
    return splits


# --- where texts come from ------------------------------------------------------------------------


def _own_tables(config: TextData, notes: list[str]) -> dict[str, pd.DataFrame]:
    frames = {}
    for split, path in tables_of(config.root).items():
        frame = read_table(path)
        pairs = config.label_column not in frame and config.pair_column in frame
        kind = "pair" if pairs else "label"
        other = config.pair_column if pairs else config.label_column
        require_columns(
            path, frame, {"data.text_column": config.text_column, f"data.{kind}_column": other}
        )
        frame = frame[[config.text_column, other]].map(clean).set_axis(["text", kind], axis=1)
        empty = (frame == "").any(axis=1)
        if empty.any():
            notes.append(f"{path}: {empty.sum()} rows without a text or {kind} are left out")
        frames[split] = frame[~empty]
        if not len(frames[split]):
            raise UserError(f"{path}: no row has a text and a {kind}")
    kinds = {frame.columns[1] for frame in frames.values()}
    if len(kinds) > 1:
        raise UserError(f"data.root={config.root}: some tables have classes, others pairs")
    if kinds == {"label"} and frames["train"]["label"].nunique() < 2:
        raise UserError(f"data.root={config.root}: two classes are needed, there is one")
    return frames


def _published(name: str) -> dict[str, pd.DataFrame]:
    """BANKING77 or CLINC150 as published, below ``intents/``, else parquet or from the hub."""
    folder = data_folder("") / "intents" / name.removesuffix("_imbalanced")
    if name == "banking77" and folder.is_dir():
        return {
            split: read_table(folder / f"{split}.csv").set_axis(["text", "label"], axis=1)
            for split in ("train", "test")
        }
    if folder.is_dir():
        file = folder / f"data_{'imbalanced' if name.endswith('imbalanced') else 'full'}.json"
        try:
            parts = json.loads(file.read_text(encoding="utf-8"))
            wanted = {"train": ["train"], "validation": ["val"], "test": ["test", "oos_test"]}
            return {
                split: pd.DataFrame(
                    [row for key in keys for row in parts[key]], columns=["text", "label"]
                )
                for split, keys in wanted.items()
            }
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: is not CLINC150 as published ({error!r})") from None
    from tricouple_lab.data.hub import load_hub

    parquet, hub = data_folder("") / name, names.TEXTS[name].hub
    try:
        tables = parquet_tables(parquet) or load_hub(hub)
    except ConnectionError as error:
        raise UserError(
            f"data={name}: not found in {folder} or {parquet}, nor on the hub as {hub} ({error}); "
            "set TRICOUPLE_DATA, or use data=phrases, which needs no files"
        ) from None
    frames = {}
    for split, rows in tables.items():
        column = next((c for c in ("label_text", "intent", "label") if c in rows.features), "label")
        feature, values = rows.features[column], rows[column]
        labels = [
            feature.int2str(value) if hasattr(feature, "int2str") else value for value in values
        ]
        frames[split] = pd.DataFrame({"text": rows["text"], "label": labels})
    return frames


# --- generated ------------------------------------------------------------------------------------

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
OTHERS = ("paint", "photograph", "describe", "praise")  # out of scope
THINGS = (
    "the lamp", "my bicycle", "a chair", "the old clock", "this camera", "her violin", "a kettle",
    "the blue door", "our table", "that mirror",
)  # fmt: skip


def phrases() -> dict[str, pd.DataFrame]:
    """Requests in a shop: ten intents of three words each; others are out of scope.

    1,000 training texts, 500 test texts and 200 out of scope, the same every time.
    """
    rows = [
        (f"{opening}{word} {thing}", intent)
        for intent, words in INTENTS.items()
        for opening, word, thing in itertools.product(OPENINGS, words, THINGS)
    ]
    order = np.random.default_rng(0).permutation(len(rows)).tolist()
    shuffled, third = [rows[index] for index in order], len(rows) // 3
    outside = [
        (f"{opening}{word} {thing}", OUT_OF_SCOPE)
        for opening, word, thing in itertools.product(OPENINGS, OTHERS, THINGS)
    ]
    return {
        split: pd.DataFrame(part, columns=["text", "label"])
        for split, part in (("train", shuffled[third:]), ("test", shuffled[:third] + outside))
    }
