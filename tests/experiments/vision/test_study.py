"""Studies: the same search for every loss, the test set last, and nothing computed twice."""

import json
from dataclasses import replace

import pytest

from tricouple.conf.compose import ConfigurationError
from tricouple.conf.schema import Study
from tricouple.experiments.runs.records import Records, shortened
from tricouple.experiments.runs.study import FINAL, LEARNING_RATE, SHARPNESS, Trial, run_block
from tricouple.experiments.vision import study_runs
from tricouple.experiments.vision.study_runs import StudyRuns, read_study
from tricouple.report.read import read_runs
from tricouple.training.module import DivergenceError

GRID = Study(
    name="grid",
    base=[],
    blocks=[],
    losses=["iot", "neg_mmiot"],
    sharpness=[3, 10, 100],
    learning_rates=[1e-3, 3e-3],
    seeds=[5, 6],
)


def test_sharpness_then_learning_rate_then_all_seeds():
    done: list[Trial] = []

    def measure(trial: Trial) -> float:
        done.append(trial)
        peak = {"iot": 10, "neg_mmiot": 100}[trial.loss]
        return (trial.sharpness == peak) + (trial.learning_rate == 3e-3) * (trial.loss == "iot")

    run_block(GRID, ("data=mnist",), measure)
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


def test_only_final_trials_see_the_test_set():
    trial = Trial(SHARPNESS, ("data=mnist",), "iot", 3, 1e-3, 0)
    assert "evaluation.part=validation" in trial.words()
    assert "evaluation.part=validation" in replace(trial, part=LEARNING_RATE).words()
    assert "evaluation.part=test" in replace(trial, part=FINAL).words()


def test_the_study_of_the_project_gives_every_loss_the_same_budget():
    study = read_study("vision_cpu")
    assert study.losses == ["infonce", "invaspread", "iot", "pushpull", "neg_mmiot"]
    assert len(study.seeds) >= 3
    assert 100 in study.sharpness  # the paper's, for its own losses
    words = {tuple(word.split("=")[0] for word in block) for block in study.blocks}
    assert len(words) == 1
    assert not any("loss" in name for name in next(iter(words)))


def test_unknown_studies_are_answered_with_the_known_ones():
    with pytest.raises(ConfigurationError, match="choose one of vision_cpu"):
        read_study("vision_gpu")


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
    real, calls = study_runs.train, []

    def interrupted(config, console):
        if len(calls) == 3:
            raise KeyboardInterrupt
        calls.append(config)
        return real(config, console)

    monkeypatch.setattr(study_runs, "train", interrupted)
    with pytest.raises(KeyboardInterrupt):
        StudyRuns(study, tmp_path / "out", tmp_path / "runs", console).go()
    assert len(Records(tmp_path / "out" / "runs.jsonl").by_id) == 3

    monkeypatch.setattr(study_runs, "train", lambda *given: calls.append(given) or real(*given))
    StudyRuns(study, tmp_path / "out", tmp_path / "runs", console).go()
    assert len(calls) == 5  # two of sharpness, one of the learning rate, two final
    monkeypatch.setattr(study_runs, "train", None)
    StudyRuns(study, tmp_path / "out", tmp_path / "runs", console).go()

    assert not list((tmp_path / "runs").iterdir())
    runs = read_runs(tmp_path / "out" / "runs.jsonl")  # as the report reads them
    assert [run.part for run in runs] == [SHARPNESS, SHARPNESS, LEARNING_RATE, FINAL, FINAL]
    assert [run.config["evaluated_on"] for run in runs] == ["validation"] * 3 + ["test"] * 2
    assert all(run.curves["step"][-1] == 2 for run in runs)
    lines = (tmp_path / "out" / "runs.jsonl").read_text().splitlines()
    record = json.loads(lines[-1])
    assert 0 <= record["metrics"]["penultimate/knn"] <= 1
    assert record["config"]["sharpness"] in (10, 100)
    assert record["provenance"]["versions"]["torch"]
    assert len(lines[-1]) < 5000
    head = json.loads((tmp_path / "out" / "study.json").read_text())
    assert (head["kind"], head["name"]) == ("vision", "grid")

    changed = replace(study, base=[*study.base, "training.weight_decay=0.1"])
    with pytest.raises(ValueError, match="was run with other settings"):
        StudyRuns(changed, tmp_path / "out", tmp_path / "runs", console).go()


def test_a_run_that_diverges_is_a_result_of_accuracy_zero(study, console, tmp_path, monkeypatch):
    def diverge(config, console):
        raise DivergenceError("the loss is nan")

    monkeypatch.setattr(study_runs, "train", diverge)
    runs = StudyRuns(study, tmp_path / "out", tmp_path / "runs", console)
    runs.go()
    assert {record["status"] for record in runs.records.by_id.values()} == {"diverged"}
    assert len(read_runs(tmp_path / "out" / "runs.jsonl")) == 5


def test_broken_records_are_named_with_their_line(tmp_path):
    path = tmp_path / "runs.jsonl"
    path.write_text('{"id": "a"}\nno json\n')
    with pytest.raises(ValueError, match=r"runs\.jsonl, line 2 is not a record"):
        Records(path)


def test_records_hold_six_digits():
    assert shortened([{"a": (1 / 3, 12345678, None, "x")}]) == [
        {"a": [0.333333, 12345678, None, "x"]}
    ]
