"""Runs: trained, evaluated, skipped when finished, continued when cut off, refused when wrong."""

import errno
import json
import math
import os
import signal
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch

from experiments.conftest import rows
from tricouple_lab import names
from tricouple_lab.conf.schema import Train
from tricouple_lab.data import images
from tricouple_lab.data.images import ImageSet
from tricouple_lab.experiments.encoder import load_encoder
from tricouple_lab.experiments.runs import run
from tricouple_lab.experiments.runs.folder import RunError, RunFolder
from tricouple_lab.experiments.runs.identity import digest, former_digest
from tricouple_lab.experiments.runs.record import Store
from tricouple_lab.experiments.vision import VISION, load_images
from tricouple_lab.files import CheckpointError, WriteError, load_tensors
from tricouple_lab.report.read import read_study
from tricouple_lab.training.module import LossTraining

LOSSES = [key for key, loss in names.LOSSES.items() if loss.within]


def train(config, console, kind=VISION):
    return run.run_once(kind, config, console)


def shown(console) -> str:
    return console.file.getvalue()


# --- every loss, in both settings ----------------------------------------------------------------


@pytest.mark.parametrize("setting", ["scl", "ucl"])
@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains_in_every_setting(tiny, console, loss, setting):
    narrow = ["loss.hidden=16"] if loss == "byol" else []
    config = tiny(f"loss={loss}", f"setting={setting}", "training.epochs=1", *narrow)
    finished = train(config, console)
    accuracy = finished.evaluation["accuracy"]
    assert set(accuracy) == {
        f"{kind}/{measure}"
        for kind in ("penultimate", "embedding")
        for measure in ("linear", "knn")
    }
    before, after = rows(finished.folder.path)
    assert (before["epoch"], after["epoch"], after["step"]) == ("0", "1", "3")
    assert math.isfinite(float(after["loss"]))


# --- a finished run ------------------------------------------------------------------------------


def test_a_run_leaves_its_settings_curves_weights_and_evaluation(tiny, console):
    config = tiny()
    folder = train(config, console).folder
    assert folder == VISION.folder(config)
    left = {path.name for path in folder.path.iterdir()}
    assert left == {
        "config.yaml", "metrics.csv", "tensorboard", "encoder.pt", "evaluation.json",
        "study.json", "runs.jsonl", "gallery.npz",
    }  # fmt: skip
    assert folder.read(Train) == config
    table = rows(folder.path)
    assert [row["epoch"] for row in table] == ["0", "1", "2"]
    for name in ("nc1", "nc2_std", "nc2_deviation", "effective_rank", "alpha", "beta"):
        assert all(float(row[name]) == float(row[name]) for row in table), name
    record = json.loads(folder.evaluation.read_text())
    assert record["epoch"] == 2
    assert record["result"]["n_test"] == 359
    assert record["result"]["penultimate"]["confusion"]
    assert record["curves"]["loss"][0] is None
    assert record["provenance"]["versions"]["torch"]
    (line,) = Store(folder.path).records().values()
    assert (line["id"], line["status"], line["steps"]) == (folder.path.name, "done", 6)
    assert line["metrics"]["penultimate/knn"] == pytest.approx(
        record["accuracy"]["penultimate/knn"], rel=1e-5
    )


def test_a_finished_run_is_skipped_with_a_word(tiny, console):
    first = train(tiny(), console)
    second = train(tiny(), console, replace(VISION, load=None))  # nothing may be loaded
    assert second.skipped
    assert not first.skipped
    assert second.evaluation == first.evaluation
    assert f"Already finished: {first.folder.path}" in shown(console)


def test_a_run_of_the_version_before_is_read_and_becomes_a_study(tiny, console):
    folder = train(tiny(), console).folder
    now = Store(folder.path).records()
    for name in ("study.json", "runs.jsonl"):
        (folder.path / name).unlink()
    folder.config.write_text(folder.config.read_text().replace("_target_:", "target:"))
    assert train(tiny(), console).skipped
    assert Store(folder.path).records() == now
    assert read_study(folder.path).kind == "vision"


