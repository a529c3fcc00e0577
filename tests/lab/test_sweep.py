"""Many runs: choice on validation data, blocks, workers, what is missing, failures."""

import json
import re
from dataclasses import replace

import pytest

from tricouple_lab.cli import cluster_parameters, main
from tricouple_lab.commands.synthetic import summary
from tricouple_lab.names import UserError
from tricouple_lab.runs.sweep import Loaded, Plan, beyond, has_setting, read_plan, sweep
from tricouple_lab.tasks.base import task_of
from tricouple_lab.tasks.mixture import Mixture

MIXTURE = ("data.n_classes=3", "training.batch_size=12", "training.epochs=1", "logger=none")
ROWS = (("loss=infonce",), ("loss=neg_mmiot",))


@pytest.fixture(autouse=True)
def no_loaded_data():
    """Nothing that another test has loaded, with epochs of another length."""
    Loaded.last = None
    yield
    Loaded.last = None


@pytest.fixture
def short_epochs(monkeypatch):
    """Epochs of five steps."""
    monkeypatch.setattr("tricouple_lab.data.generated.BATCHES", 5)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "runs.jsonl").read_text().splitlines()]


@pytest.mark.usefixtures("short_epochs")
def test_c_is_chosen_on_validation_data_with_other_seeds(tmp_path):
    said = []
    plan = Plan(
        task_of("mixture"),
        (*ROWS, ("loss=vicreg",)),
        MIXTURE,
        seeds=(0, 1),
        grid=(3, 30),
        choose_seeds=(100,),
        limits=(3, 30),
    )
    table = sweep(plan, tmp_path, say=said.append)
    assert len(table) == 3
    found = lines_of(tmp_path)
    tried = [line for line in found if line["stage"] == "choose"]
    final = [line for line in found if line["stage"] == "final"]
    assert {line["config"]["loss"]["name"] for line in tried} == {"infonce", "neg_mmiot"}
    assert {line["config"]["seed"] for line in tried} == {100}
    assert [line["config"]["seed"] for line in final] == [0, 1] * 3
    for loss in ("infonce", "neg_mmiot"):
        its = [line | line["config"]["loss"] for line in found]
        its = [line for line in its if line["name"] == loss]
        scores = {row["sharpness"]: row["validation"] for row in its if row["stage"] == "choose"}
        best = max(scores, key=lambda c: (scores[c], -c))
        assert {row["sharpness"] for row in its if row["stage"] == "final"} == {best}
    assert json.loads((tmp_path / "plan.json").read_text())["planned"] == 6
    assert "<script" not in (tmp_path / "report.html").read_text()
    before = (tmp_path / "runs.jsonl").read_text()
    said.clear()
    sweep(plan, tmp_path, say=said.append)  # everything is there
    assert (tmp_path / "runs.jsonl").read_text() == before
    assert not said


@pytest.mark.usefixtures("short_epochs")
def test_what_is_missing_is_done_and_what_fails_is_said_at_the_end(tmp_path):
    good = Plan(task_of("mixture"), ROWS, MIXTURE, seeds=(0,))
    sweep(good, tmp_path, say=lambda line: None)
    (first, _) = (tmp_path / "runs.jsonl").read_text().splitlines()
    (tmp_path / "runs.jsonl").write_text(first + "\n")
    said = []
    row = ("loss=infonce", "loss.sharpness=5", "trainer.accelerator=abacus")
    bad = replace(good, rows=(*ROWS, row))
    with pytest.raises(UserError, match=r"1 runs failed, first: .*abacus.*accelerator"):
        sweep(bad, tmp_path, say=said.append)
    assert len(lines_of(tmp_path)) == 2
    assert sum("failed" in line for line in said) == 1


def test_a_sweep_that_cannot_work_is_refused_before_a_run(tmp_path):
    plan = Plan(task_of("mixture"), ROWS, MIXTURE, seeds=(0,))
    wrong = replace(plan, rows=(("loss=infonce", "loss.temperature=0"),))
    lost = replace(plan, grid=(3.0,), setting="loss.sharpnes")
    for bad, workers, why in (
        (wrong, 1, "temperature"),
        (lost, 1, "none of"),
        (plan, 0, "workers"),
    ):
        with pytest.raises(UserError, match=why):
            sweep(bad, tmp_path, workers=workers)
    assert not any(tmp_path.iterdir())


