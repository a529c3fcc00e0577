"""Studies: the same search for every loss, the test set last, and nothing computed twice."""

import json
import os
import signal
import time
from dataclasses import replace
from threading import Thread
from unittest.mock import Mock

import pytest

from tricouple_lab import cli, provenance
from tricouple_lab.conf.compose import read_study
from tricouple_lab.conf.schema import Study, Train
from tricouple_lab.experiments.runs import study as study_module
from tricouple_lab.experiments.runs.record import Store
from tricouple_lab.experiments.runs.run import run_once
from tricouple_lab.experiments.runs.study import (
    EQUAL,
    FINAL,
    LEARNING_RATE,
    SHARPNESS,
    Trial,
    Trials,
    run_loss,
    run_study,
)
from tricouple_lab.experiments.vision import VISION
from tricouple_lab.options import CommandError
from tricouple_lab.report.read import read_runs
from tricouple_lab.training.module import DivergenceError, LossTraining

GRID = Study(
    name="grid",
    base=[],
    blocks=[],
    losses=["iot", "neg_mmiot"],
    sharpness=[3, 10, 100],
    learning_rates=[1e-3, 3e-3],
    seeds=[5, 6],
)


def test_at_equal_sharpness_what_was_not_chosen_is_measured_too():
    done: list[Trial] = []

    def measure(trial: Trial) -> float:
        done.append(trial)
        return {3: 0.2, 10: 0.9, 100: 0.1}[trial.sharpness]

    run_loss(replace(GRID, equal=True, learning_rates=[1e-3]), (), "iot", measure)
    assert [(t.part, t.sharpness, t.seed) for t in done[3:]] == [
        (FINAL, 10, 5), (FINAL, 10, 6),
        (EQUAL, 3, 5), (EQUAL, 3, 6), (EQUAL, 100, 5), (EQUAL, 100, 6),
    ]  # fmt: skip
    assert all("evaluation.part=test" in trial.words() for trial in done[3:])


def test_sharpness_then_learning_rate_then_all_seeds():
    done: list[Trial] = []

    def measure(trial: Trial) -> float:
        done.append(trial)
        peak = {"iot": 10, "neg_mmiot": 100}[trial.loss]
        return (trial.sharpness == peak) + (trial.learning_rate == 3e-3) * (trial.loss == "iot")

    for loss in GRID.losses:
        run_loss(GRID, ("data=mnist",), loss, measure)
    iot = [(t.part, t.sharpness, t.learning_rate, t.seed) for t in done if t.loss == "iot"]
    assert iot == [
        (SHARPNESS, 3, 1e-3, 5),
        (SHARPNESS, 10, 1e-3, 5),
        (SHARPNESS, 100, 1e-3, 5),
        (LEARNING_RATE, 10, 3e-3, 5),
        (FINAL, 10, 3e-3, 5),
        (FINAL, 10, 3e-3, 6),
    ]
    finals = {(t.sharpness, t.learning_rate) for t in done if t.part == FINAL and t != iot}
    assert finals == {(10, 3e-3), (100, 1e-3)}


def test_a_study_without_a_choice_has_final_runs_only():
    done: list[Trial] = []
    paper = replace(GRID, sharpness=[], learning_rates=[5e-3])
    run_loss(paper, (), "iot", lambda trial: done.append(trial) or 0.5)
    assert [(trial.part, trial.seed) for trial in done] == [(FINAL, 5), (FINAL, 6)]
    assert not any(word.startswith("loss.sharpness") for word in done[0].words())


def test_only_final_trials_see_the_test_set():
    trial = Trial(SHARPNESS, ("data=mnist",), "iot", 3, 1e-3, 0)
    assert "evaluation.part=validation" in trial.words()
    assert "evaluation.part=validation" in replace(trial, part=LEARNING_RATE).words()
    assert "evaluation.part=test" in replace(trial, part=FINAL).words()


def test_the_study_of_the_project_gives_every_loss_the_same_budget():
    study = read_study("vision_cpu", Train)
    assert study.losses == ["infonce", "invaspread", "iot", "pushpull", "neg_mmiot"]
    assert len(study.seeds) >= 3
    assert 100 in study.sharpness  # the paper's, for its own losses
    words = {tuple(word.split("=")[0] for word in block) for block in study.blocks}
    assert len(words) == 1
    assert not any("loss" in name for name in next(iter(words)))


def test_two_processes_do_not_do_a_loss_at_the_same_time(tmp_path, monkeypatch, console):
    trials = Trials(VISION, GRID, Store(tmp_path / "out"), tmp_path / "runs", {}, console)
    done: list[str] = []

    def work(study, block, loss, measure):
        done.append("begins")
        while loss == "iot" and "waiting for it" not in console.file.getvalue():
            time.sleep(0.01)
        done.append("ends")

    monkeypatch.setattr(study_module, "run_loss", work)
    crew = [Thread(target=trials.go, args=(("data=mnist",), "iot")) for _ in range(2)]
    for worker in crew:
        worker.start()
    for worker in crew:
        worker.join()
    assert done == ["begins", "ends"] * 2
    assert "Another process does data=mnist loss=iot" in console.file.getvalue()


@pytest.fixture
def study(words):
    base = [word for word in words if not word.startswith("runs=")]
    return replace(
        GRID,
        base=[*base, "training.epochs=1", "data.validation_size=50"],
        blocks=[["data=digits", "setting=scl"]],
        losses=["infonce"],
        sharpness=[10, 100],
        seeds=[0, 1],
    )


