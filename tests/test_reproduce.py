"""The paper's tables and figures: all are there, join the paper's numbers, and run."""

import math
import re
from pathlib import Path

import pandas as pd
import pytest
import reproduce.__main__ as command
from benchmarks import measure
from reproduce.items import BACKBONES, ITEMS, SETS, plans
from reproduce.tables import papers, table_of

import tricouple_lab.runs  # noqa: F401 (lets torchvision be imported beside another torch)
from tricouple_lab import cli
from tricouple_lab.config.compose import compose

ROOT = Path(__file__).parents[1]


def committed(name):
    item = command.find(name)
    return table_of(item, ROOT / "results" / item.committed)


# --- what there is --------------------------------------------------------------------------------


def test_each_table_and_figure_of_the_paper_is_an_item():
    tables = [f"Table {number}" for number in range(1, 16)]
    figures = [f"Figure {number}" for number in range(1, 8)]
    assert sorted(item.number for item in ITEMS) == sorted(tables + figures)
    assert len({item.name for item in ITEMS}) == len(ITEMS) == 22


def test_the_list_says_number_title_scale_and_command(capsys):
    assert cli.main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    assert re.search(
        r"Table 13 +Hyper-parameters of PushPull\n +tricouple reproduce ablation  "
        r"\(run at scale=cpu: results/ablation\)",
        shown,
    )


@pytest.mark.parametrize("word", ["ablation", "table-13", "Table 13"])
def test_an_item_has_a_name_and_a_number(word):
    assert command.find(word).number == "Table 13"


def test_an_unknown_item_and_a_folder_without_runs_are_one_sentence(capsys, tmp_path):
    assert cli.main(["reproduce", "ablaton"]) == 2
    assert "nearest: ablation" in capsys.readouterr().err
    assert cli.main(["reproduce", "ablation", "--read", str(tmp_path)]) == 2
    assert "no runs of ablation here" in capsys.readouterr().err


@pytest.mark.parametrize("scale", ["cpu", "paper"])
def test_the_words_of_each_plan_are_settings(scale):
    found = {item.name: plans(item, scale) for item in ITEMS}
    assert found["times-scl"] == {}
    assert len(found["table-1"]) == 20
    assert {*found["scl-mnist"]} & {*found["table-1"]} == {
        "images/mnist-scl-resnet50", "images/mnist-scl-vit_b16"
    }  # fmt: skip
    ablation = found["ablation"]["ablation"]
    assert len(ablation.rows) == 16  # 19 cells; four are the usual setting
    for plan in (ablation, *found["efficiency"].values(), *found["clip"].values()):
        for words in plan.methods():
            config = compose(plan.task.name, words)
            assert config.scale == scale
            assert (config.data.train_size is None) == (
                scale == "paper" or plan.task.name == "clip"
            )


def test_the_paper_has_a_number_for_each_cell():
    images, times = papers("images"), papers("times")
    assert len(images.dropna()) == 2 * len(SETS) * len(BACKBONES) * 5
    assert len(times.dropna()) == 2 * 2 * len(BACKBONES) * 5
    assert len(papers("ablation").dropna()) == 19
    assert len(papers("clip").dropna()) == 7


# --- committed runs beside the paper --------------------------------------------------------------


def test_image_tables_join_the_paper():
    table = committed("scl-cifar100")
    assert len(table) == 20
    row = table[(table["backbone.name"] == "resnet18") & (table["loss.name"] == "infonce")].iloc[0]
    assert list(row[["linear", "linear, paper", "knn, paper"]]) == [
        "8.23 ± 1.02", "69.72 ± 0.58", "69.46 ± 0.39"
    ]  # fmt: skip
    assert list(row[["n", "steps", "steps, paper"]]) == [3, 21, 78_125]


def test_hyper_parameters_join_the_paper():
    table = committed("ablation").set_index(["axis", "value"])
    row = table.loc[("learning_rate", 0.0005)]
    assert list(row) == ["30.27 ± 0.20", "79.52", "25.78 ± 1.04", "79.40", 3, 50]
    assert len(table) == 19
    # (τ, ε) and (ε, τ) are one loss; in the paper they differ by 28 points.
    assert table.loc[("temperature", 0.01), "linear"] == table.loc[("epsilon", 0.01), "linear"]


def test_ratios_are_those_of_the_seconds():
    table = committed("times-ucl").set_index(["data", "backbone", "loss"])
    row = table.loc[("tiny_imagenet", "resnet50", "neg_mmiot")]
    assert row["ratio, paper"] == pytest.approx(376.97 / 277.16)
    runs = pd.read_json(ROOT / "results/epoch_times/runs.jsonl", lines=True)
    seconds = runs[runs["id"] == "ucl-tiny_imagenet-resnet50"].iloc[0]["metrics"]
    assert row["ratio"] == pytest.approx(seconds["neg_mmiot"] / seconds["infonce"])
    assert (table.xs("infonce", level=2) == 1).all(axis=None)


def test_figures_and_image_text_are_read():
    clip = committed("clip").set_index("loss.name")
    assert clip.loc["neg_mmiot", "image_to_text_at1, paper"] == "69.28"
    assert clip.loc["infonce", "image_to_text_at1"] == "8.87 ± 0.47"
    mixture = committed("collapse").set_index(["data.n_classes", "method", "loss.sharpness"])
    assert mixture.loc[(10, "IOT", 2.0), "nc1"] == "0.121 ± 0.005"
    assert len(committed("spectra-log-sigmoid")) == 6
    efficiency = committed("efficiency").set_index(["loss", "batch_size"])
    assert efficiency.loc[("neg_mmiot", 4096), "MiB"] == pytest.approx(100.676)
    assert efficiency.loc[("iot", 64), "linear (%)"] == 41.9


def test_the_page_of_all_tables_is_the_committed_one(tmp_path):
    assert cli.main(["reproduce", "--page", str(tmp_path / "page.md")]) == 0
    assert (tmp_path / "page.md").read_text() == (ROOT / "results/reproduce.md").read_text()


# --- a first look ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rows", "column"),
    [
        ("figure-5", 2, "directions"),
        ("ucl-mnist", 2, "knn"),
        ("clip", 2, "text_to_image_at5"),
        ("ablation", 6, "linear"),
        ("efficiency", 9, "s per step"),
        ("times-ucl", 5, "ratio"),
    ],
)
def test_a_first_look_prints_a_table(name, rows, column, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("tricouple_lab.data.generated.BATCHES", 5)
    monkeypatch.setattr(measure, "measure_memory", lambda *args: {"extra_bytes": 2**21})
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
    if name == "efficiency":
        assert list(table["MiB"].dropna()) == [2.0] * 3
    if item.kind != "times":  # what is there is not run again
        before = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
        assert before
        if name == "ucl-mnist":
            assert cli.main(words) == 0
            again = {file: file.stat().st_mtime_ns for file in tmp_path.rglob("metrics.json")}
            assert again == before
