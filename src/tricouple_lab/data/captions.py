"""Images with captions: generated shapes, COCO's JSON, own tables, parquet, the hub."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from tricouple_lab.config.schema import CaptionData
from tricouple_lab.data.hub import load_tables
from tricouple_lab.data.images import decoded, decoded_files
from tricouple_lab.data.shapes import draw_shapes
from tricouple_lab.data.sources import Sets, data_folder, reduce, stratified
from tricouple_lab.data.tables import clean, read_table, require_columns, tables_of
from tricouple_lab.names import CAPTIONS, UserError

# Of each split: the end of the name of its file in COCO's format, and the folder of its images.
LAYOUTS = {
    "flickr8k": {
        "train": ("train", "images"), "validation": ("val", "images"), "test": ("test", "images"),
    },
    "coco": {"train": ("train2017", "train2017"), "test": ("val2017", "val2017")},
}  # fmt: skip
SHAPES = {"train": 1000, "validation": 256, "test": 256}  # images, unless sizes are given
TEST_SHARE, LARGEST_TEST = 0.2, 1000  # of images without a test set


@dataclass(frozen=True, eq=False)
class CaptionSplit:
    """Images and their captions. Pixels may be a memory-mapped file: a split chooses its rows."""

    pixels: Tensor  # uint8 (N, 3, side, side)
    index: Tensor  # int64 (n,): which rows of the pixels
    texts: tuple[tuple[str, ...], ...]  # of each of n images its captions, one or more

    def __len__(self) -> int:
        return len(self.index)

    @cached_property
    def captions(self) -> tuple[str, ...]:
        """All m captions, those of the first image first."""
        return tuple(text for texts in self.texts for text in texts)

    @cached_property
    def image_index(self) -> Tensor:
        """Which of the n images each caption describes, int64 (m,), ascending."""
        counts = torch.tensor([len(texts) for texts in self.texts])
        return torch.repeat_interleave(torch.arange(len(counts)), counts)

    def rows(self, indices: Sequence[int] | np.ndarray) -> CaptionSplit:
        """Return some of the images with their captions."""
        chosen = torch.as_tensor(indices, dtype=torch.int64)
        texts = tuple(self.texts[index] for index in chosen.tolist())
        return CaptionSplit(self.pixels, self.index[chosen], texts)

    def content(self) -> Iterator[bytes]:
        """Yield what the digest is computed from."""
        yield repr(self.texts).encode()
        yield from (self.pixels[part].numpy().tobytes() for part in self.index.split(4096))


def load_captions(config: CaptionData, side: int) -> Sets:
    """Read and decode a data set, hold out what it has no split for, and cut it to size.

    The held-out images are the same for every seed. Images are squares of ``side`` pixels.
    """
    notes: list[str] = []
    if config.name == "shapes":
        splits = _shapes(config, side)
    elif config.name in LAYOUTS:
        splits = _published(config, side, notes)
    else:
        splits = _own_tables(config, side, notes)
    if "test" not in splits:
        size = min(round(TEST_SHARE * len(splits["train"])), LARGEST_TEST)
        _hold_out(splits, "test", config.test_size or size, notes)
    if "validation" not in splits and config.validation_size != 0:
        size = config.validation_size or len(splits["train"]) // 10
        _hold_out(splits, "validation", size, notes)
    splits = {name: splits[name] for name in ("train", "validation", "test") if name in splits}
    notes += reduce(splits, config, "images")
    return Sets(splits, notes=tuple(notes))


def _hold_out(splits: dict[str, CaptionSplit], name: str, size: int, notes: list[str]) -> None:
    """Take random images from the training set, at most a third of it."""
    n = len(splits["train"])
    if n < 3:
        raise UserError(f"{n} images: at least 3 are needed to hold out some for the {name}")
    held_out = max(1, min(size, n // 3))
    if held_out < size:
        notes.append(f"{held_out} of {n} images are held out for the {name}: a third at most")
    chosen = stratified(np.zeros(n), held_out)
    rest = np.setdiff1d(np.arange(n), chosen)
    splits[name], splits["train"] = splits["train"].rows(chosen), splits["train"].rows(rest)


def caption_identities(split: CaptionSplit, kind: str) -> tuple[Tensor, str]:
    """Return a label for each caption (m,); pairs of one label are never negatives.

    ``image``: captions of one image share a label; ``caption``: equal captions do; ``both``:
    what a chain of either connects. Returns also a note on captions that several images have.
    """
    codes = pd.factorize(np.array(split.captions, dtype=object))[0]
    index, n = split.image_index.numpy(), len(split)
    shared = int((pd.Series(index).groupby(codes).nunique() > 1).sum())
    captions = f"{shared} captions belong to several images" if shared else ""
    if kind == "image":
        note = f"{captions}; they are negatives there (data.identity=image)"
        return split.image_index, captions and note
    if kind == "caption":
        return torch.from_numpy(codes).long(), captions and f"{captions}; they are positives"
    size = n + int(codes.max()) + 1
    graph = coo_array((np.ones(len(codes)), (index, n + codes)), shape=(size, size))
    groups = connected_components(graph, directed=False)[1][index]
    largest = pd.Series(index).groupby(groups).nunique().max()
    note = f"{captions}; their images are positives of each other, up to {largest} images together"
    return torch.from_numpy(groups).long(), captions and note


def _shapes(config: CaptionData, side: int) -> dict[str, CaptionSplit]:
    asked = {name: getattr(config, f"{name}_size") for name in SHAPES}
    sizes = {name: SHAPES[name] if size is None else size for name, size in asked.items()}
    sizes = {name: size for name, size in sizes.items() if size}
    drawn = draw_shapes(list(sizes.values()), side)
    return {
        name: CaptionSplit(pixels, torch.arange(len(pixels)), tuple(texts))
        for name, (pixels, texts) in zip(sizes, drawn, strict=True)
    }


def _published(config: CaptionData, side: int, notes: list[str]) -> dict[str, CaptionSplit]:
    """A published set: COCO's JSON or parquet files below ``FOLDER/NAME``, else from the hub."""
    name = config.name
    root = Path(config.root).expanduser() if config.root else data_folder("") / name
    files = {
        split: (root / f"annotations/captions_{part}.json", root / images)
        for split, (part, images) in LAYOUTS[name].items()
    }
    if files["train"][0].is_file():
        return {
            split: _decoded(read_coco(file, images), file, side, notes)
            for split, (file, images) in files.items()
            if file.is_file()
        }
    looked_for, instead = str(files["train"][0]), "data=shapes, which needs no files"
    tables = load_tables(name, root, CAPTIONS[name].hub, looked_for, instead)
    return {split: _table_split(rows, side, f"{name}, {split}") for split, rows in tables.items()}


