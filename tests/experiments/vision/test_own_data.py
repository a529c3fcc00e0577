"""A run knows which files it was trained on, and says so when they are others now."""

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from image_files import (
    write_cifar10,
    write_cifar100,
    write_classes,
    write_image,
    write_mnist,
    write_svhn,
    write_tiny_imagenet,
)
from tricouple_lab import cli
from tricouple_lab.data import images
from tricouple_lab.experiments.runs.folder import RunError
from tricouple_lab.experiments.runs.identity import data_name, digest, former_digest, listing
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.report.read import read_study

OWN = (
    "data=folder", "data.train_size=null", "data.image_size=8", "training.epochs=1",
    "training.batch_size=8", "evaluation.neighbours=3",
)  # fmt: skip


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    """Two folders of one name, with other images and classes; the first is where the user is."""
    for place, classes in (("here", {"cat": 8, "dog": 8}), ("there", {"hat": 9, "mug": 9})):
        write_classes(tmp_path / place / "pics", classes)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path


def train(tiny, console, *words):
    return run_once(VISION, tiny(*OWN, *words), console)


def test_a_relative_folder_is_another_one_from_another_directory(
    pictures, tiny, console, monkeypatch
):
    first = train(tiny, console, "data.root=pics")
    assert train(tiny, console, "data.root=pics").skipped
    assert train(tiny, console, f"data.root={pictures}/here/../here/pics").skipped
    monkeypatch.chdir(pictures / "there")
    second = train(tiny, console, "data.root=pics")
    assert not second.skipped
    assert second.folder != first.folder
    assert second.evaluation["result"]["classes"] == ["hat", "mug"]


def test_changed_data_are_named_and_never_called_finished(pictures, tiny, console):
    folder = train(tiny, console, "data.root=pics").folder
    before = folder.evaluation.read_bytes()
    cat = pictures / "here/pics/cat"
    write_image(cat / "new.png", seed=99)
    told = rf"the data have changed since: {cat} has 9 files, 8 then: choose another folder"
    with pytest.raises(RunError, match=told):
        train(tiny, console, "data.root=pics")
    (cat / "new.png").unlink()
    assert train(tiny, console, "data.root=pics").skipped
    os.utime(cat / "0.png", ns=(0, 0))
    with pytest.raises(RunError, match=rf"files in {cat} have other names, sizes or dates"):
        train(tiny, console, "data.root=pics")
    write_image(pictures / "here/pics/eel/0.png")
    with pytest.raises(RunError, match=r"eel is new"):
        train(tiny, console, "data.root=pics")
    assert folder.evaluation.read_bytes() == before


def test_a_run_of_the_version_before_is_named_with_what_to_do(pictures, tiny, console):
    config = tiny(*OWN, "data.root=pics")
    now = train(tiny, console, "data.root=pics").folder
    then = now.path.with_name(
        f"{now.path.name[:-8]}{former_digest(config)[:8]}".replace("pics", "folder")
    )
    now.path.rename(then)
    (then / "data.json").unlink()
    assert VISION.folder(config).path == then
    with pytest.raises(RunError, match=r"earlier version, which did not note its data: choose"):
        run_once(VISION, config, console)


def test_own_data_have_the_name_of_their_folder(pictures, tiny, console, tmp_path):
    folder = train(tiny, console, "data.root=pics").folder
    assert folder.path.name.startswith("pics-scl-")
    assert read_study(folder.path).runs[0].config["data"] == "pics"
    names = {"a b[c]": "a_b_c_", "mnist": "folder-mnist", "été": "été"}
    for given, told in names.items():
        config = tiny(*OWN)
        config.data.root = str(tmp_path / given)
        assert data_name(config) == told.rstrip("_")
    assert data_name(tiny()) == "digits"


def test_evaluate_works_from_elsewhere_and_keeps_the_command_that_trained(
    pictures, tiny, console, monkeypatch, capsys
):
    folder = train(tiny, console, "data.root=pics").folder
    first = folder.read_evaluation()
    monkeypatch.chdir("/")
    monkeypatch.setattr("sys.argv", ["tricouple", "evaluate", "RUN"])
    assert cli.main(["evaluate", str(folder.path), "evaluation.neighbours=1"]) == 0
    after = folder.read_evaluation()
    assert after["accuracy"].keys() == first["accuracy"].keys()
    for provenance in (after["provenance"], read_study(folder.path).runs[0].provenance):
        assert provenance["command"] == first["provenance"]["command"]
        assert provenance["evaluation"]["command"] == "tricouple evaluate RUN"


