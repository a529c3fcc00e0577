"""``tricouple reproduce``: every label of the paper, the paper's numbers, runs that go on."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tricouple_lab.cli import main
from tricouple_lab.experiments.reproduce import ablation, timing
from tricouple_lab.experiments.reproduce.command import ITEMS
from tricouple_lab.experiments.reproduce.items import LOSSES, Request, fill
from tricouple_lab.experiments.runs.record import DONE, Store, make_record
from tricouple_lab.provenance import collect_provenance
from tricouple_lab.report.page import asset

# Every table and figure of the paper, main text and appendix.
LABELS = {
    "fig:nc_synthetic_affine", "fig:dc_synthetic_affine", "tab:scl_ucl", "tab:clip",
    "fig:visual_final_synthetic", "fig:nc_synthetic", "fig:dc_synthetic",
    "tab:scl-mnist", "tab:scl-svhn", "tab:scl-CIFAR-10", "tab:scl-CIFAR-100",
    "tab:scl-tiny-imagenet", "tab:ucl-mnist", "tab:ucl-svhn", "tab:ucl-CIFAR-10",
    "tab:ucl-CIFAR-100", "tab:ucl-tiny-imagenet", "tab:hyperparameter_results",
    "fig:efficiency_trade_off", "tab:training_time_scl", "tab:training_time_ucl",
}  # fmt: skip


def test_every_table_and_figure_of_the_paper_has_an_item_and_is_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    labels = [label for item in ITEMS.values() for label in item.labels]
    assert sorted(labels) == sorted(LABELS)
    assert main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    for item in ITEMS.values():
        assert item.name in shown
        assert item.needs in shown
        assert all(f"{scale}: {words}" in shown for scale, words in item.time.items())


def test_an_unknown_item_is_answered_with_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "scl-cifar"]) == 2
    said = capsys.readouterr().err
    assert "no item 'scl-cifar': did you mean 'scl-cifar10'?" in said
    assert "times-ucl" in said


def request_in(folder: Path, scale: str = "cpu") -> Request:
    from rich.console import Console

    return Request(folder, scale, Console(quiet=True), 1, collect_provenance())


def record(**metrics: float) -> dict[str, Any]:
    return make_record(
        "", part="final", status=DONE, config={}, seconds=1.0, steps=3, provenance={},
        metrics=metrics,
    )  # fmt: skip


def test_runs_that_are_there_are_not_done_again_and_scales_do_not_mix(tmp_path: Path) -> None:
    done: list[str] = []

    def run(name: str) -> dict[str, Any]:
        done.append(name)
        return record()

    fill(request_in(tmp_path), "some", {"a": lambda: run("a")})
    fill(request_in(tmp_path), "some", {"a": lambda: run("a"), "b": lambda: run("b")})
    assert done == ["a", "b"]
    assert set(Store(tmp_path / "some").records()) == {"a", "b"}
    with pytest.raises(Exception, match=r"scale cpu → paper.*choose another folder"):
        fill(request_in(tmp_path, "paper"), "some", {"c": lambda: run("c")})


def test_the_ablation_has_all_cells_of_the_paper_with_its_numbers_and_iot_beside() -> None:
    rows = list(csv.DictReader(asset("paper_ablation.csv").splitlines()))
    cells = [(c.axis, float(c.value)) for c in ablation.CELLS if c.loss == "pushpull"]
    assert cells == [(row["axis"], float(row["value"])) for row in rows]
    assert len(cells) == 19
    assert sum(c.loss == "iot" for c in ablation.CELLS) == 5
    # The common cell of all four axes has one number in the paper.
    base = [r for r in rows if float(r["value"]) == ablation.BASE[r["axis"]]]
    assert {(row["linear"], row["knn"]) for row in base} == {("82.15", "82.66")}


def test_cells_that_are_one_loss_differ_in_tau_and_epsilon_alone() -> None:
    tau, eps = (
        ablation.Cell("pushpull", axis, 0.01).words() for axis in ("temperature", "epsilon")
    )
    assert "loss.temperature=0.01" in tau
    assert "loss.epsilon_pos=0.01" in eps
    assert [w for w in tau if "sharpness" in w] == ["loss.sharpness=1000"]
    assert [w for w in eps if "sharpness" in w] == ["loss.sharpness=1000"]


def test_the_table_of_the_ablation_sets_the_paper_beside_ours(tmp_path: Path) -> None:
    wanted = {
        f"{c.loss}-{c.axis}-{c.value:g}-seed0": lambda: (
            record(**{"penultimate/linear": 0.5, "penultimate/knn": 0.25})
            | {"config": {"data": "d", "backbone": "b", "epochs": 1, "batch_size": 2}}
        )
        for c in ablation.CELLS
    }
    fill(request_in(tmp_path), "ablation", wanted)
    shown = ablation.ITEM.show(tmp_path)
    sweeps = next(table for table in shown.tables if "PushPull: Sinkhorn" in table.caption)
    assert sweeps.rows[0] == ("1", "100", "50.00", "81.81", "25.00", "83.59")
    assert "c = 1000: 50.00 and 50.00 here, 88.94 and 60.78 in the paper" in shown.verdict[0]


def test_times_of_an_epoch_stand_beside_the_papers(tmp_path: Path) -> None:
    rows = list(csv.DictReader(asset("paper_times.csv").splitlines()))
    assert len(rows) == 2 * len(LOSSES) * len(timing.EPOCH) * 4
    item = ITEMS["times-scl"]
    config = {"setting": "scl", "data": "cifar100", "backbone": "resnet18", "steps_of_epoch": 196}
    seconds = {loss: 10.0 for loss in LOSSES} | {"neg_mmiot": 12.0}
    fill(request_in(tmp_path), "epoch_times", {"x": lambda: record(**seconds) | {"config": config}})
    shown = item.show(tmp_path)
    assert shown.tables[0].rows[-1] == ("Neg-MMIOT", "12.0", "1.200", "6.01", "1.866")
    assert "1.20 times as long as with InfoNCE here and 1.87 times in the paper" in shown.verdict[0]
    assert ITEMS["times-ucl"].show(tmp_path).verdict == ["Nothing has been run yet."]


def test_one_page_of_all_that_is_there(tmp_path: Path) -> None:
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    page = (tmp_path / "reproduce.html").read_text()
    assert (tmp_path / "reproduce.md").read_text() == "# The paper, run again\n"
    assert "0 of 21 tables and figures have been run" in page
    assert all(f'{name}"' in page for name in ITEMS)


def test_memory_of_a_loss_is_measured_in_its_own_process(tmp_path: Path) -> None:
    found = timing.weigh("iot", 1024, request_in(tmp_path, "smoke"))
    assert 1 < found["metrics"]["mebibytes"] < 100


def test_an_item_runs_in_seconds_at_smoke_scale_and_only_once(tmp_path: Path) -> None:
    words = ["reproduce", "times-scl", "--scale", "smoke", "--out", str(tmp_path), "--allow-dirty"]
    assert main(words) == 0
    found = ITEMS["times-scl"].show(tmp_path / "smoke")
    assert [row[0] for row in found.tables[0].rows][-1] == "Neg-MMIOT"
    runs = tmp_path / "smoke" / "epoch_times" / "runs.jsonl"
    before = runs.read_text()
    assert main(words) == 0
    assert runs.read_text() == before