def _table_split(rows: Any, side: int, place: str) -> CaptionSplit:
    """Images in a table of ``datasets``; captions in one column or several, texts or lists."""
    columns = [key for key in rows.column_names if key.startswith(("caption", "sentence", "text"))]
    if "image" not in rows.column_names or not columns:
        there = ", ".join(rows.column_names)
        raise UserError(f"{place}: expected columns image and caption (caption_0 …), found {there}")
    texts = []
    for row in zip(*(rows[column] for column in columns), strict=True):
        lists = [[value] if isinstance(value, str) else value or [] for value in row]
        texts.append(tuple(filter(None, map(clean, itertools.chain(*lists)))))
    pixels = decoded(rows.select_columns(["image"]), side, 3, place)
    some = [index for index, captions in enumerate(texts) if captions]
    return CaptionSplit(pixels, torch.arange(len(pixels)), tuple(texts)).rows(some)


def _own_tables(config: CaptionData, side: int, notes: list[str]) -> dict[str, CaptionSplit]:
    """Tables with a row per caption, or COCO's JSON; images are next to the table or in images/."""
    found = {}
    for split, file in tables_of(config.root).items():
        if file.suffix == ".json":
            frame = read_coco(file, file.parent)
        else:
            frame = read_table(file)
            columns = [config.image_column, config.caption_column]
            settings = ("data.image_column", "data.caption_column")
            require_columns(file, frame, dict(zip(settings, columns, strict=True)))
            frame = frame[columns].set_axis(["image", "caption"], axis=1)
            places = [file.parent, file.parent / "images", file.parent / "Images"]
            beside = (p for p in places if any((p / name).is_file() for name in frame["image"]))
            frame["image"] = frame["image"].map(next(beside, file.parent).__truediv__)
        found[split] = _decoded(frame, file, side, notes)
    return found


def read_coco(file: Path, folder: Path) -> pd.DataFrame:
    """Read captions in COCO's format: ``images`` (id, file_name) and ``annotations``."""
    try:
        # Not strict: captions from the web have control characters.
        content = json.loads(file.read_text(encoding="utf-8"), strict=False)
        images = pd.DataFrame(content["images"])[["id", "file_name"]].drop_duplicates("id")
        captions = pd.DataFrame(content["annotations"])[["image_id", "caption"]]
        merged = images.merge(captions, left_on="id", right_on="image_id")
        paths = [folder / name for name in merged["file_name"]]
        return pd.DataFrame({"image": paths, "caption": merged["caption"].map(str)}, dtype=object)
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        wanted = "images with id and file_name, annotations with image_id and caption"
        raise UserError(f"{file}: expected COCO's format, {wanted} ({error!r})") from None


def _decoded(frame: pd.DataFrame, file: Path, side: int, notes: list[str]) -> CaptionSplit:
    """Collect the captions of each image and decode it; what is missing is left out and noted."""
    frame = frame.assign(caption=frame["caption"].map(clean))
    empty = frame["caption"] == ""
    images = frame["image"].drop_duplicates()
    missing = [path for path in images if not path.is_file()]
    if empty.any():
        notes.append(f"{file}: {empty.sum()} empty captions are left out")
    if missing:
        found = f"{len(missing)} of {len(images)} images are missing, such as {missing[0]}"
        if len(missing) == len(images):
            raise UserError(f"{file}: {found}")
        notes.append(f"{file}: {found}")
    kept = frame[~empty & ~frame["image"].isin(set(missing))]
    if not len(kept):
        raise UserError(f"{file}: no image has a caption")
    texts = kept.groupby("image", sort=False)["caption"].agg(tuple)
    pixels = decoded_files(list(texts.index), side)
    return CaptionSplit(pixels, torch.arange(len(pixels)), tuple(texts))
