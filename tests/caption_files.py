"""Captioned images on disk, in every format that the loaders read."""

import csv
import io
import json
import tarfile
from pathlib import Path

from image_files import write_image

CAPTIONS = [["a dog", "a brown dog"], ["a cat on a mat"], ["two birds", "birds", "a pair of birds"]]


def write_pictures(folder: Path, captions=CAPTIONS) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number}.png" for number in range(len(captions))]
    for number, name in enumerate(names):
        write_image(folder / name, side=(20, 24), seed=number)
    return names


def write_coco(root: Path, captions=CAPTIONS, name: str = "captions.json") -> Path:
    names = write_pictures(root / "images", captions)
    content = {
        "images": [{"id": 100 + n, "file_name": file} for n, file in enumerate(names)],
        "annotations": [
            {"id": 10 * n + k, "image_id": 100 + n, "caption": text}
            for n, texts in enumerate(captions)
            for k, text in enumerate(texts)
        ],
    }
    (root / name).write_text(json.dumps(content))
    return root / name


def write_csv(root: Path, captions=CAPTIONS, head=("path", "caption"), separator=",") -> Path:
    names = write_pictures(root / "images", captions)
    with (root / "captions.csv").open("w", newline="") as file:
        writer = csv.writer(file, delimiter=separator)
        writer.writerow(head)
        for name, texts in zip(names, captions, strict=True):
            writer.writerows((name, text) for text in texts)
    return root / "captions.csv"


def write_shard(path: Path, members: dict[str, bytes], mode: str = "w") -> Path:
    with tarfile.open(path, mode) as archive:
        for name, content in members.items():
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    return path


def write_shards(root: Path, captions=CAPTIONS) -> Path:
    names = write_pictures(root / "pictures", captions)
    for number, (name, texts) in enumerate(zip(names, captions, strict=True)):
        members = {
            f"{number:05}.png": (root / "pictures" / name).read_bytes(),
            f"{number:05}.txt": "\n".join(texts).encode(),
        }
        write_shard(root / f"train-{number}.tar", members)
    return root / "train-*.tar"
