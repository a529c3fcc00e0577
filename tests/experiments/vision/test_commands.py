"""The commands: one run, sweeps, evaluations, and errors in one line."""

import json
from unittest.mock import Mock

import pytest
import torch

from tricouple_lab import cli
from tricouple_lab.experiments.runs.command import Job, sweep
from tricouple_lab.experiments.runs.folder import RunFolder
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.vision import VISION


def train(config, console):
    return run_once(VISION, config, console)


def test_train_prints_a_table_that_tells_the_features_apart(words, tiny, capsys):
    assert cli.main(["train", *words]) == 0
    shown = capsys.readouterr().out
    for word in ("penultimate", "embedding", "k-NN", "linear", "359 test images"):
        assert word in shown
    assert VISION.folder(tiny()).evaluation.exists()


def test_show_prints_the_settings_and_runs_nothing(words, tiny, capsys):
    assert cli.main(["train", *words, "loss=iot", "--show"]) == 0
    shown = capsys.readouterr().out
    assert VISION.folder(tiny("loss=iot")).path.name in shown.replace("\n", "")
    assert "epsilon: 0.1" in shown
    assert not VISION.folder(tiny("loss=iot")).path.exists()


def test_evaluate_uses_the_settings_that_it_is_given(tiny, console, capsys):
    folder = train(tiny(), console).folder
    before = folder.read_evaluation()
    assert cli.main(["evaluate", str(folder.path), "evaluation.neighbours=5"]) == 0
    assert "k = 5" in capsys.readouterr().out.replace("\n", " ")
    after = json.loads(folder.evaluation.read_text())
    assert after["settings"]["neighbours"] == 5
    assert after["accuracy"]["penultimate/linear"] == before["accuracy"]["penultimate/linear"]


def test_evaluate_computes_everything_on_the_device_of_the_run(tiny, console, monkeypatch):
    from tricouple_lab.experiments import vision

    wanted = torch.device("cpu", 0)
    used = []

    def recorded(function):
        def call(*args, **options):
            used.append((function.__name__, options["device"]))
            return function(*args, **options)

        return call

    folder = train(tiny(), console).folder
    monkeypatch.setattr(vision, "device_of", lambda _: wanted)
    for name in ("extract", "evaluate_features"):
        monkeypatch.setattr(vision, name, recorded(getattr(vision, name)))
    assert cli.main(["evaluate", str(folder.path)]) == 0
    assert used == [("extract", wanted)] * 2 + [("evaluate_features", wanted)]


def test_evaluate_takes_the_last_epoch_of_a_run_that_is_not_finished(
    tiny, console, capsys, monkeypatch
):
    with monkeypatch.context() as context:
        context.setattr(RunFolder, "write_trained", Mock(side_effect=KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            train(tiny(), console)
    folder = VISION.folder(tiny())
    assert cli.main(["evaluate", str(folder.path)]) == 0
    assert folder.read_evaluation()["epoch"] == 2
    assert folder.checkpoint.exists()


def test_evaluate_refuses_a_run_without_weights(tiny, capsys):
    folder = VISION.folder(tiny())
    folder.claim(tiny(), {})
    assert cli.main(["evaluate", str(folder.path)]) == 2
    assert "has no weights yet" in capsys.readouterr().err


def test_a_job_of_a_sweep_is_a_process_that_leaves_a_finished_run(words, tiny, console):
    (job,) = sweep([*words, "training.epochs=1"], console)
    assert job == Job(job.words, 0)
    assert VISION.folder(tiny("training.epochs=1")).evaluation.exists()