def test_a_run_from_before_the_packages_were_split_is_read(tiny, console):
    words = ("loss=byol", "loss.hidden=16", "training.epochs=1")
    folder = train(tiny(*words), console).folder
    written = folder.config.read_text()
    assert "_target_: tricouple_lab.training.byol.BYOL" in written
    folder.config.write_text(written.replace("tricouple_lab.", "tricouple."))
    assert train(tiny(*words), console).skipped
    assert len(load_encoder(folder.path).classes) == 10


def test_another_evaluation_does_not_train_again(tiny, console, monkeypatch):
    words = ("data.validation_size=50",)
    first = train(tiny(*words, "evaluation.part=validation"), console)
    monkeypatch.setattr(run, "Fitting", None)  # no training
    second = train(tiny(*words, "evaluation.part=test"), console)
    assert second.folder == first.folder
    assert first.evaluation["result"]["n_test"] == 50
    assert second.evaluation["result"]["n_test"] == 359
    assert first.evaluation["result"]["n_train"] == 150


def test_equal_settings_give_equal_numbers_and_other_seeds_others(tiny, console, tmp_path):
    here = train(tiny(), console)
    there = train(tiny(f"runs={tmp_path / 'elsewhere'}"), console)
    other = train(tiny("seed=1"), console)
    assert rows(here.folder.path) == rows(there.folder.path) != rows(other.folder.path)
    assert here.evaluation["accuracy"] == there.evaluation["accuracy"]


# --- an interrupted run --------------------------------------------------------------------------


def test_a_killed_run_continues_to_the_same_numbers(words, tiny, console, tmp_path, killed):
    more = ["setting=ucl", "training.epochs=4"]
    whole = train(tiny(*more, f"runs={tmp_path / 'whole'}"), console)
    folder = VISION.folder(tiny(*more))
    killed(2, "train", *words, *more)
    assert not folder.evaluation.exists()
    assert len(load_tensors(folder.checkpoint)["callbacks"]["History"]["rows"]) - 1 == 2
    resumed = train(tiny(*more), console)
    assert "Continuing" in shown(console)
    assert rows(resumed.folder.path) == rows(whole.folder.path)
    assert resumed.evaluation["accuracy"] == whole.evaluation["accuracy"]
    assert not folder.checkpoint.exists()


def test_a_full_disk_stops_the_run_and_loses_nothing(tiny, console, tmp_path, monkeypatch):
    config = tiny("training.epochs=4")
    whole = train(tiny("training.epochs=4", f"runs={tmp_path / 'whole'}"), console)
    save, saved = torch.save, []

    def save_twice(content, file):
        if len(saved) == 2:
            file.write(b"a part of the checkpoint")
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        saved.append(content["epoch"])
        save(content, file)

    with monkeypatch.context() as context:
        context.setattr(torch, "save", save_twice)
        with pytest.raises(WriteError, match=r"last\.ckpt: No space left on device"):
            train(config, console)
    folder = VISION.folder(config)
    assert load_tensors(folder.checkpoint)["epoch"] == saved[-1] == 1
    resumed = train(config, console)
    assert rows(resumed.folder.path) == rows(whole.folder.path)


def test_an_interrupt_ends_the_run_as_one(tiny, console, monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    with monkeypatch.context() as context:
        context.setattr(LossTraining, "loss", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), console)
    assert signal.getsignal(signal.SIGINT) is before
    (run,) = read_study(VISION.folder(tiny()).path).runs
    assert (run.status, run.curves["step"].tolist()) == ("partial", [0])
    assert train(tiny(), console).evaluation["epoch"] == 2
    (run,) = read_study(VISION.folder(tiny()).path).runs
    assert (run.status, run.steps) == ("done", 6)


def test_a_run_killed_before_its_evaluation_is_only_evaluated(tiny, console, monkeypatch):
    with monkeypatch.context() as context:
        context.setattr(run.Run, "evaluate", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), console)
    monkeypatch.setattr(run, "Fitting", None)
    assert train(tiny(), console).evaluation["epoch"] == 2


