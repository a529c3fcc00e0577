"""Published data sets are read in their real layouts; partial copies pass, damaged files do not."""

from __future__ import annotations

import os
import pickle
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from scipy.io import savemat

from image_files import (
    WNIDS,
    random_pixels,
    truncate,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_image,
    write_mnist,
    write_pickle,
    write_svhn,
    write_tiny_imagenet,
)
from tricouple_lab.data import images
from tricouple_lab.data.images import DataError, files, published
from tricouple_lab.data.images.sets import Normalisation

FETCH = published.fetch


@pytest.fixture(autouse=True)
def no_network(monkeypatch):
    """No test may reach out; those about downloads say what would come."""

    def refuse(name, root, expected, start):
        raise AssertionError(f"a test tried to download {name}")

    monkeypatch.setattr(published, "fetch", refuse)


@pytest.mark.parametrize("packed", [False, True])
def test_mnist(tmp_path, packed):
    write_mnist(tmp_path, packed=packed)
    data = images.load("mnist", tmp_path)
    assert data.train.images.shape == (40, 1, 28, 28)
    assert torch.equal(
        data.train.images[:, 0], torch.from_numpy(random_pixels(40, 28, 28, seed=40))
    )
    assert data.test.labels.tolist() == [*range(10), *range(10)]
    assert data.classes == tuple("0123456789")
    assert data.normalisation == Normalisation((0.1307,), (0.3081,), 28)
    assert data.notes == ("40 of 60000 train images are here", "20 of 10000 test images are here")


def test_cifar10(tmp_path):
    folder = write_cifar10(tmp_path)
    data = images.load("cifar10", tmp_path)
    assert data.train.images.shape == (100, 3, 32, 32)
    assert data.test.images.shape == (20, 3, 32, 32)
    first = pickle.loads((folder / "data_batch_1").read_bytes())
    assert torch.equal(data.train.images[3].flatten(), torch.from_numpy(first["data"][3]))
    assert data.train.labels[:12].tolist() == [*range(10), 0, 1]
    assert data.classes[2] == "kind 2"
    assert "data_batch_1 differs from the published file (checksum)" in data.notes


def test_cifar10_with_one_batch_says_what_is_missing(tmp_path):
    write_cifar10(tmp_path, batches=(1,))
    data = images.load("cifar10", tmp_path)
    assert len(data.train) == 20
    assert "missing: data_batch_2, data_batch_3, data_batch_4, data_batch_5" in data.notes
    assert "20 of 50000 train images are here" in data.notes


def test_cifar10_without_names_calls_classes_by_numbers(tmp_path):
    (write_cifar10(tmp_path) / "batches.meta").unlink()
    data = images.load("cifar10", tmp_path)
    assert data.classes == tuple("0123456789")
    assert "batches.meta is missing: classes are called by their numbers" in data.notes


def test_cifar100_has_fine_classes(tmp_path):
    write_cifar100(tmp_path)
    data = images.load("cifar100", tmp_path)
    assert data.n_classes == 100
    assert data.classes[7] == "fine 7"
    assert torch.bincount(data.train.labels).tolist() == [2] * 100


MISSING = [
    (write_mnist, "mnist", "t10k-labels-idx1-ubyte", "the test files are missing"),
    (write_svhn, "svhn", "test_32x32.mat", "test_32x32.mat is missing"),
    (write_cifar10, "cifar10", "test_batch", "missing: test_batch"),
]


@pytest.mark.parametrize(("write", "name", "file", "note"), MISSING)
def test_a_copy_without_test_files_is_taken_with_a_note(tmp_path, write, name, file, note):
    (write(tmp_path) / file).unlink()
    data = images.load(name, tmp_path)
    assert data.test is None
    assert note in data.notes


def truncated(keep):
    return lambda path: truncate(path, keep)


def idx(values, dtype=np.uint8):
    return lambda path: write_idx(path, np.array(values, dtype))


def pickled(content):
    return lambda path: write_pickle(path, content)


def mat(**content):
    return lambda path: savemat(path, content)


