"""Captions in the format of MS-COCO: ``images`` with ids and files, ``annotations`` with ids."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tricouple.data.captions.pictures import Picture
from tricouple.data.captions.problems import Problems
from tricouple.data.captions.sets import Entry
from tricouple.data.images.errors import DataError


def read_coco(path: Path, images: Path) -> tuple[list[Entry], Problems]:
    """Read an annotation file; images without captions are left out.

    Args:
        path: The JSON file.
        images: The folder that its file names start from.

    Returns:
        The usable images in the order of the file, and what is not usable.

    Raises:
        DataError: If the file is missing or has another format.
    """
    content = _content(path)
    problems = Problems(str(path))
    files: dict[int | str, Path | None] = {}  # None: there is no such file
    captions: dict[int | str, list[str]] = {}
    for number, image in enumerate(content["images"]):
        where = f"images[{number}]"
        name, key = _text(image, "file_name", path, where), _id(image, "id", path, where)
        file = images / name
        if key in files:
            problems.add("images with the id of another", f"{where}, id {key!r}")
            continue
        files[key] = file if file.is_file() else None
        if files[key] is None:
            problems.add("missing image files", file)
    for number, annotation in enumerate(content["annotations"]):
        where = f"annotations[{number}]"
        text = _text(annotation, "caption", path, where).strip()
        key = _id(annotation, "image_id", path, where)
        if key not in files:
            problems.add("captions of unknown images", f"{where}, image_id {key!r}")
        elif not text:
            problems.add("empty captions", f"{where} of image_id {key!r}")
        else:
            captions.setdefault(key, []).append(text)
    return [
        Entry(Picture(file), tuple(captions[key]))
        for key, file in files.items()
        if file is not None and key in captions
    ], problems


def _content(path: Path) -> dict[str, list[Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file of captions") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable JSON file: {error}") from error
    for name in ("images", "annotations"):
        if not isinstance(content, dict) or not isinstance(content.get(name), list):
            raise DataError(f'{path} is not in COCO\'s format: it has no list "{name}"')
    found: dict[str, list[Any]] = content
    return found


def _text(record: Any, name: str, path: Path, where: str) -> str:
    found = record.get(name) if isinstance(record, dict) else None
    if not isinstance(found, str):
        raise DataError(f'{path}: {where} has no text "{name}"')
    return found


def _id(record: dict[str, Any], name: str, path: Path, where: str) -> int | str:
    found = record.get(name)
    if not isinstance(found, int | str):
        raise DataError(f'{path}: {where} has no number or text "{name}"')
    return found