def test_a_study_keeps_a_record_a_run_and_continues_where_it_stopped(
    study, console, tmp_path, monkeypatch
):
    calls = []

    def go(study=study):
        run_study(VISION, study, tmp_path / "out", tmp_path / "runs", console)

    def interrupted(*given):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(given)
        return run_once(*given)

    monkeypatch.setattr(study_module, "run_once", interrupted)
    with pytest.raises(KeyboardInterrupt):
        go()
    assert len(Store(tmp_path / "out").records()) == 3

    monkeypatch.setattr(
        study_module, "run_once", lambda *given: calls.append(given) or run_once(*given)
    )
    go()
    assert len(calls) == 5  # two of sharpness, one of the learning rate, two final
    monkeypatch.setattr(study_module, "run_once", None)
    go()

    assert not list((tmp_path / "runs").iterdir())
    runs = read_runs(tmp_path / "out" / "runs.jsonl")  # as the report reads them
    assert [run.part for run in runs] == [SHARPNESS, SHARPNESS, LEARNING_RATE, FINAL, FINAL]
    assert [run.config["evaluated_on"] for run in runs] == ["validation"] * 3 + ["test"] * 2
    assert all(run.curves["step"][-1] == 2 for run in runs)
    lines = (tmp_path / "out" / "runs.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    assert 0 <= record["metrics"]["penultimate/knn"] <= 1
    assert record["config"]["sharpness"] in (10, 100)
    assert (record["steps"], record["status"]) == (2, "done")
    assert record["seconds"] > 0
    origin = record["provenance"]
    assert {"commit", "command", "system", "cpu", "cores", "load", "date"} <= origin.keys()
    assert origin["versions"]["torch"]
    assert len(lines[-1]) < 5000
    head = json.loads((tmp_path / "out" / "study.json").read_text())
    assert (head["kind"], head["name"]) == ("vision", "grid")

    with pytest.raises(CommandError, match="was run with other settings"):
        go(replace(study, base=[*study.base, "training.weight_decay=0.1"]))
    with pytest.raises(CommandError, match="holds another study, 'grid' of kind 'vision'"):
        go(replace(study, name="another"))


def test_a_record_of_the_version_before_counts(study, console, tmp_path, monkeypatch):
    one = replace(study, sharpness=[10], learning_rates=[1e-3], seeds=[0])
    run_study(VISION, one, tmp_path / "out", tmp_path / "runs", console)
    (record,) = Store(tmp_path / "out").records().values()
    old = {name: value for name, value in record.items() if name != "steps"}
    old["config"].pop("image_size")  # not recorded then
    old["provenance"] = {"date": "then", "versions": {}}
    (tmp_path / "out" / "runs.jsonl").write_text(json.dumps(old) + "\n")
    monkeypatch.setattr(study_module, "run_once", None)
    run_study(VISION, one, tmp_path / "out", tmp_path / "runs", console)
    changed = {"digits": {"files": 3, "bytes": 1, "digest": "of other files"}}
    Store(tmp_path / "out").append(old | {"files": changed})
    file = tmp_path / "digits.csv"
    file.write_text("0")
    kind = replace(VISION, published=lambda config: (tmp_path, [file]))
    with pytest.raises(CommandError, match=r"changed since digits-.* digits has 1 files, 3 then"):
        run_study(kind, one, tmp_path / "out", tmp_path / "runs", console)


def test_a_run_that_diverges_is_a_result_of_accuracy_zero(study, console, tmp_path, monkeypatch):
    monkeypatch.setattr(LossTraining, "loss", Mock(side_effect=DivergenceError("the loss is nan")))
    run_study(VISION, study, tmp_path / "out", tmp_path / "runs", console)
    records = Store(tmp_path / "out").records().values()
    assert {record["status"] for record in records} == {"diverged"}
    assert {(record["verdict"], record["steps"]) for record in records} == {("the loss is nan", 0)}
    assert len(read_runs(tmp_path / "out" / "runs.jsonl")) == 5


def test_workers_give_the_same_numbers(study, console, tmp_path):
    grid = replace(study, losses=["infonce", "iot"], sharpness=[], learning_rates=[1e-3], seeds=[0])
    for workers in (1, 2):
        out, runs = tmp_path / f"out{workers}", tmp_path / f"runs{workers}"
        run_study(VISION, grid, out, runs, console, workers=workers)
    one, two = (Store(tmp_path / f"out{workers}").records() for workers in (1, 2))
    assert one.keys() == two.keys()
    assert len(one) == 2
    for name, record in one.items():
        assert record["config"] == two[name]["config"]
        assert record["metrics"] == pytest.approx(two[name]["metrics"], abs=0.02)


class Deadly:
    """A network that ends the process that builds it."""

    def __call__(self, *_):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_worker_that_is_killed_ends_the_study_with_a_word(study, console, tmp_path):
    with pytest.raises(CommandError, match=r"a worker ended; .* start the study again"):
        run_study(
            replace(VISION, encoder=Deadly()), study, tmp_path, tmp_path / "r", console, workers=2
        )


def test_a_study_of_changed_sources_is_refused_unless_allowed(monkeypatch, capsys, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(provenance, "git_changes", lambda: "one line changed")
    assert cli.main(["train", "--study", "vision_cpu"]) == 2
    assert "commit them first, or give --allow-dirty" in capsys.readouterr().err
    asked = []
    monkeypatch.setattr(study_module, "run_study", lambda *given, **more: asked.append(given))
    given = ["train", "--study", "vision_cpu", "--allow-dirty", "--workers", "2"]
    assert cli.main(given) == 0
    assert str(asked[0][2]) == "results/vision"
    assert cli.main(["train", "--study", "vision_paper", "--allow-dirty"]) == 0
    assert str(asked[1][2]) == "results/vision_paper"
