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
    files: dict[Any, Path] = {}
    captions: dict[Any, list[str]] = {}
    for number, image in enumerate(content["images"]):
        name, key = _entry(image, "file_name", path, f"images[{number}]"), image.get("id")
        if (images / name).is_file():
            files[key] = images / name
        else:
            problems.add("missing image files", images / name)
            files[key] = Path()
    for number, annotation in enumerate(content["annotations"]):
        text = _entry(annotation, "caption", path, f"annotations[{number}]")
        key = annotation.get("image_id")
        if key not in files:
            problems.add("captions of unknown images", f"annotations[{number}], image_id {key!r}")
        elif not text.strip():
            problems.add("empty captions", f"annotations[{number}] of image_id {key!r}")
        else:
            captions.setdefault(key, []).append(text.strip())
    return [
        Entry(Picture(file), tuple(captions[key]))
        for key, file in files.items()
        if file != Path() and key in captions
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


def _entry(record: Any, name: str, path: Path, where: str) -> str:
    if not isinstance(record, dict) or not isinstance(record.get(name), str):
        raise DataError(f'{path}: {where} has no text "{name}"')
    text: str = record[name]
    return text
