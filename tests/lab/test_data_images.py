"""Image data: own folders, parquet, splits, subsets, the cache, messages."""

import io
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import random_pixels, truncate, write_classes, write_image, write_mnist
from tricouple_lab.config.schema import ImageData
from tricouple_lab.data import images
from tricouple_lab.data.sources import hold_out, load_images, read, stratified
from tricouple_lab.files import write_text
from tricouple_lab.names import UserError


def folder(root: Path, **options) -> ImageData:
    return ImageData(name="folder", root=str(root), image_size=16, **options)


@pytest.mark.parametrize("word", ["test", "validation", "dev-board"])
def test_a_class_named_like_a_split_is_a_class(tmp_path, word):
    root = write_classes(tmp_path / "photos", {"cat": 3, word: 3})
    found = read(folder(root))
    assert "test" not in found.splits
    assert set(found.classes) == {"cat", word}
    assert torch.bincount(found.splits["train"].labels).tolist() == [3, 3]


@pytest.mark.parametrize("name", ["a[1]", "b*", "été (1)", "<script>", "what?"])
def test_names_with_brackets_and_stars_are_names(tmp_path, name):
    root = write_classes(tmp_path / "photos [1]", {name: 3, "other": 2})
    found = read(folder(root))
    assert set(found.classes) == {name, "other"}
    assert len(found.splits["train"]) == 5


def test_train_and_test_folders_are_the_split_and_deeper_folders_belong_to_the_first(tmp_path):
    write_classes(tmp_path / "train", {"cat": 3, "dog/2020": 2, "dog/2021": 2})
    write_classes(tmp_path / "test", {"dog": 1, "cat": 2})
    found = read(folder(tmp_path))
    assert found.classes == ("cat", "dog")
    assert torch.bincount(found.splits["train"].labels).tolist() == [3, 4]
    assert torch.bincount(found.splits["test"].labels).tolist() == [2, 1]


def test_pixels_are_the_central_square_upright(tmp_path):
    pixels = random_pixels(16, 24, 3)
    write_classes(tmp_path, {"a": 1, "b": 1})
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    Image.fromarray(pixels).save(tmp_path / "a/0.png", exif=exif)
    found = read(folder(tmp_path))
    wanted = torch.from_numpy(pixels[::-1, ::-1][:, 4:20].transpose(2, 0, 1).copy())
    assert torch.equal(found.splits["train"].pixels[0], wanted)


def test_images_of_all_kinds_are_read(tmp_path):
    for number, (mode, suffix) in enumerate(
        [("L", ".png"), ("RGBA", ".png"), ("RGB", ".JPG"), ("RGB", ".webp"), ("RGB", ".gif")]
    ):
        write_image(tmp_path / "a" / f"{number}{suffix}", mode=mode)
    deep = (random_pixels(16, 16).astype(np.uint16) << 8) + 255
    (tmp_path / "b").mkdir()
    Image.fromarray(deep).save(tmp_path / "b/16 bits.png")
    (tmp_path / "b/notes.txt").write_text("no image")
    (tmp_path / "b/.hidden.png").write_text("no image")
    found = read(folder(tmp_path))
    assert found.splits["train"].pixels.shape == (6, 3, 16, 16)
    assert torch.equal(
        found.splits["train"].pixels[5, 0], torch.from_numpy((deep >> 8).astype(np.uint8))
    )


def test_images_beside_class_folders_are_left_out_and_said(tmp_path):
    write_classes(tmp_path, {"a": 2, "b": 2})
    write_image(tmp_path / "stray.png")
    found = read(folder(tmp_path))
    assert len(found.splits["train"]) == 4
    assert "1 images outside the class folders" in found.notes[0]


def test_images_without_class_folders_have_no_labels_and_that_is_said(tmp_path):
    for number in range(9):
        write_image(tmp_path / f"{number}.png", seed=number)
    found = load_images(folder(tmp_path))
    assert found.classes == ()
    assert {int(label) for split in found.splits.values() for label in split.labels} == {-1}
    assert "no class folders" in found.notes[0]
    assert "geometry" in found.notes[0]
    assert all(len(split) for split in found.splits.values())


