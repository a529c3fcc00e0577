"""The paper's tables and figures: all are there, join the paper's numbers, and run."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
import reproduce.__main__ as command
from reproduce.items import ITEMS, plans
from reproduce.tables import images, papers, table_of

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from tricouple_lab import cli
from tricouple_lab.config.compose import compose

ROOT = Path(__file__).parents[1]


def committed(name):
    item = command.find(name)
    return table_of(item, ROOT / "results" / item.committed)


# --- what there is --------------------------------------------------------------------------------


def test_the_tables_of_accuracy_and_the_figures_of_the_paper_are_items():
    tables = [f"Table {number}" for number in range(1, 13)]
    figures = [f"Figure {number}" for number in range(1, 8)]
    assert sorted(item.number for item in ITEMS) == sorted(tables + figures)
    assert len({item.name for item in ITEMS}) == len(ITEMS) == 19


def test_the_list_says_number_title_scale_and_command(capsys):
    assert cli.main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"Figure 7 +Accuracy, time and memory over batch sizes\n +tricouple reproduce efficiency  "
        r"\(run at scale=cpu: results/efficiency\)",
        shown,
    )


@pytest.mark.parametrize("word", ["efficiency", "figure-7", "Figure 7"])
def test_an_item_has_a_name_and_a_number(word):
    assert command.find(word).number == "Figure 7"


def test_an_unknown_item_and_a_folder_without_runs_are_one_sentence(capsys, tmp_path):
    assert cli.main(["reproduce", "eficiency"]) == 2
    assert "nearest: efficiency" in capsys.readouterr().err
    assert cli.main(["reproduce", "efficiency", "--read", str(tmp_path)]) == 2
    assert "no runs of efficiency here" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["table-1", "clip"])
def test_what_a_core_cannot_run_is_one_sentence(name, capsys):
    assert cli.main(["reproduce", name]) == 2
    assert "use --scale paper on a GPU" in capsys.readouterr().err


def test_the_words_of_each_plan_are_settings():
    found = {item.name: plans(item, "paper") for item in ITEMS}
    assert len(found["table-1"]) == 20
    assert {*found["scl-mnist"]} & {*found["table-1"]} == {
        "images/mnist-scl-resnet50", "images/mnist-scl-vit_b16"
    }  # fmt: skip
    for plan in (
        *found["scl-mnist"].values(),
        *found["efficiency"].values(),
        *found["clip"].values(),
    ):
        for words in plan.methods():
            config = compose(plan.task.name, words)
            assert config.scale == "paper"
            assert config.data.train_size is None


def test_the_paper_has_a_number_for_each_cell():
    assert len(papers("images").dropna()) == 2 * 5 * 4 * 5  # settings, sets, backbones, losses
    assert len(papers("ablation").dropna()) == 19
    assert len(papers("clip").dropna()) == 7


# --- committed runs beside the paper --------------------------------------------------------------


def test_runs_join_the_paper(tmp_path):
    item = command.find("scl-cifar100")
    run = {"task": "images", "stage": "final", "data.name": "cifar100", "setting": "scl", "seed": 0}
    run |= {"backbone.name": "resnet18", "loss.name": "infonce", "steps": 21}
    run |= {"after/features/linear": 0.0823, "after/features/knn": 0.0721}
    table = images(item, pd.DataFrame([run]))
    assert list(table.iloc[0][["linear", "linear, paper", "knn, paper", "n", "steps, paper"]]) == [
        "8.23", "69.72 ± 0.58", "69.46 ± 0.39", 1, 78_125
    ]  # fmt: skip


def test_figures_are_read():
    mixture = committed("collapse").set_index(["data.n_classes", "method", "loss.sharpness"])
    assert mixture.loc[(10, "IOT", 2.0), "nc1"] == "0.121 ± 0.005"
    assert len(committed("spectra-log-sigmoid")) == 6
    efficiency = committed("efficiency").set_index(["loss", "batch_size"])
    assert efficiency.loc[("neg_mmiot", 4096), "MiB"] == pytest.approx(100.676)
    assert efficiency.loc[("iot", 64), "linear (%)"] == 41.9


# --- a first look ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "column"),
    [
        ("figure-5", 2, "directions"),
        ("ucl-mnist", 2, "knn"),
        ("clip", 2, "text_to_image_at5"),
        ("efficiency", 6, "s per step"),
    ],
)
def test_a_first_look_prints_a_table(name, rows, column, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tricouple_lab.data.generated.BATCHES", 5)
    words = ["reproduce", name, "--scale", "smoke", "--out", str(tmp_path)]
    assert cli.main(words) == 0
    item = command.find(name)
    shown = capsys.readouterr().out
    assert f"{item.number}: {item.title}\n" in shown
    table = table_of(item, tmp_path / item.kind)
    assert len(table) == rows
    values = table[column].dropna().astype(float)
    assert len(values)
    assert all(math.isfinite(value) for value in values)
    assert (tmp_path / f"{item.name}.md").read_text().endswith(shown.split("\n\n")[-1])
    before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
    assert before  # what is there is not run again
    if name == "ucl-mnist":
        assert cli.main(words) == 0
        again = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
        assert again == before
