"""Texts with classes, or pairs of texts: generated phrases, published intents, own tables."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from tricouple_lab import names
from tricouple_lab.config.schema import TextData
from tricouple_lab.data.hub import load_tables
from tricouple_lab.data.sources import Sets, data_folder, hold_out, lone, reduce
from tricouple_lab.data.tables import clean, read_table, require_columns, tables_of
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

    def content(self) -> Iterator[bytes]:
        """Yield what the digest is computed from."""
        yield repr((self.texts, self.pairs, self.labels.tolist())).encode()


def load_texts(config: TextData, seed: int) -> Sets:
    """Read a data set, hold out validation and test texts if it has none, and cut it to size.

    Held-out texts are the same for every seed; the seed draws the ``shots`` of each class.
    """
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
            rest, held_out = hold_out_texts(splits["train"], share)
            splits[name] = splits["train"].rows(held_out)
            splits["train"] = splits["train"].rows(rest)
    notes += reduce(splits, config, "texts")
    if config.shots is not None:
        splits["train"] = _shots(splits["train"], classes, config.shots, seed)
    notes += lone(splits["train"].labels, classes, "text")
    repeated = len(set(splits["test"].texts) & set(splits["train"].texts))
    if repeated:
        notes.append(f"{repeated} test texts also occur in the training texts")
    order = ("train", "validation", "test", "out_of_scope")
    some = {key: splits[key] for key in order if len(splits.get(key, ()))}
    return Sets(some, classes, tuple(notes))


def hold_out_texts(split: TextSplit, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Split indices by class, or so that all pairs of one text stay together: (rest, held out)."""
    if not split.pairs:
        return hold_out(split.labels.numpy(), share)
    identities = np.unique(split.labels.numpy())
    count = max(1, round(share * len(identities)))
    chosen = np.random.default_rng(0).permutation(identities)[:count]
    held_out = np.isin(split.labels.numpy(), chosen)
    return np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _shots(split: TextSplit, classes: Sequence[str], shots: int, seed: int) -> TextSplit:
    if split.pairs:
        raise UserError(f"data.shots={shots}: counts texts of a class, and these are pairs")
    counts = split.labels.bincount(minlength=len(classes)).tolist()
    few = [f"{name} ({n})" for name, n in zip(classes, counts, strict=True) if n < shots]
    if few:
        why = f"{len(few)} of {len(classes)} classes have fewer training texts, such as {few[0]}"
        raise UserError(f"data.shots={shots}: {why}; use {min(counts)} or less")
    labels = pd.Series(split.labels.numpy())
    return split.rows(np.sort(labels.groupby(labels).sample(shots, random_state=seed).index))


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
            raise UserError(f"{name} texts of classes without training texts: {unknown[0]}")
        found = TextSplit(texts, torch.from_numpy(pd.Index(classes).get_indexer(list(other))))
        splits[name] = found.rows(np.flatnonzero(found.labels >= 0))
        if name == "test":
            splits["out_of_scope"] = found.rows(np.flatnonzero(found.labels < 0))
    return splits


def _own_tables(config: TextData, notes: list[str]) -> dict[str, pd.DataFrame]:
    frames = {}
    for split, path in tables_of(config.root).items():
        frame = read_table(path)
        pairs = config.label_column not in frame and config.pair_column in frame
        kind, other = ("pair", config.pair_column) if pairs else ("label", config.label_column)
        wanted = {"data.text_column": config.text_column, f"data.{kind}_column": other}
        require_columns(path, frame, wanted)
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
        file = folder / f"data_{'imbalanced' if 'imbalanced' in name else 'full'}.json"
        try:
            parts = json.loads(file.read_text(encoding="utf-8"))
            test = parts["test"] + parts["oos_test"]
            rows = {"train": parts["train"], "validation": parts["val"], "test": test}
            return {key: pd.DataFrame(row, columns=["text", "label"]) for key, row in rows.items()}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{file}: is not CLINC150 as published ({error!r})") from None
    parquet, instead = data_folder("") / name, "data=phrases, which needs no files"
    tables = load_tables(name, parquet, names.TEXTS[name].hub, str(folder), instead)
    frames = {}
    for split, rows in tables.items():
        column = next((c for c in ("label_text", "intent", "label") if c in rows.features), "label")
        feature, labels = rows.features[column], rows[column]
        if hasattr(feature, "int2str"):
            labels = feature.int2str(labels)
        frames[split] = pd.DataFrame({"text": rows["text"], "label": labels})
    return frames


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
        for intent, words in {**INTENTS, OUT_OF_SCOPE: OTHERS}.items()
        for opening, word, thing in itertools.product(OPENINGS, words, THINGS)
    ]
    table = pd.DataFrame(rows, columns=["text", "label"])
    inside, outside = table[table["label"] != OUT_OF_SCOPE], table[table["label"] == OUT_OF_SCOPE]
    shuffled, third = inside.sample(frac=1, random_state=0), len(inside) // 3
    return {"train": shuffled[third:], "test": pd.concat([shuffled[:third], outside])}
