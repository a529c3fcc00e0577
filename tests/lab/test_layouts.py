"""Published sets as torchvision leaves them on disk: whole, partial, damaged, hostile."""

import pickle
import time

import numpy as np
import pytest
import torch

from image_files import (
    random_pixels,
    truncate,
    write_cifar10,
    write_cifar100,
    write_idx,
    write_mnist,
    write_pickle,
    write_svhn,
    write_tiny_imagenet,
)
from tiny_task import Evil
from tricouple_lab.config.schema import ImageData
from tricouple_lab.data import hub, layouts
from tricouple_lab.data.sources import read
from tricouple_lab.names import IMAGES, UserError


@pytest.fixture(autouse=True)
def _places(tmp_path, monkeypatch):
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path))


def test_mnist_is_what_its_files_say(tmp_path):
    write_mnist(tmp_path)
    found = read(ImageData(name="mnist", image_size=28))
    assert torch.equal(
        found.splits["train"].pixels[:, 0], torch.from_numpy(random_pixels(40, 28, 28, seed=40))
    )
    assert found.splits["train"].labels.tolist() == [i % 10 for i in range(40)]
    assert (len(found.splits["test"]), found.classes) == (20, tuple("0123456789"))
    assert found.notes == (
        "mnist: 40 of 60,000 train images and 20 of 10,000 test images are on disk",
    )


def test_cifar10_takes_the_batches_that_are_there(tmp_path):
    write_cifar10(tmp_path, batches=(1, 3))
    found = read(ImageData(name="cifar10"))
    rows = [random_pixels(20, 3072, seed=sum(map(ord, f"data_batch_{i}"))) for i in (1, 3)]
    wanted = torch.from_numpy(np.concatenate(rows).reshape(-1, 3, 32, 32))
    assert torch.equal(found.splits["train"].pixels, wanted)
    assert found.classes[3] == "kind 3"
    assert "40 of 50,000 train images" in found.notes[0]


def test_cifar100_has_the_fine_labels(tmp_path):
    write_cifar100(tmp_path)
    found = read(ImageData(name="cifar100"))
    assert len(found.classes) == 100
    assert found.splits["train"].labels[:100].tolist() == list(range(100))


@pytest.mark.parametrize("place", ["SVHN", "."])
def test_svhn_calls_the_digit_0_by_0(tmp_path, place):
    write_svhn(tmp_path / place)
    found = read(ImageData(name="svhn"))
    wanted = torch.from_numpy(random_pixels(32, 32, 3, 30).transpose(3, 2, 0, 1).copy())
    assert torch.equal(found.splits["train"].pixels, wanted)
    assert found.splits["train"].labels[:11].tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]


def test_tiny_imagenet_tests_on_the_annotated_images(tmp_path):
    folder = write_tiny_imagenet(tmp_path)
    found = read(ImageData(name="tiny_imagenet", image_size=64))
    assert (len(found.splits["train"]), len(found.splits["test"])) == (12, 3)
    assert found.classes == ("goldfish", "n01629819", "n02123045")
    assert found.splits["test"].labels.tolist() == [0, 1, 2]
    table = folder / "val/val_annotations.txt"
    table.write_text("../x.JPEG\tn01443537\n")
    with pytest.raises(UserError, match=r"val_annotations\.txt, line 1"):
        read(ImageData(name="tiny_imagenet"))


def test_images_are_kept_no_larger_than_they_are_needed(tmp_path):
    write_mnist(tmp_path)
    small = read(ImageData(name="mnist", image_size=14)).splits["train"].pixels
    assert (small.shape, small.dtype) == ((40, 1, 14, 14), torch.uint8)
    assert read(ImageData(name="mnist", image_size=64)).splits["train"].pixels.shape[-1] == 28


def test_a_set_without_test_images_is_said(tmp_path):
    for file in write_mnist(tmp_path).glob("t10k*"):
        file.unlink()
    found = read(ImageData(name="mnist"))
    assert "test" not in found.splits
    assert "0 of 10,000 test images" in found.notes[0]


ELEVEN, ZEROS = np.full(40, 11, np.uint8), np.zeros(39, np.uint8)
DAMAGES = [
    ("mnist", "train-images-idx3-ubyte", truncate, "truncated"),
    ("mnist", "train-labels-idx1-ubyte", lambda f: write_idx(f, ELEVEN), "labels from 0 to 9"),
    ("mnist", "train-labels-idx1-ubyte", lambda f: write_idx(f, ZEROS), "39 labels for 40 images"),
    ("cifar10", "data_batch_2", truncate, "truncated"),
    ("cifar10", "data_batch_2", lambda f: write_pickle(f, {"data": 3}), "not a file"),
    ("cifar10", "batches.meta", lambda f: write_pickle(f, []), "name 10 classes"),
    ("svhn", "train_32x32.mat", truncate, "truncated"),
]


@pytest.mark.parametrize(("name", "file", "damage", "problem"), DAMAGES)
def test_a_damaged_file_is_named(tmp_path, name, file, damage, problem):
    write = {"mnist": write_mnist, "cifar10": write_cifar10, "svhn": write_svhn}[name]
    damage(write(tmp_path) / file)
    with pytest.raises(UserError, match=problem) as error:
        read(ImageData(name=name))
    assert file in str(error.value)
    assert "\n" not in str(error.value)


def test_a_pickle_cannot_run_anything(tmp_path):
    folder = write_cifar10(tmp_path)
    (folder / "data_batch_1").write_bytes(pickle.dumps({"data": Evil()}))
    with pytest.raises(UserError, match="system, which is no data"):
        read(ImageData(name="cifar10"))


@pytest.mark.parametrize("name", layouts.READERS)
def test_without_files_and_network_one_sentence_says_what_was_looked_for(name, monkeypatch):
    begun = time.monotonic()
    with pytest.raises(UserError) as error:
        read(ImageData(name=name))
    text = str(error.value)
    assert time.monotonic() - begun < 10
    for part in (layouts.PUBLISHED[name][0], IMAGES[name].hub, "TRICOUPLE_DATA", "data=digits"):
        assert part in text
    assert "\n" not in text


def test_a_hub_that_does_not_answer_is_given_up_within_ten_seconds(monkeypatch):
    from huggingface_hub import constants

    def never(*_, **__):
        time.sleep(4)
        raise OSError

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.urllib.request, "urlopen", never)
    monkeypatch.setattr(hub, "PATIENCE", 0.1)
    begun = time.monotonic()
    with pytest.raises(UserError, match="the hub cannot be reached"):
        read(ImageData(name="cifar10"))
    assert time.monotonic() - begun < 5
    assert constants.HF_HUB_OFFLINE is False
