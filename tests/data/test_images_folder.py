"""Any folder of images: labelled or not, of any size and format, damaged or not."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from PIL import Image

from image_files import random_pixels, truncate, write_classes, write_image
from tricouple_lab.data import images
from tricouple_lab.data.images import DataError, files
from tricouple_lab.data.images.sets import IMAGENET_MEAN


def test_class_folders_are_labels_and_a_fifth_is_held_out(tmp_path):
    write_classes(tmp_path, {"cat": 10, "ant": 20})
    data = images.load("folder", tmp_path)
    assert data.classes == ("ant", "cat")
    assert torch.bincount(data.train.labels).tolist() == [16, 8]
    assert torch.bincount(data.test.labels).tolist() == [4, 2]
    assert data.train.images.shape == (24, 3, 16, 16)
    assert data.probe is data.train
    assert data.normalisation.mean == IMAGENET_MEAN
    assert "6 images, a fifth of each class, are held out as test set" in data.notes


def test_the_test_set_does_not_depend_on_the_seed(tmp_path):
    write_classes(tmp_path, {"a": 20, "b": 20})
    one, two = (images.load("folder", tmp_path, train_size=8, seed=seed) for seed in (1, 2))
    assert torch.equal(one.test.images, two.test.images)
    assert not torch.equal(one.train.images, two.train.images)


@pytest.mark.parametrize("part", ["test", "val"])
def test_train_and_test_folders(tmp_path, part):
    write_classes(tmp_path / "train", {"a": 3, "b": 4})
    write_classes(tmp_path / part, {"b": 2})
    write_classes(tmp_path / part, {"a": 1})
    data = images.load("folder", tmp_path)
    assert data.train.labels.tolist() == [0, 0, 0, 1, 1, 1, 1]
    assert data.test.labels.tolist() == [0, 1, 1]


@pytest.mark.parametrize("folder", [".", "photos"])
def test_loose_images_and_those_of_a_single_folder_are_unlabelled(tmp_path, folder):
    write_classes(tmp_path, {folder: 5})
    data = images.load("folder", tmp_path)
    assert len(data.train) == 5
    assert data.train.labels is data.probe is data.test is None
    assert data.classes == ()
    assert data.train[2][1] == -1


@pytest.mark.parametrize("root", [".", "train"])
def test_unlabelled_training_images_are_evaluated_on_half_of_the_labelled_ones(tmp_path, root):
    write_classes(tmp_path / "train", {".": 7})
    write_classes(tmp_path / "test", {"a": 6, "b": 4})
    elsewhere = {} if root == "." else {"eval_root": tmp_path / "test"}
    data = images.load("folder", tmp_path / root, **elsewhere)
    assert len(data.train) == 7
    assert data.train.labels is None
    assert torch.bincount(data.probe.labels).tolist() == [3, 2]
    assert torch.bincount(data.test.labels).tolist() == [3, 2]
    assert data.classes == ("a", "b")


def test_classes_of_one_image_stay_in_the_training_set(tmp_path):
    write_classes(tmp_path, {"a": 1, "b": 2})
    data = images.load("folder", tmp_path)
    assert (data.train.labels.tolist(), data.test.labels.tolist()) == ([0, 1], [1])
    write_classes(tmp_path / "other", {"a": 1, "b": 1})
    data = images.load("folder", tmp_path / "other")
    assert data.test is None
    assert "no class has two images: there is no test set" in data.notes


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".JPEG", ".bmp", ".gif", ".tiff", ".webp"])
def test_formats(tmp_path, suffix):
    write_classes(tmp_path, {".": 2}, suffix=suffix)
    assert images.load("folder", tmp_path).train.images.shape == (2, 3, 16, 16)


def test_other_files_and_hidden_ones_are_left_out(tmp_path):
    write_classes(tmp_path, {"a": 2, "b/deeper": 2, ".git": 1, "__MACOSX": 1})
    for name in ("notes.txt", ".hidden.png", "a/Thumbs.db"):
        (tmp_path / name).write_text("no image")
    data = images.load("folder", tmp_path)
    assert data.classes == ("a", "b")
    assert len(data.train) + len(data.test) == 4


def test_sizes_are_made_equal_around_the_centre(tmp_path):
    pixels = np.zeros((10, 30, 3), np.uint8)
    pixels[:, 10:20] = 200
    Image.fromarray(pixels).save(tmp_path / "wide.png")
    write_image(tmp_path / "large.png", (64, 50))
    data = images.load("folder", tmp_path)
    assert data.train.images.shape == (2, 3, 10, 10)
    assert data.train.images[1].unique().tolist() == [200]
    assert "images are decoded to 10×10" in data.notes
    assert images.load("folder", tmp_path, image_size=12).train.images.shape == (2, 3, 12, 12)


def test_photographs_are_decoded_to_a_moderate_size_unless_asked(tmp_path):
    write_image(tmp_path / "a.jpg", (800, 600))
    assert images.load("folder", tmp_path).image_size == 224


def test_grey_images_have_one_channel_unless_some_are_coloured(tmp_path):
    write_classes(tmp_path, {".": 3}, mode="L")
    data = images.load("folder", tmp_path)
    assert data.channels == len(data.normalisation.mean) == 1
    assert torch.equal(data.train.images[1, 0], torch.from_numpy(random_pixels(16, 16, seed=1)))
    write_image(tmp_path / "coloured.png")
    assert images.load("folder", tmp_path).channels == 3


def test_16_bit_images_keep_their_range(tmp_path):
    levels = np.arange(256, dtype=np.uint16).reshape(16, 16) * 256 + 7
    Image.fromarray(levels).save(tmp_path / "deep.png")
    found = images.load("folder", tmp_path).train.images
    assert found.flatten().tolist() == list(range(256))


def test_palettes_and_transparency_become_colours(tmp_path):
    coloured = Image.fromarray(np.full((8, 8, 3), (250, 0, 10), np.uint8))
    coloured.quantize(4).save(tmp_path / "palette.png", transparency=b"\x80\xff")
    coloured.convert("RGBA").save(tmp_path / "rgba.png")
    found = images.load("folder", tmp_path).train.images
    assert found[:, :, 3, 3].tolist() == [[250, 0, 10]] * 2


def test_cameras_orientation_is_respected(tmp_path):
    pixels = np.zeros((8, 8, 3), np.uint8)
    pixels[:4] = 255  # white above
    exif = Image.Exif()
    exif[0x0112] = 3  # taken upside down
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    found = images.load("folder", tmp_path).train.images[0, 0]
    assert found[:, 0].tolist() == [0] * 4 + [255] * 4


def float_image(path):
    Image.fromarray(np.zeros((8, 8), np.float32)).save(path)


REFUSED = {
    r"photos holds no images \(.*\.png": {},
    "nowhere is not a folder: name": {"root": "nowhere"},
    "nowhere is not a folder: evaluation": {"photos": {".": 3}, "eval_root": "nowhere"},
    "photos has no two class folders": {"photos": {".": 3}, "eval_root": "photos"},
    "labelled/c is a class without training images": {
        "photos": {"a": 2, "b": 2}, "labelled": {"a": 2, "c": 2}, "eval_root": "labelled",
    },
    r"both class folders \(a\) and images .*\(0\.png\)": {"photos": {"a": 2, "b": 2, ".": 1}},
    r"odd\.png is not a readable image": {
        "photos": {".": 2}, "odd.png": lambda path: path.write_text("not an image"),
    },
    r"odd\.tiff .*convert them to 8 bits": {"odd.tiff": float_image},
}  # fmt: skip


@pytest.mark.parametrize("problem", REFUSED)
def test_folders_that_cannot_be_used_are_refused_by_name(tmp_path, problem):
    content = REFUSED[problem]
    (tmp_path / "photos").mkdir()
    for name, value in content.items():
        if isinstance(value, dict):
            write_classes(tmp_path / name, value)
        elif callable(value):
            value(tmp_path / "photos" / name)
    eval_root = tmp_path / content["eval_root"] if "eval_root" in content else None
    with pytest.raises(DataError, match=problem):
        images.load("folder", tmp_path / content.get("root", "photos"), eval_root=eval_root)


def test_an_empty_class_folder_is_left_out_with_a_word(tmp_path):
    write_classes(tmp_path, {"cat": 5, "dog": 5})
    (tmp_path / "bird").mkdir()
    (tmp_path / ".cache").mkdir()
    data = images.load("folder", tmp_path)
    assert data.classes == ("cat", "dog")
    assert [note for note in data.notes if "no images" in note] == [
        f"{tmp_path / 'bird'} holds no images of its own and is left out"
    ]


@pytest.mark.parametrize("suffix", [".png", ".jpg", ".webp"])
@pytest.mark.parametrize("keep", [0.0, 0.05, 0.6])
def test_a_truncated_image_is_refused_by_name(tmp_path, suffix, keep):
    write_classes(tmp_path, {"a": 3, "b": 3}, suffix=suffix)
    truncate(tmp_path / "b" / f"1{suffix}", keep)
    with pytest.raises(DataError, match=rf"b/1\{suffix} is not a readable image .*replace"):
        images.load("folder", tmp_path)


def test_a_damaged_image_beyond_memory_is_refused_by_name_from_a_worker(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_BUDGET", 0)
    write_classes(tmp_path, {".": 4}, suffix=".jpg")
    truncate(tmp_path / "2.jpg", 0.9)
    data = images.load("folder", tmp_path)
    assert not data.train.in_memory
    with pytest.raises(DataError, match=r"2\.jpg is not a readable image"):
        list(images.loader(data.train, 2, workers=1))


def test_sets_beyond_memory_can_be_split_and_indexed(tmp_path, monkeypatch):
    write_classes(tmp_path, {"a": 10, "b": 10})
    whole = images.load("folder", tmp_path)
    monkeypatch.setattr(files, "MEMORY_BUDGET", 0)
    lazy = images.load("folder", tmp_path, train_size=6)
    assert isinstance(lazy.train.images, files.ImageFiles)
    assert torch.bincount(lazy.train.labels).tolist() == [3, 3]
    assert lazy.train.images.shape == (6, 3, 16, 16)
    again = images.subset(whole.train, 6)
    assert torch.equal(lazy.train[4][0], again.images[4])
    everything, labels = lazy.test.__getitems__(range(4))
    assert torch.equal(everything, whole.test.images)
    assert torch.equal(labels, whole.test.labels)


# --- links, pipes, and files that are not what their name says -----------------------------------


def same_images(data, other) -> bool:
    return all(
        torch.equal(a.images, b.images) and torch.equal(a.labels, b.labels)
        for a, b in ((data.train, other.train), (data.test, other.test))
    )


@pytest.mark.parametrize(
    "links",
    [
        {"a/loop": ".."},
        {"a/loop": "..", "b/loop": "../a", "b/0_loop": ".."},
        {"a/above": "../.."},
        {"a/self": "."},
        {"0_again": "b"},
        {"a/0.png": "../b/0.png"},
    ],
    ids=lambda links: " ".join(links),
)
def test_links_add_nothing_that_is_there_already_and_are_told(tmp_path, links):
    root = tmp_path / "photos"
    write_classes(root, {"a": 6, "b": 6})
    write_classes(tmp_path / "beside", {".": 3})
    for name in links:
        (root / name).unlink(missing_ok=True)
    plain = images.load("folder", root)
    for name, target in links.items():
        (root / name).symlink_to(target)
    data = images.load("folder", root)
    assert same_images(data, plain)
    assert sum("is left out: it is a second way to" in note for note in data.notes) == len(links)


def test_links_to_other_places_are_followed(tmp_path):
    write_classes(tmp_path / "store", {"cats": 5, "dogs": 5})
    (tmp_path / "photos").mkdir()
    for name in ("cats", "dogs"):
        (tmp_path / "photos" / name).symlink_to(tmp_path / "store" / name)
    data = images.load("folder", tmp_path / "photos")
    assert data.classes == ("cats", "dogs")
    assert len(data.train) + len(data.test) == 10


@pytest.mark.parametrize(
    ("link", "target"), [("train/c", "../test"), ("train/a/more", "../../test/b"),
                         ("test/a/more", "../../train/b"), ("test/c", "../train")]
)  # fmt: skip
def test_no_link_leads_from_training_to_test_or_back(tmp_path, link, target):
    write_classes(tmp_path / "train", {"a": 3, "b": 3})
    write_classes(tmp_path / "test", {"a": 2, "b": 2})
    plain = images.load("folder", tmp_path)
    (tmp_path / link).symlink_to(target)
    assert same_images(images.load("folder", tmp_path), plain)


def write_postscript(path):
    path.write_text("%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\nshowpage\n")


@pytest.mark.parametrize(
    ("make", "complaint"),
    [
        (os.mkfifo, "is no file that can be read: remove it"),
        (lambda path: path.symlink_to("gone.png"), "is a link to nothing: remove it"),
        (write_postscript, "is not a readable image"),
        (lambda path: write_image(path, (1, 500)), "has a side of 1 pixels, most images one of 16"),
    ],
    ids=["pipe", "dangling", "postscript", "thread"],
)
def test_what_is_no_image_is_named_and_not_waited_for(tmp_path, make, complaint):
    write_classes(tmp_path, {"a": 3, "b": 3})
    make(tmp_path / "b" / "odd.png")
    with pytest.raises(DataError, match=rf"b/odd\.png {complaint}"):
        images.load("folder", tmp_path)


def test_a_tiny_image_is_taken_where_a_size_is_asked_for(tmp_path):
    write_classes(tmp_path, {".": 3})
    write_image(tmp_path / "odd.png", (1, 500))
    assert images.load("folder", tmp_path, image_size=8).train.images.shape == (4, 3, 8, 8)


@pytest.mark.parametrize("empty", [False, True])
def test_one_class_is_called_one_class(tmp_path, empty):
    write_classes(tmp_path, {"cat": 5})
    if empty:
        (tmp_path / "dog").mkdir()
    data = images.load("folder", tmp_path)
    assert f"{tmp_path} has only one class, cat: its images are unlabelled" in data.notes
    with pytest.raises(
        ValueError, match=r"two or more, or use setting=ucl .*only one class, cat"
    ) as e:
        images.check_supervised(data)
    assert ("dog holds no images" in str(e.value)) is empty


def test_workers_are_as_many_as_this_process_may_use(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "MEMORY_BUDGET", 0)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 7, 9})
    write_classes(tmp_path, {".": 2})
    assert images.loader(images.load("folder", tmp_path).train, 2).num_workers == 3
