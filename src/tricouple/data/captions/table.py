"""Captions in a table: one row an image file and a caption; rows of one file are one image."""

from __future__ import annotations

import csv
from pathlib import Path

from tricouple.data.captions.pictures import Picture
from tricouple.data.captions.problems import Problems
from tricouple.data.captions.sets import Entry
from tricouple.data.images.errors import DataError


def read_table(
    path: Path, images: Path, *, image_column: str, caption_column: str, separator: str
) -> tuple[list[Entry], Problems]:
    """Read a CSV file with a row of column names.

    Args:
        path: The file.
        images: The folder that relative image names start from.
        image_column: Name of the column of image files.
        caption_column: Name of the column of captions.
        separator: What is between two columns.

    Returns:
        The usable images in the order of the file, and what is not usable.

    Raises:
        DataError: If the file is missing or has no such columns.
    """
    problems = Problems(str(path))
    captions: dict[Path, list[str]] = {}
    missing: dict[Path, bool] = {}
    try:
        # Spreadsheets begin their UTF-8 files with a mark, which is no part of the first name.
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file, delimiter=separator)
            _check_columns(path, rows.fieldnames or [], image_column, caption_column, separator)
            for row in rows:
                name, text = row[image_column] or "", (row[caption_column] or "").strip()
                image = images / name
                if image not in missing:
                    missing[image] = not (name and image.is_file())
                    if missing[image]:
                        problems.add("missing image files", f"{image} (line {rows.line_num})")
                if not text:
                    problems.add("empty captions", f"line {rows.line_num}, of {name}")
                elif not missing[image]:
                    captions.setdefault(image, []).append(text)
    except FileNotFoundError as error:
        raise DataError(f"{path}: there is no such file of captions") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a readable table: {error}") from error
    return [Entry(Picture(image), tuple(texts)) for image, texts in captions.items()], problems


def _check_columns(
    path: Path, found: object, image_column: str, caption_column: str, separator: str
) -> None:
    names = list(found) if isinstance(found, list | tuple) else []
    for setting, name in (("image_column", image_column), ("caption_column", caption_column)):
        if name not in names:
            raise DataError(
                f"{path} has no column {name!r} but {', '.join(map(repr, names)) or 'none'}: set "
                f"data.{setting}, or data.separator (now {separator!r})"
            )
