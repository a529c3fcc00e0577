"""Captioned images of any format: COCO's JSON, tables, webdataset shards; checked and cut to size.

A shard is read once for its table of contents; then every image can be reached by its position in
the archive. So an epoch shows every image once in an order that depends on the seed alone, as with
any other data, and an interrupted run continues exactly, which streamed shuffling cannot promise.
"""

from __future__ import annotations

import glob
import json
import tarfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from tricouple import checks
from tricouple_lab.data import CaptionSource
from tricouple_lab.data.images import DataError, data_home
from tricouple_lab.data.images.files import ImageFiles, Member, is_image
from tricouple_lab.data.pairs import N_SHAPES, CaptionData, CaptionedImages, draw_shapes
from tricouple_lab.data.sampler import shuffled
from tricouple_lab.data.tables import Problems, clean, require_columns, table

FORMATS = ("shapes", "coco", "csv", "shards")
PARTS = ("test", "validation")
HELD_OUT = 500  # images for each of them, of large sets; a fifth of small ones


class Entry(NamedTuple):
    """An image and its captions, one or more, as a reader found them."""

    image: Path | Member
    captions: tuple[str, ...]


def load(wanted: CaptionSource, side: int, seed: int) -> CaptionData:
    """Read a data set, and decode what is used of it.

    The test set is the same for every seed; the seed chooses the training subset and the images
    that are held out of it for validation. Images are squares of this side.

    Raises:
        DataError: If files are missing, damaged or not what they should be.
        ValueError: If the sizes are not possible.
    """
    checks.one_of("data.format", wanted.format, FORMATS)
    if wanted.format == "shapes":
        return _shapes(wanted, side)
    notes: list[str] = []
    parts: dict[str, list[Entry]] = {}
    wrong = []
    for part in ("train", "test", "validation"):
        if part == "train" or getattr(wanted, part) is not None:
            try:
                parts[part] = _read(wanted, part, notes)
            except DataError as error:
                wrong.append(str(error))
    if wrong:
        raise DataError("; ".join(wrong))
    train, test, validation = parts["train"], parts.get("test"), parts.get("validation")
    sizes = _held_out(wanted, len(train), [part for part in PARTS if part not in parts], notes)
    if test is None:
        train, test = _parted(train, sizes["test"], 0)
    if validation is None and sizes["validation"]:
        train, validation = _parted(train, sizes["validation"], seed)
    if wanted.train_size is not None:
        checks.count("data.train_size", wanted.train_size)
        train = _drawn(train, seed)[: wanted.train_size]

    def captioned(entries: list[Entry]) -> CaptionedImages:
        files = ImageFiles(tuple(entry.image for entry in entries), channels=3, size=side)
        images = files if wanted.cache is None else files.cached(Path(wanted.cache), notes)
        return CaptionedImages.of(images, [entry.captions for entry in entries])

    return CaptionData(
        captioned(train),
        None if validation is None else captioned(validation),
        captioned(test),
        tuple(notes),
    )


def files(wanted: CaptionSource) -> list[Path]:
    """The files of captions, or the shards, and the images that they name."""
    found: set[Path] = set()
    for part in ("train", "validation", "test"):
        if getattr(wanted, part) is not None:
            entries = _read(replace(wanted, skip=True), part, [])
            images = [entry.image for entry in entries]
            found |= {image.path if isinstance(image, Member) else image for image in images}
            if wanted.format != "shards":
                found.add(root_of(wanted) / getattr(wanted, part))
    return sorted(found)


def root_of(wanted: CaptionSource) -> Path:
    """The folder that the files of a data set are named from."""
    if wanted.root is not None:
        return Path(wanted.root).expanduser()
    return data_home() / (wanted.folder or wanted.name)


def _shapes(wanted: CaptionSource, side: int) -> CaptionData:
    checks.count("data.test_size", wanted.test_size or 0)
    held_out = [size for size in (wanted.validation_size, wanted.test_size) if size]
    size = N_SHAPES - sum(held_out) if wanted.train_size is None else wanted.train_size
    checks.count("data.train_size", size)
    train, *others = draw_shapes((size, *held_out), side)
    return CaptionData(train, others[0] if wanted.validation_size else None, others[-1])