def test_test_images_may_have_folders_where_training_images_have_none(tmp_path):
    write_image(tmp_path / "train/1.png")
    write_image(tmp_path / "test/cat/2.png")
    found = read(folder(tmp_path))
    assert (found.classes, found.splits["test"].labels.tolist()) == ((), [-1])


def test_a_class_of_one_image_stays_in_the_training_set_and_is_said(tmp_path):
    found = load_images(folder(write_classes(tmp_path, {"many": 20, "one": 1})))
    assert 1 in found.splits["train"].labels
    assert "one training image, so no positive: one" in found.notes[-1]


def test_equal_pictures_in_train_and_test_are_counted_by_their_pixels(tmp_path):
    write_classes(tmp_path / "train", {"a": 6, "b": 6})
    write_image(tmp_path / "test/a/other name.bmp", seed=2)
    write_image(tmp_path / "test/b/new.png", seed=99)
    found = load_images(folder(tmp_path))
    assert "1 of the test images also occur in the training images" in found.notes


def damage(root):
    write_classes(root, {"a": 3})
    truncate(root / "a/1.png")


def other_classes(root):
    write_classes(root / "train", {"a": 2, "b": 2})
    write_classes(root / "test", {"a": 2, "c": 2})


MISTAKES = {
    "no images": lambda root: (root / "empty").mkdir(parents=True),
    "expected a folder with a folder per class": lambda root: None,
    r"a/1\.png: cannot be read as an image .*; remove it": damage,
    r"script\.png: cannot be read": lambda root: write_text(root / "a/script.png", "%!PS"),
    "test/c: a class of test images without training images": other_classes,
}


@pytest.mark.parametrize("problem", MISTAKES)
def test_mistakes_in_a_folder_are_one_sentence(tmp_path, problem):
    MISTAKES[problem](tmp_path / "photos")
    with pytest.raises(UserError, match=problem) as error:
        read(folder(tmp_path / "photos"))
    assert "\n" not in str(error.value)
    assert not list((tmp_path / "cache").rglob("*.part"))


def write_parquet(root: Path, sizes: dict[str, int], columns=("image", "label")) -> Path:
    import datasets

    features = {columns[0]: datasets.Image(), columns[1]: datasets.ClassLabel(names=["cat", "dog"])}
    for part, size in sizes.items():
        rows: dict = {name: [] for name in columns}
        for number in range(size):
            buffer = io.BytesIO()
            Image.fromarray(random_pixels(16, 16, 3, seed=number)).save(buffer, "png")
            rows[columns[0]].append({"bytes": buffer.getvalue(), "path": None})
            rows[columns[1]].append(number % 2)
        table = datasets.Dataset.from_dict(rows, features=datasets.Features(features))
        (root / "data").mkdir(parents=True, exist_ok=True)
        table.to_parquet(root / "data" / f"{part}-00000-of-00001.parquet")
    return root


@pytest.mark.parametrize("test", ["test", "validation"])
def test_a_parquet_folder_is_read_before_a_layout(tmp_path, monkeypatch, test):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    write_mnist(tmp_path)
    write_parquet(tmp_path / "cifar10", {"train": 8, test: 4}, ("img", "fine_label"))
    found = read(ImageData(name="cifar10", image_size=16))
    assert found.classes == ("cat", "dog")
    assert found.splits["train"].labels.tolist() == [0, 1] * 4
    wanted = random_pixels(16, 16, 3, seed=3).transpose(2, 0, 1)
    assert torch.equal(found.splits["test"].pixels[3], torch.from_numpy(wanted.copy()))