PACKED = partial(write_mnist, packed=True)
PHOTO = f"train/{WNIDS[2]}/images/{WNIDS[2]}_1.JPEG"
LABELS = "train-labels-idx1-ubyte"
ROWS, PIXELS = random_pixels(2, 3072), random_pixels(32, 32, 3, 4)
BROKEN = [
    *((write_mnist, "mnist", "train-images-idx3-ubyte", truncated(keep), ".*replace it")
      for keep in (0.0, 0.0001, 0.5, 0.999)),
    (PACKED, "mnist", f"{LABELS}.gz", truncated(0.7), "cannot be read"),
    (write_mnist, "mnist", "train-images-idx3-ubyte", idx(np.zeros((39, 28, 28))),
     "holds 39 images, but .* 40 labels: they belong to different copies"),
    (write_mnist, "mnist", "train-images-idx3-ubyte", idx(np.zeros((40, 0, 28))),
     r"holds images of \(0, 28\) pixels"),
    (write_mnist, "mnist", LABELS, idx([10] * 40), "does not hold digits from 0 to 9"),
    (write_mnist, "mnist", "train-images-idx3-ubyte", idx([[0, 1]]),
     "is not an IDX file of bytes in 3 dimensions"),
    *((write_cifar10, "cifar10", "data_batch_3", truncated(keep), "is truncated or not a CIFAR")
      for keep in (0.0, 0.3, 0.99)),
    *((write_cifar10, "cifar10", "test_batch", pickled(content), f".*{problem}")
      for content, problem in [
          ({"data": ROWS}, "has no 'data' and 'labels'"),
          ([1, 2], "has no 'data' and 'labels'"),
          ({"data": random_pixels(2, 3000), "labels": [0, 1]}, r"shape \(2, 3000\)"),
          ({"data": ROWS, "labels": [0]}, r"labels of shape \(1,\)"),
          ({"data": ROWS, "labels": [0, 10]}, "not whole numbers from 0 to 9"),
          ({"data": ROWS, "labels": [0, 0.5]}, r"whole numbers from 0 to 9 \(float64\)"),
          ({"data": ROWS, "labels": ["a", "b"]}, "whole numbers"),
          ({"data": ROWS, "labels": [0, None]}, "whole numbers"),
          ({"data": ROWS, "labels": [0, 2**70]}, "whole numbers"),
          ({"data": ROWS[:0], "labels": []}, "should hold n rows"),
      ]),
    (write_cifar10, "cifar10", "batches.meta", pickled({"label_names": ["one"]}),
     "does not name 10 classes"),
    *((write_svhn, "svhn", "test_32x32.mat", truncated(keep), "is truncated or not an SVHN file")
      for keep in (0.0, 0.01, 0.5, 0.98)),
    *((write_svhn, "svhn", "train_32x32.mat", mat(**content), f".*{problem}")
      for content, problem in [
          ({"X": PIXELS, "y": np.ones((3, 1), np.uint8)}, "of n labels"),
          ({"X": PIXELS[:28, :28], "y": np.ones((4, 1), np.uint8)}, "32, 32, 3, n"),
          ({"X": PIXELS, "y": np.full((4, 1), 11)}, "not whole numbers from 0 to 10"),
          ({"X": PIXELS, "y": np.full((4, 1), np.nan)}, "whole numbers"),
          ({"X": PIXELS, "y": np.full((4, 1), 1j)}, "whole numbers"),
          ({"X": PIXELS, "y": np.array([list("text")], object).T}, "whole numbers"),
          ({"X": PIXELS}, "not an SVHN file"),
      ]),
    (write_tiny_imagenet, "tiny_imagenet", PHOTO, truncated(0.5), "is not a readable image"),
    (write_tiny_imagenet, "tiny_imagenet", "val/val_annotations.txt",
     lambda path: path.write_text(path.read_text() + "val_3.JPEG\n"),
     "line 4: expected file and class"),
    (write_tiny_imagenet, "tiny_imagenet", "val/val_annotations.txt",
     lambda path: path.write_text(path.read_text() + f"../../x.JPEG\t{WNIDS[0]}\n"),
     "line 4: expected file and class"),
]  # fmt: skip