def test_evaluate_refuses_changed_data_unless_others_are_named(pictures, tiny, console, capsys):
    config = tiny(*OWN, "data.root=pics")
    folder = run_once(VISION, config, console).folder
    write_image(pictures / "here/pics/cat/new.png", seed=99)
    assert cli.main(["evaluate", str(folder.path)]) == 2
    assert "the data have changed since" in capsys.readouterr().err
    there = pictures / "there/pics"
    assert cli.main(["evaluate", str(folder.path), f"data.root={there}"]) == 0
    (pictures / "here/pics/cat/new.png").unlink()
    again = run_once(VISION, config, console)
    assert not again.skipped  # those numbers were of other images
    assert again.evaluation["result"]["classes"] == ["cat", "dog"]


def test_published_data_are_known_by_their_name(tiny):
    assert VISION.listing(tiny()) == {}
    assert digest(tiny("data.root=a")) == digest(tiny("data.root=b"))


PUBLISHED = ("data=cifar10", "data.train_size=20", "training.epochs=1", "training.batch_size=10",
             "evaluation.neighbours=3")  # fmt: skip


def test_a_published_set_is_the_same_everywhere_and_another_when_completed(
    tmp_path, tiny, console, monkeypatch
):
    config = tiny(*PUBLISHED)
    place = write_cifar10(tmp_path / "a", batches=(1, 2)).parent
    monkeypatch.setenv("TRICOUPLE_DATA", str(place))
    folder = run_once(VISION, config, console).folder
    assert json.loads(folder.data.read_text())["cifar10"]["files"] == 4
    shutil.copytree(place, tmp_path / "b")
    (tmp_path / "b/cifar-10-batches-py/readme.html").write_text("not read")
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path / "b"))
    assert run_once(VISION, config, console).skipped
    monkeypatch.setenv("TRICOUPLE_DATA", str(write_cifar10(tmp_path / "c").parent))
    with pytest.raises(RunError, match=r"have changed since: cifar10 has 7 files, 4 then: choose"):
        run_once(VISION, config, console)
    assert cli.main(["evaluate", str(folder.path)]) == 2
    other = write_cifar10(tmp_path / "d", batches=(1, 2), n=30).parent
    with pytest.raises(RunError, match=r"files in cifar10 have other names or sizes"):
        run_once(VISION, tiny(*PUBLISHED, f"data.root={other}"), console)
    monkeypatch.setenv("TRICOUPLE_DATA", str(tmp_path / "nowhere"))  # nothing that contradicts
    assert run_once(VISION, config, console).skipped


def test_a_published_set_is_noted_once_it_is_downloaded(tmp_path, tiny, console):
    def download(config):
        write_cifar10(tmp_path)
        return VISION.load(config)

    config = tiny(*PUBLISHED, f"data.root={tmp_path}")
    finished = run_once(replace(VISION, load=download), config, console)
    assert json.loads(finished.folder.data.read_text()) == finished.evaluation["files"] != {}
    assert run_once(VISION, config, console).skipped


def test_a_run_that_noted_nothing_of_published_data_is_accepted(tmp_path, tiny, console):
    write_cifar10(tmp_path)
    config = tiny(*PUBLISHED, f"data.root={tmp_path}")
    folder = run_once(VISION, config, console).folder
    folder.data.unlink()
    content = folder.read_evaluation()
    del content["files"]
    folder.evaluation.write_text(json.dumps(content))
    assert run_once(VISION, config, console).skipped


@pytest.mark.parametrize(
    ("name", "write", "count"),
    [("mnist", write_mnist, 4), ("svhn", write_svhn, 2), ("cifar100", write_cifar100, 3),
     ("tiny_imagenet", write_tiny_imagenet, 17), ("digits", lambda root: None, 0)],
)  # fmt: skip
def test_files_of_published_sets_are_found(name, write, count, tmp_path):
    write(tmp_path)
    found = images.published_files(name, tmp_path)[1]
    assert len(found) == count
    assert all(path.is_file() for path in found)


def test_packed_files_count_where_there_are_no_others(tmp_path):
    folder = write_mnist(tmp_path, packed=True)
    names = [path.name for path in images.published_files("mnist", tmp_path)[1]]
    assert names == sorted(path.name for path in folder.iterdir())
    (folder / names[0].removesuffix(".gz")).write_bytes(b"")
    assert images.published_files("mnist", tmp_path)[1][0].suffix == ""


def test_a_listing_tells_folders_apart_and_ignores_the_order(tmp_path):
    write_classes(tmp_path, {"a": 2, "b": 1})
    files = sorted(tmp_path.rglob("*.png"))
    assert listing(files) == listing(reversed(files))
    assert {Path(name).name: part["files"] for name, part in listing(files).items()} == {
        "a": 2,
        "b": 1,
    }
    assert json.loads(json.dumps(listing(files))) == listing(files)