def numbers(folder):
    """Metrics by run; a hundred steps amplify how sums are rounded in another process."""
    return {line["id"]: pytest.approx(line["after"], rel=1e-3) for line in lines_of(folder)}


def test_workers_give_the_numbers_of_one_process(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text(
        f"rows: [[loss=infonce], [loss=neg_mmiot]]\nseeds: [0]\nbase: [{', '.join(MIXTURE)}]\n"
    )
    plan = read_plan(file, task_of("mixture"))
    assert (plan.rows, plan.base, plan.seeds) == (ROWS, MIXTURE, (0,))
    sweep(plan, tmp_path / "one", say=lambda line: None)
    sweep(plan, tmp_path / "many", workers=2, say=lambda line: None)
    assert len(numbers(tmp_path / "many")) == 2
    assert {line["id"]: line["after"] for line in lines_of(tmp_path / "many")} == numbers(
        tmp_path / "one"
    )


def test_a_cluster_gives_the_numbers_of_this_machine(tmp_path):
    words = (*MIXTURE, "data.per_class=8")
    plan = Plan(task_of("mixture"), ROWS[:1], words, seeds=(0,))
    sweep(plan, tmp_path / "one", say=lambda line: None)
    cluster = cluster_parameters("submitit,timeout_min=10")  # another process here
    sweep(plan, tmp_path / "many", cluster=cluster, say=lambda line: None)
    assert {line["id"]: line["after"] for line in lines_of(tmp_path / "many")} == numbers(
        tmp_path / "one"
    )
    assert list((tmp_path / "many" / "jobs").iterdir())


@pytest.mark.usefixtures("short_epochs")
def test_a_run_that_diverges_is_recorded_without_measurements_and_not_repeated(
    tmp_path, monkeypatch
):
    def loss(self, config, model, batch, step):
        factor = float("nan") if config.loss["name"] == "neg_mmiot" else 1.0
        return factor * model.encoder(batch[0]).square().mean()

    monkeypatch.setattr(Mixture, "loss", loss)
    said = []
    plan = Plan(
        task_of("mixture"), ROWS, MIXTURE, seeds=(0,), grid=(3,), choose_seeds=(9,), limits=(3, 3)
    )
    table = sweep(plan, tmp_path, say=said.append)
    assert sum("diverged: the loss is nan in epoch 1, step 1" in line for line in said) == 2
    status = [(line["config"]["loss"]["name"], line["status"]) for line in lines_of(tmp_path)]
    assert status == [("infonce", "done"), ("neg_mmiot", "diverged")] * 2
    assert list(table.index) == ["InfoNCE"]
    assert "1 of 2 planned runs are missing" in (tmp_path / "report.html").read_text()
    assert [*summary(tmp_path)["outcome"]][-1] == "diverged"
    said.clear()
    sweep(plan, tmp_path, say=said.append)
    assert not said


def test_a_grid_is_extended_while_its_best_value_lies_at_an_edge():
    assert beyond({3.0: 0.5, 10.0: 0.7}, (0.3, 1000)) == [31.623]
    assert beyond({3.0: 0.9, 10.0: 0.7}, (0.3, 1000)) == [0.949]
    assert beyond({3.0: 0.9, 10.0: 0.7}, (1, 1000)) == []
    assert beyond({1.0: 0.1, 3.0: 0.9, 10.0: 0.7}, (0.3, 1000)) == []


def test_a_method_without_a_sharpness_is_not_asked_for_one():
    plan = Plan(task_of("mixture"), ROWS)
    assert has_setting(plan, ("loss=neg_mmiot",))
    assert not has_setting(plan, ("loss=vicreg",))
    assert not has_setting(plan, ("loss=byol",))


def test_a_dry_run_prints_a_command_for_each_run(capsys, tmp_path):
    words = ["loss=infonce,iot", "seed=range(0,3)", "data.root=a, b"]
    assert main(["train", "-m", "--dry-run", *words, "--out", str(tmp_path / "out")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 6
    assert lines[0] == "tricouple train loss=infonce 'data.root=a, b' seed=0"
    assert not (tmp_path / "out").exists()


def test_a_plan_with_an_unknown_field_is_refused(tmp_path):
    file = tmp_path / "plan.yaml"
    file.write_text("rowz: []\n")
    with pytest.raises(
        UserError, match=re.escape("rowz: Plan has no such argument (nearest: rows)")
    ):
        read_plan(file, task_of("mixture"))