def test_a_parquet_folder_without_images_names_its_columns(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    (tmp_path / "svhn").mkdir()
    table = datasets.Dataset.from_dict({"text": ["a"], "label": [0]})
    table.to_parquet(tmp_path / "svhn/train.parquet")
    with pytest.raises(UserError, match="expected columns of images and of labels, found text"):
        read(ImageData(name="svhn"))


def test_hold_out_takes_the_share_of_each_class_and_leaves_one():
    labels = np.repeat([5, 7, 8, 9], [40, 10, 3, 1])
    rest, held_out = hold_out(labels, 0.2)
    assert np.array_equal(np.sort(np.concatenate([rest, held_out])), np.arange(54))
    assert np.unique(labels[held_out], return_counts=True)[1].tolist() == [8, 2, 1]
    assert set(labels[rest]) == {5, 7, 8, 9}
    assert np.array_equal(hold_out(labels, 0.2)[1], held_out)
    assert len(hold_out(labels, 0.0)[1]) == 0


@pytest.mark.parametrize("size", [4, 17, 60, 100])
def test_a_subset_has_its_size_and_the_proportions_of_the_classes(size):
    labels = np.repeat([0, 1, 2, 3], [60, 30, 9, 1])
    chosen = stratified(labels, size)
    assert len(set(chosen)) == size
    counts = np.bincount(labels[chosen], minlength=4)
    assert counts.min() >= 1
    assert np.abs(counts - size * np.array([0.6, 0.3, 0.09, 0.01])).max() <= 2


def test_sizes_are_limits_and_what_is_left_out_is_said():
    found = load_images(ImageData(name="digits", train_size=100, test_size=50))
    sizes = {name: len(split) for name, split in found.splits.items()}
    assert sizes == {"train": 100, "validation": 143, "test": 50}
    assert found.notes[:2] == (
        "100 of 1295 train images are used (data.train_size)",
        "50 of 359 test images are used (data.test_size)",
    )
    everything = load_images(ImageData(name="digits", train_size=10**6))
    assert sum(map(len, everything.splits.values())) == 1797


def test_a_split_gives_whole_batches_of_its_rows():
    train = load_images(ImageData()).splits["train"]
    pixels, labels = train.__getitems__([5, 2])
    assert torch.equal(pixels[1], train.pixels[train.index[2]])
    assert torch.equal(labels, train.labels[[5, 2]])
    assert torch.equal(torch.cat(list(train.batches(100))), train.pixels[train.index])


def test_a_copied_or_touched_folder_has_the_same_digest_and_changed_data_another(tmp_path):
    root = write_classes(tmp_path / "photos", {"a": 6, "b": 6})
    digest = load_images(folder(root)).digest()
    os.utime(root / "a/0.png", (1, 1))
    assert load_images(folder(root)).digest() == digest
    shutil.copytree(root, tmp_path / "copy")
    assert load_images(folder(tmp_path / "copy")).digest() == digest
    shutil.move(root / "a/0.png", root / "b/9.png")
    assert load_images(folder(root)).digest() != digest
    write_image(tmp_path / "copy/a/0.png", seed=77)
    assert load_images(folder(tmp_path / "copy")).digest() != digest


def test_pixels_are_decoded_once_and_a_damaged_cache_is_made_again(tmp_path, monkeypatch):
    root = write_classes(tmp_path / "photos", {"a": 3, "b": 3})
    calls = []
    decode = images.decode
    monkeypatch.setattr(images, "decode", lambda *given: calls.append(given) or decode(*given))
    first = read(folder(root)).splits["train"].pixels.clone()
    second = read(folder(root)).splits["train"].pixels
    assert (len(calls), torch.equal(first, second)) == (6, True)
    (cached,) = (tmp_path / "cache").rglob("*.npy")
    truncate(cached)
    assert torch.equal(read(folder(root)).splits["train"].pixels, first)
    write_image(root / "a/0.png", seed=50)
    assert not torch.equal(read(folder(root)).splits["train"].pixels, first)


def test_without_a_place_for_the_cache_images_are_read_all_the_same(tmp_path, monkeypatch):
    root = write_classes(tmp_path / "photos", {"a": 3, "b": 3})
    monkeypatch.setenv("TRICOUPLE_CACHE", str(root / "a/0.png/no folder"))
    assert read(folder(root)).splits["train"].pixels.shape == (6, 3, 16, 16)