# --- other networks and precisions ---------------------------------------------------------------


@pytest.mark.parametrize(
    "more",
    [
        ["trainer.precision=bf16-mixed"],
        ["backbone.name=test_vit", "setting=ucl"],
        ["+trainer.gradient_clip_val=0.1", "setting.views=2", "setting.augment=true"],
    ],
    ids=["bf16", "transformer", "scl with two views"],
)
def test_other_ways_to_train_finish_with_finite_losses(tiny, console, more):
    finished = train(tiny(*more, "training.epochs=1"), console)
    assert math.isfinite(float(rows(finished.folder.path)[-1]["loss"]))
    assert finished.evaluation["accuracy"]["penultimate/knn"] > 0.1


# --- what is refused -----------------------------------------------------------------------------


def test_a_folder_of_another_configuration_is_refused(tiny, console, tmp_path):
    run = f"run={tmp_path / 'mine'}"
    train(tiny(run), console)
    with pytest.raises(RunError, match=r"training\.epochs is 2 there and 3 here"):
        train(tiny(run, "training.epochs=3"), console)
    with pytest.raises(RunError, match=r"loss\.name is neg_mmiot there and infonce here"):
        train(tiny(run, "loss=infonce"), console)
    assert RunFolder(tmp_path / "mine").evaluation.exists()


def test_a_checkpoint_of_another_configuration_is_refused(tiny, console, monkeypatch):
    one, other = tiny("seed=1"), tiny("seed=2")
    with monkeypatch.context() as context:
        context.setattr(RunFolder, "write_trained", Mock(side_effect=WriteError("full")))
        for config in (one, other):
            with pytest.raises(WriteError):
                train(config, console)
    foreign = VISION.folder(one).checkpoint.read_bytes()
    VISION.folder(other).checkpoint.write_bytes(foreign)
    with pytest.raises(CheckpointError, match="of another configuration"):
        train(other, console)
    assert VISION.folder(other).checkpoint.read_bytes() == foreign


def test_weights_without_a_configuration_are_not_touched(tiny, console):
    folder = VISION.folder(tiny())
    folder.path.mkdir(parents=True)
    folder.checkpoint.write_bytes(b"somebody's")
    with pytest.raises(RunError, match=r"has weights but no config\.yaml"):
        train(tiny(), console)
    assert folder.checkpoint.read_bytes() == b"somebody's"


def test_a_folder_of_another_version_is_named_and_not_touched(tiny, console):
    folder = VISION.folder(tiny())
    folder.path.mkdir(parents=True)
    folder.config.write_text("a_setting_of_old: 3\n")
    complaint = rf"{folder.config}: .*a_setting_of_old.*another version .* run=FOLDER, or delete"
    with pytest.raises(RunError, match=complaint):
        train(tiny(), console)
    assert folder.config.read_text() == "a_setting_of_old: 3\n"