@pytest.mark.parametrize(("write", "name", "file", "spoil", "problem"), BROKEN)
def test_a_damaged_file_is_refused_by_name(tmp_path, write, name, file, spoil, problem):
    path = write(tmp_path) / file
    spoil(path)
    with pytest.raises(DataError, match=rf"{re.escape(path.name)},? {problem}"):
        images.load(name, tmp_path)


def test_a_pickle_that_would_run_code_does_not(tmp_path):
    victim = tmp_path / "victim"

    class Trap:
        def __reduce__(self):
            return Path.touch, (victim,)

    write_pickle(write_cifar10(tmp_path) / "data_batch_1", {"data": Trap(), "labels": []})
    with pytest.raises(DataError, match=r"data_batch_1 .*which is no data"):
        images.load("cifar10", tmp_path)
    assert not victim.exists()


@pytest.mark.parametrize("folder", ["SVHN", "."])
def test_svhn_in_either_place(tmp_path, folder):
    write_svhn(tmp_path / folder)
    data = images.load("svhn", tmp_path)
    assert data.train.images.shape == (30, 3, 32, 32)
    pixels = torch.from_numpy(random_pixels(32, 32, 3, 30))
    assert torch.equal(data.train.images[5], pixels[..., 5].permute(2, 0, 1))
    assert data.train.labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]
    assert "30 of 73257 train images are here" in data.notes
    assert "test_32x32.mat differs from the published file (checksum)" in data.notes