def _read(wanted: CaptionSource, part: str, notes: list[str]) -> list[Entry]:
    name = getattr(wanted, part)
    if name is None:
        raise ValueError(f"data={wanted.name} needs data.{part}: a file of captions")
    root = root_of(wanted)
    if not root.is_dir():
        above = f", or TRICOUPLE_DATA to the folder that has {wanted.folder}/" * bool(wanted.folder)
        raise DataError(f"{root}: there is no such folder: set data.root{above}")
    path, images = root / name, root / getattr(wanted, f"{part}_images")
    problems = Problems(str(path))
    if wanted.format != "shards" and not path.exists():
        raise DataError(f"{path}: there is no such file of captions")
    if wanted.format == "coco":
        entries = read_coco(path, images, problems)
    elif wanted.format == "csv":
        columns = wanted.image_column, wanted.caption_column
        entries = read_table(path, images, problems, columns, wanted.separator)
    else:
        entries = read_shards(root, name, problems)
    left_out = problems.settle(skip=wanted.skip)
    if not entries:
        raise DataError("; ".join([f"{path} has no image with a caption", *left_out]))
    notes += left_out
    return entries


def _held_out(wanted: CaptionSource, n: int, parts: list[str], notes: list[str]) -> dict[str, int]:
    """How many of n images to hold out for parts that have no file of their own."""
    asked = {part: getattr(wanted, f"{part}_size") for part in parts}
    usual = max(1, min(HELD_OUT, n // 5))
    sizes = {part: usual if size is None else size for part, size in asked.items()}
    if sizes.get("test") == 0 or sum(sizes.values()) >= n:
        counts = " and ".join(f"data.{part}_size is {size}" for part, size in sizes.items())
        files = " and ".join(f"data.{part}" for part in parts)
        raise ValueError(
            f"{counts} of {n} images: name files as {files}, or hold out 1 or more to test on and "
            f"fewer than {n} in all"
        )
    notes += [
        f"{usual} of {n} images are held out for the {part}"
        for part, size in asked.items()
        if size is None
    ]
    return sizes


def _parted(entries: list[Entry], size: int, seed: int) -> tuple[list[Entry], list[Entry]]:
    """The images in two parts, at random: the rest, and some that are held out."""
    shuffled = _drawn(entries, seed)
    return shuffled[size:], shuffled[:size]


def _drawn(entries: Sequence[Entry], seed: int) -> list[Entry]:
    return [entries[index] for index in shuffled(len(entries), seed).tolist()]


# --- the formats: each returns the usable images, in the order of the file, and counts problems ---


def read_coco(path: Path, images: Path, problems: Problems) -> list[Entry]:
    """MS-COCO: ``images`` with ids and files, ``annotations`` with ids; no caption, no image."""
    try:
        # Not strict: captions from the web hold control characters.
        content = json.loads(path.read_text(encoding="utf-8"), strict=False)
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a readable JSON file: {error}") from error
    for name in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise DataError(f'{path} is not in COCO\'s format: it has no list "{name}"')

    def value(record: Any, name: str, kinds: tuple[type, ...], where: str) -> Any:
        found = record.get(name) if isinstance(record, dict) else None
        if not isinstance(found, kinds):
            what = "text" if kinds == (str,) else "number or text"
            raise DataError(f'{path}: {where} has no {what} "{name}"')
        return found

    files: dict[int | str, Path | None] = {}  # None: there is no such file
    captions: dict[int | str, list[str]] = {}
    for number, image in enumerate(content["images"]):
        where = f"images[{number}]"
        file = images / value(image, "file_name", (str,), where)
        key = value(image, "id", (int, str), where)
        if key in files:
            problems.add("images with the id of another", f"{where}, id {key!r}")
            continue
        files[key] = file if file.is_file() else None
        if files[key] is None:
            problems.add("missing image files", file)
    for number, annotation in enumerate(content["annotations"]):
        where = f"annotations[{number}]"
        text = annotation.get("caption") if isinstance(annotation, dict) else None
        key = value(annotation, "image_id", (int, str), where)
        if not isinstance(text, str):
            problems.add("captions that are no text", f"{where}: {text!r}")
            continue
        text = clean(text)
        if key not in files:
            problems.add("captions of unknown images", f"{where}, image_id {key!r}")
        elif not text:
            problems.add("empty captions", f"{where} of image_id {key!r}")
        else:
            captions.setdefault(key, []).append(text)
    return [
        Entry(file, tuple(captions[key]))
        for key, file in files.items()
        if file is not None and key in captions
    ]


def read_table(
    path: Path, images: Path, problems: Problems, columns: tuple[str, str], separator: str
) -> list[Entry]:
    """A CSV file with a row of column names; rows of one image file are one image."""
    captions: dict[Path, list[str]] = {}
    missing: dict[Path, bool] = {}
    with table(path, separator) as rows:
        settings = dict(zip(("image_column", "caption_column"), columns, strict=True))
        require_columns(path, list(rows.fieldnames or []), settings, separator)
        for row in rows:
            name, text = (row[column] or "" for column in columns)
            image, text = images / name, clean(text)
            if image not in missing:
                missing[image] = not (name and image.is_file())
                if missing[image]:
                    problems.add("missing image files", f"{image} (line {rows.line_num})")
            if not text:
                problems.add("empty captions", f"line {rows.line_num}, of {name}")
            elif not missing[image]:
                captions.setdefault(image, []).append(text)
    return [Entry(image, tuple(texts)) for image, texts in captions.items()]


def read_shards(root: Path, pattern: str, problems: Problems) -> list[Entry]:
    """Webdataset shards: tar archives with ``KEY.jpg`` and ``KEY.txt`` side by side.

    Captions are the lines of ``KEY.txt``, or ``caption`` (a text or a list) of ``KEY.json``. The
    pattern has ``*``, ``?`` or ``[0-9]`` in it, or is one shard.
    """
    one = [pattern] if (root / pattern).is_file() else []
    shards = sorted(root / name for name in one or glob.glob(pattern, root_dir=root))
    if not shards:
        raise DataError(f"{root / pattern}: no shard has such a name")
    return [entry for shard in shards for entry in _read_shard(shard, problems)]


def _read_shard(shard: Path, problems: Problems) -> list[Entry]:
    images: dict[str, Member] = {}
    captions: dict[str, tuple[str, ...]] = {}
    try:
        # "r:" refuses compressed archives, in which positions are of no use.
        with tarfile.open(shard, "r:") as archive:
            for member in archive:
                # Everything before the first dot of the last part is the key.
                folder, slash, name = member.name.rpartition("/")
                key = folder + slash + name.partition(".")[0]
                if not member.isfile():
                    continue
                if is_image(name):
                    images[key] = Member(shard, member.name, member.offset_data, member.size)
                elif name.endswith((".txt", ".json")):
                    content = archive.extractfile(member)
                    assert content is not None
                    texts = _texts(content.read(), name, f"{shard}/{member.name}", problems)
                    captions.setdefault(key, texts)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{shard} is not a readable, uncompressed tar archive: {error}") from error
    for key in captions.keys() - images.keys():
        problems.add("captions of unknown images", f"{shard}/{key}")
    for key in images.keys() - captions.keys():
        problems.add("images without a caption", images[key])
    for key, texts in captions.items():
        if key in images and not texts:
            problems.add("empty captions", f"{shard}/{key}")
    return [Entry(image, captions[key]) for key, image in images.items() if captions.get(key)]


def _texts(content: bytes, name: str, where: str, problems: Problems) -> tuple[str, ...]:
    try:
        text = content.decode()
        if name.endswith(".json"):
            found = json.loads(text, strict=False).get("caption", "")
        else:
            found = text.splitlines()
    except (UnicodeDecodeError, ValueError, AttributeError, RecursionError) as error:
        raise DataError(f"{where} holds no caption: {error}") from error
    lines = found if isinstance(found, list) else [found]
    for line in lines:
        if not isinstance(line, str):
            problems.add("captions that are no text", f"{where}: {line!r}")
    cleaned = [clean(line) for line in lines if isinstance(line, str)]
    return tuple(line for line in cleaned if line)