@pytest.mark.parametrize(
    ("more", "complaint"),
    [
        (
            ["training.batch_size=201"],
            "training.batch_size is 201, but there are only 200 training images",
        ),
        (["training.batch_size=1"], "training.batch_size must be at least 2"),
        (["training.learning_rate=-1"], "training.learning_rate must be finite and > 0"),
        (["training.epochs=0"], "training.epochs must be at least 1"),
        (["evaluation.part=all"], "evaluation.part must be one of 'test', 'validation'"),
        (["evaluation.part=validation"], "needs data.validation_size above 0"),
        (["data.validation_size=200"], "held_out is 200"),
        (["data.train_size=2000"], "data.train_size is 2000, but there are only 1438 images"),
        (["data.train_size=5"], "data.train_size is 5, but there are 10 classes"),
        (["backbone.name=resnet19"], "is not a model of timm: did you mean"),
        (["loss.temperature=-1"], "loss.temperature must be finite and > 0"),
        (["setting=ucl", "setting.views=1"], "setting.views is 1"),
        (["trainer.accelerator=cpu", "+trainer.speed=9"], "trainer.speed is not a flag"),
        (["+trainer.accumulate_grad_batches=2"], "compares the samples of one batch"),
        (["data=folder", "data.root=missing"], "missing is not a folder"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(tiny, console, more, complaint):
    config = tiny(*more)
    with pytest.raises(ValueError) as refused:  # noqa: PT011 - the message is checked below
        train(config, console)
    assert complaint in str(refused.value)
    assert not VISION.folder(config).path.exists()


def test_a_class_with_one_image_is_refused_in_scl(tiny, console, monkeypatch):
    whole = images.load("digits")
    kept = torch.cat([(whole.train.labels != 3).nonzero(), (whole.train.labels == 3).nonzero()[:1]])
    lonely = whole.train.take(kept.flatten())
    monkeypatch.setattr(
        images, "load", lambda *_, **__: type(whole)(**{**vars(whole), "train": lonely})
    )
    with pytest.raises(ValueError, match="class '3' of data 'digits' has one training image"):
        train(tiny("data.train_size=null"), console)


def test_images_without_labels_train_and_say_why_they_are_not_evaluated(tiny, console, monkeypatch):
    found = images.load("digits")
    blank = {"train": ImageSet(found.train.images), "probe": None, "test": None, "classes": ()}
    monkeypatch.setattr(images, "load", lambda *_, **__: type(found)(**{**vars(found), **blank}))
    with pytest.raises(ValueError, match=r"backbone\.head_dim must be given"):
        train(tiny("setting=ucl"), console)
    finished = train(tiny("setting=ucl", "backbone.head_dim=8"), console)
    assert finished.evaluation["accuracy"] is None
    assert finished.evaluation["result"] == "there are no labelled images to evaluate on"
    assert "alpha" not in rows(finished.folder.path)[0]


# --- names ---------------------------------------------------------------------------------------


def test_the_folder_says_what_the_run_is_and_only_training_changes_it(tiny):
    name = VISION.folder(tiny("seed=7", "loss=iot")).path.name
    assert name.startswith("digits-scl-iot-c10-test_resnet-seed7-")
    earlier = f"digits-scl-neg_mmiot-c10-test_resnet-seed0-{former_digest(tiny())[:8]}"
    before = VISION.folder(tiny()).path.with_name(earlier)  # as the version before named it
    assert VISION.folder(tiny()).path != before
    before.mkdir(parents=True)
    assert VISION.folder(tiny()).path == before
    same = ("evaluation.probe_epochs=9", "data.root=elsewhere", "progress=true", "runs=elsewhere")
    assert {digest(tiny(word)) for word in same} == {digest(tiny())}
    others = ("seed=1", "training.epochs=9", "loss.n_iters=9", "trainer.precision=bf16-mixed")
    assert len({digest(tiny(word)) for word in ("seed=0", *others)}) == 5


def test_a_limit_of_a_scale_is_no_demand(tiny):
    def size(*words):
        return len(load_images(tiny("training.batch_size=16", *words)).samples)

    assert size("data.train_size=null") == 1438
    assert size("data.train_size=null", "data.max_train_size=30") == 30
    assert size("data.train_size=40", "data.max_train_size=30") == 40
    limits = ("data.max_train_size=30", "data.max_train_size=50")
    assert len({digest(tiny(word)) for word in limits}) == 1  # train_size overrules both
    assert len({digest(tiny("data.train_size=null", word)) for word in limits}) == 2


# --- the claim -----------------------------------------------------------------------------------


@pytest.mark.slow
def test_resnet18_learns_digits_in_seconds(tiny, console):
    config = tiny(
        "backbone=resnet18", "data.train_size=null", "data.image_size=16", "training.epochs=4"
    )
    accuracy = train(config, console).evaluation["accuracy"]
    assert accuracy["penultimate/knn"] >= 0.95
    assert accuracy["embedding/knn"] >= 0.95