def test_tiny_imagenet(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    data = images.load("tiny_imagenet", tmp_path)
    assert data.train.images.shape == (12, 3, 64, 64)
    assert data.train.labels.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert data.test.labels.tolist() == [0, 1, 2]
    assert data.classes == ("goldfish", *WNIDS[1:])
    assert data.normalisation.mean == (0.485, 0.456, 0.406)
    assert data.notes[:2] == ("3 of 200 classes are here", "12 of 100000 train images are here")
    path = folder / "train" / WNIDS[1] / "images" / f"{WNIDS[1]}_2.JPEG"
    assert torch.equal(data.train.images[6], torch.tensor(np.array(Image.open(path))).movedim(2, 0))


def test_tiny_imagenet_of_some_classes_leaves_out_the_others_test_images(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    shutil.rmtree(folder / "train" / WNIDS[0])
    (folder / "val" / "images" / "val_1.JPEG").unlink()
    data = images.load("tiny_imagenet", tmp_path)
    assert data.test.labels.tolist() == [1]
    assert "1 test images of classes without training images" in data.notes
    assert "1 of the annotated test images are missing" in data.notes


def test_tiny_imagenet_sorted_into_folders(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    shutil.rmtree(folder / "val")
    for wnid in WNIDS:
        write_image(folder / "val" / wnid / "a.JPEG", 64)
    assert images.load("tiny_imagenet", tmp_path).test.labels.tolist() == [0, 1, 2]
    shutil.rmtree(folder / "val")
    data = images.load("tiny_imagenet", tmp_path)
    assert data.test is None
    assert "val/val_annotations.txt is missing: there is no test set" in data.notes


def test_tiny_imagenet_beyond_memory_is_decoded_batch_by_batch(tmp_path, monkeypatch):
    write_tiny_imagenet(tmp_path)
    whole = images.load("tiny_imagenet", tmp_path)
    monkeypatch.setattr(files, "MEMORY_BUDGET", 11 * 3 * 64 * 64)
    data = images.load("tiny_imagenet", tmp_path)
    assert not data.train.in_memory
    assert data.test.in_memory
    batches = list(images.loader(data.train, 5, workers=2))
    assert torch.equal(torch.cat([batch for batch, _ in batches]), whole.train.images)
    assert torch.equal(torch.cat([labels for _, labels in batches]), whole.train.labels)


def test_digits_need_no_files(tmp_path):
    data = images.load("digits", tmp_path, download=False)
    assert data.train.images.shape == (1438, 1, 8, 8)
    assert len(data.test) == 359
    assert int(data.train.images.max()) == 255
    shares = torch.bincount(data.test.labels) / torch.bincount(data.train.labels)
    assert float((shares - 0.25).abs().max()) < 0.01
    values = data.train.images / 255
    assert data.normalisation.mean[0] == pytest.approx(float(values.mean()), abs=1e-4)
    assert data.normalisation.std[0] == pytest.approx(float(values.std()), abs=1e-4)


FILES = {
    "mnist": r"train-images-idx3-ubyte.* in .*MNIST/raw",
    "svhn": r"train_32x32\.mat and test_32x32\.mat in .*SVHN",
    "cifar10": r"data_batch_1.*test_batch.* in .*cifar-10-batches-py",
    "cifar100": r"train, test, meta in .*cifar-100-python",
    "tiny_imagenet": r"train/<class>/images.*val_annotations\.txt in .*tiny-imagenet-200",
}


@pytest.mark.parametrize("name", FILES)
def test_missing_data_and_failed_downloads_say_which_files_go_where(tmp_path, name, monkeypatch):
    with pytest.raises(DataError, match=f"data '{name}' was not found. Expected {FILES[name]}"):
        images.load(name, tmp_path, download=False)
    monkeypatch.setattr(published, "fetch", FETCH)

    def unreachable(*args, **options):
        raise OSError("no route to host")

    datasets = published.torchvision_datasets()
    monkeypatch.setattr(datasets.utils, "_urlretrieve", unreachable)
    with pytest.raises(DataError, match=rf"Expected {FILES[name]}.*The download failed"):
        images.load(name, tmp_path)


@pytest.mark.parametrize(
    ("name", "title", "write"),
    [
        ("mnist", "MNIST", write_mnist),
        ("svhn", "SVHN", write_svhn),
        ("cifar10", "CIFAR10", write_cifar10),
        ("cifar100", "CIFAR100", write_cifar100),
    ],
)
def test_missing_data_is_downloaded_to_where_it_is_found_again(
    tmp_path, name, title, write, monkeypatch
):
    monkeypatch.setattr(published, "fetch", FETCH)
    calls = []

    def fetched(self, root, *args, download):
        assert download
        calls.append(root)
        if len(calls) == 1:
            write(Path(root))

    monkeypatch.setattr(getattr(published.torchvision_datasets(), title), "__init__", fetched)
    first = images.load(name, tmp_path / "new")
    n_calls = len(calls)
    again = images.load(name, tmp_path / "new")
    assert n_calls == len(calls) > 0
    assert torch.equal(first.train.images, again.train.images)


def test_a_download_waits_for_silent_servers_only_so_long(tmp_path):
    import socket

    seen = []
    FETCH("x", tmp_path, "files", lambda root: seen.append(socket.getdefaulttimeout()))
    assert seen == [30.0]
    assert socket.getdefaulttimeout() is None


def test_the_environment_names_the_data_folder(tmp_path, monkeypatch):
    write_mnist(tmp_path)
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))
    assert len(images.load("mnist").train) == 40
    monkeypatch.setenv("TRICOUPLE_DATA", "")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    with pytest.raises(DataError, match=r"home/\.cache/tricouple/MNIST/raw"):
        images.load("mnist", download=False)


REAL = {
    "mnist": (60_000, 10_000),
    "svhn": (73_257, 26_032),
    "cifar10": (50_000, 10_000),
    "cifar100": (50_000, 10_000),
    "tiny_imagenet": (100_000, 10_000),
}


@pytest.mark.skipif("TRICOUPLE_DATA" not in os.environ, reason="needs real data: TRICOUPLE_DATA")
def test_real_data_looks_like_the_published():
    found = []
    for name, sizes in REAL.items():
        try:
            data = images.load(name, download=False)
        except DataError:
            continue  # not in this folder
        found.append(name)
        complete = (len(data.train), len(data.test)) == sizes
        assert complete == (not any("images are here" in note for note in data.notes)), name
        assert torch.unique(data.train.labels).tolist() == list(range(data.n_classes)), name
        sample = images.subset(data.train, 2000).images / 255
        mean = torch.tensor(data.normalisation.mean) - sample.mean((0, 2, 3))
        assert float(mean.abs().max()) < 0.03, name
    assert found, "none of the data sets is in TRICOUPLE_DATA"
