"""Captions in webdataset shards: tar archives with ``KEY.jpg`` and ``KEY.txt`` side by side.

A shard is read once for its table of contents; then every image can be reached by its position in
the archive. So an epoch shows every image once in an order that depends on the seed alone, as with
any other data, and an interrupted run continues exactly, which streamed shuffling cannot promise.
"""

from __future__ import annotations

import glob
import json
import tarfile
from pathlib import Path

from tricouple.data.captions.pictures import Picture
from tricouple.data.captions.problems import Problems
from tricouple.data.captions.sets import Entry
from tricouple.data.images.errors import DataError
from tricouple.data.images.files import is_image


def read_shards(pattern: Path) -> tuple[list[Entry], Problems]:
    """Read the contents of all shards that a pattern names, in the order of their names.

    Captions are the lines of ``KEY.txt``, or ``caption`` (a text or a list) of ``KEY.json``.

    Args:
        pattern: A path with ``*``, ``?`` or ``[0-9]`` in it, or one shard.

    Returns:
        The usable images, and what is not usable.

    Raises:
        DataError: If no file fits, or one is no plain tar archive.
    """
    problems = Problems(str(pattern))
    shards = sorted(Path(name) for name in glob.glob(str(pattern)))
    if not shards:
        raise DataError(f"{pattern}: no shard has such a name")
    entries: list[Entry] = []
    for shard in shards:
        entries += _read(shard, problems)
    return entries, problems


def _read(shard: Path, problems: Problems) -> list[Entry]:
    pictures: dict[str, Picture] = {}
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
                    pictures[key] = Picture(shard, member.name, member.offset_data, member.size)
                elif name.endswith((".txt", ".json")):
                    content = archive.extractfile(member)
                    assert content is not None
                    texts = _texts(content.read(), name, f"{shard}/{member.name}")
                    captions.setdefault(key, texts)
    except (OSError, tarfile.TarError) as error:
        raise DataError(f"{shard} is not a readable, uncompressed tar archive: {error}") from error
    for key in captions.keys() - pictures.keys():
        problems.add("captions of unknown images", f"{shard}/{key}")
    for key in pictures.keys() - captions.keys():
        problems.add("images without a caption", pictures[key])
    for key, texts in captions.items():
        if key in pictures and not texts:
            problems.add("empty captions", f"{shard}/{key}")
    return [Entry(picture, captions[key]) for key, picture in pictures.items() if captions.get(key)]


def _texts(content: bytes, name: str, where: str) -> tuple[str, ...]:
    try:
        text = content.decode()
        found = json.loads(text).get("caption", "") if name.endswith(".json") else text.splitlines()
    except (UnicodeDecodeError, ValueError, AttributeError) as error:
        raise DataError(f"{where} holds no caption: {error}") from error
    lines = [found] if isinstance(found, str) else found
    return tuple(line.strip() for line in lines if isinstance(line, str) and line.strip())
