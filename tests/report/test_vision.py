"""The page of image encoders: the paper's tables, accuracy over sharpness, and what is missing."""

import csv

import numpy as np
import pytest

from report import fake_vision as fake
from report.html_check import check_picture, names, page_of, parse, rows, section
from tricouple_lab import cli
from tricouple_lab.report import vision
from tricouple_lab.report.command import read_known
from tricouple_lab.report.draw_plotly import drawing
from tricouple_lab.report.page import asset

MNIST = {"setting": "scl", "data": "mnist", "backbone": "resnet18"}


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    return read_known(fake.write_study(tmp_path_factory.mktemp("vision"), fake.runs()))


@pytest.fixture(scope="module")
def root(study):
    return page_of(study.folder)


def page_with(folder, records):
    return page_of(fake.write_study(folder, records))


def test_a_whole_study_has_every_section_and_misses_nothing(root):
    assert names(root) == ["results", "sharpness", "curves", "geometry", "provenance"]
    assert not root.all("p", "warning")[1:]  # the one without JavaScript


def test_tables_have_the_papers_layout(root):
    tables = section(root, "results").all("table")
    captions = [table.all("caption")[0].text for table in tables]
    assert [caption[:4] for caption in captions[:4]] == ["SCL:", "UCL:", "SCL:", "UCL:"]
    assert "before the projection" in captions[0]
    assert "after the projection" in captions[2]
    spans, head, *body = rows(tables[0])
    assert spans == ["", "MNIST, ResNet-18, 38 steps", "CIFAR-10, ResNet-18, 38 steps"]
    assert head == ["loss", *(["c", "linear probe", "paper", "k-NN", "paper"] * 2)]
    assert [row[0] for row in body] == ["InfoNCE", "InvaSpread", "IOT", "PushPull", "Neg-MMIOT"]
    assert body[4][1:4:2] == ["10", "99.21 ± 0.09"]
    assert body[4][6:9:2] == ["10", "88.38 ± 0.40"]


@pytest.mark.parametrize(("features", "place"), [("penultimate", 0), ("embedding", 2)])
def test_cells_are_mean_and_std_over_seeds_in_per_cent(study, features, place):
    values = [100 * run.metrics[f"{features}/linear"] for run in study.part("final")
              if (run.config["loss"], run.config["data"], run.config["setting"])
              == ("iot", "mnist", "scl")]  # fmt: skip
    assert len(values) == 3
    table = vision.accuracy_tables(vision.final_groups(study))[place]
    row = next(row for row in table.rows if row[0] == "IOT")
    assert row[2] == f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"


def test_the_best_of_a_column_is_bold_and_ties_share_it(tmp_path):
    records = [
        fake.run(loss, accuracy=value, seed=seed)
        for loss, value in {"iot": 0.9, "infonce": 0.95, "neg_mmiot": 0.95}.items()
        for seed in (0, 1)
    ]
    table = section(page_with(tmp_path, records), "results").all("table")[0]
    bold = [[cell.text for cell in row.all("strong")] for row in table.all("tr")[2:]]
    assert bold == [["95.00 ± 0.00"] * 2, [], ["95.00 ± 0.00"] * 2]


def test_every_number_of_the_paper_is_there_and_plausible():
    table = list(csv.DictReader(asset("paper_vision.csv").splitlines()))
    assert len(table) == 2 * 5 * 4 * 5
    assert len({(r["setting"], r["data"], r["backbone"], r["loss"]) for r in table}) == len(table)
    for row in table:
        assert 39 < float(row["linear"]) < 100
        assert 39 < float(row["knn"]) < 100
        assert 0 < float(row["linear_std"]) < 1.2


def test_the_paper_has_no_number_for_what_it_did_not_run(tmp_path):
    assert vision.papers_accuracy(MNIST | {"data": "digits", "loss": "iot"}, "linear") is None
    assert vision.papers_accuracy(MNIST | {"loss": "byol"}, "knn") is None
    records = [fake.run(loss, data="digits") for loss in ("iot", "byol")]
    head = rows(section(page_with(tmp_path, records), "results").all("table")[0])[1]
    assert head == ["loss", "c", "linear probe", "k-NN"]


def test_the_page_says_that_the_budget_is_not_the_papers(root, tmp_path):
    words = (
        "MNIST: 3 epochs on 5000 images (38 steps) here, 100 epochs on 60000 images in the paper"
    )
    assert words in root.text
    same = {"epochs": 100, "train_size": None, "validation_size": 0}
    assert "budget" not in page_with(tmp_path, [fake.run(**same)]).text


def test_the_headline_compares_in_per_cent_and_tells_what_the_papers_sharpness_costs(tmp_path):
    shown = {"iot": (0.90, 0.92), "infonce": (0.91, 0.93), "neg_mmiot": (0.5, 0.5)}
    accuracies = {3.0: 0.80, 10.0: 0.90, 100.0: 0.85}
    records = [
        fake.run(loss, part="sharpness", c=c, accuracy=accuracy)
        for loss in ("infonce", "neg_mmiot")
        for c, accuracy in accuracies.items()
    ]
    records += [
        fake.run(loss, accuracy=value, seed=seed)
        for loss, values in shown.items()
        for seed, value in enumerate(values)
    ]
    found = page_with(tmp_path, records).all("div", "found")[0].text
    assert "best InfoNCE (92.00 ± 1.41), level with IOT; last Neg-MMIOT (50.00 ± 0.00)" in found
    assert "“Level”: the means differ by no more than both standard deviations together" in found
    assert "percentage points: InfoNCE 0.0 (c = 10); Neg-MMIOT 5.0 (c = 100)." in found


def test_accuracy_over_sharpness_is_measured_on_validation_images_alone(study):
    lines = vision.sharpness_lines(study)
    assert len(lines) == 4 * 5
    where = ("MNIST, ResNet-18, SCL", "pushpull")
    line = next(line for line in lines if (line.place, line.loss) == where)
    assert list(line.points("penultimate/knn")) == list(fake.SHARPNESS)
    assert {run.part for own in line.groups for run in own.runs} == {"sharpness"}
    assert "Measured on validation images. Seed 0." in vision.sharpness_chart(lines).caption


@pytest.mark.parametrize(("name", "c"), [("Neg-MMIOT", 100), ("PushPull", 100), ("InfoNCE", 10),
                                         ("IOT", 10), ("InvaSpread", 10)])  # fmt: skip
def test_the_papers_sharpness_is_marked(study, name, c):
    panel = vision.sharpness_chart(vision.sharpness_lines(study)).panels[0]
    rings = [t for t in drawing(panel).data if t.marker.symbol == "circle-open"
             and t.meta["name"] == name]  # fmt: skip
    assert len(rings) == len(vision.ACCURACIES)
    assert {ring.x[0] for ring in rings} == {c}
    assert f"(the paper's c = {c})" in panel.alt


def test_every_panel_says_its_content_in_words(study):
    charts = (
        vision.sharpness_chart(vision.sharpness_lines(study)),
        vision.curves_chart(vision.final_groups(study)),
    )
    for panel in (panel for chart in charts for panel in chart.panels):
        for name in ("InfoNCE", "InvaSpread", "IOT", "PushPull", "Neg-MMIOT"):
            assert name in panel.alt


def test_curves_show_geometry_over_epochs(study):
    chart = vision.curves_chart(vision.final_groups(study))
    titles = [panel.title.partition(",")[0] for panel in chart.panels]
    assert titles == ["training loss", "NC1", "NC2", "effective rank", "α", "β"]
    assert list(drawing(chart.panels[1]).data[-1].x) == [0, 1, 2]


def test_half_a_study_says_what_is_missing(tmp_path):
    records = [r for r in fake.runs((("mnist", "scl"),)) if r["config"]["loss"] != "iot"
               and (r["config"]["loss"], r["part"]) != ("neg_mmiot", "final")]  # fmt: skip
    records = [r for r in records if r["config"]["sharpness"] != 30.0]
    root = page_with(tmp_path, records)
    texts = [item.text for item in section(root, "missing").all("li")]
    assert texts == [
        "25 of 160 planned runs have been recorded.",
        "MNIST, SCL: not yet run: InfoNCE at c = 30; InvaSpread at c = 30; "
        "IOT at c = 3, 10, 30 and 100; PushPull at c = 30; Neg-MMIOT at c = 30.",
        "MNIST, SCL: no final run yet of IOT (seed 0, 1 and 2); Neg-MMIOT (seed 0, 1 and 2).",
        "CIFAR-10, SCL: no run yet.",
        "MNIST, UCL: no run yet.",
        "CIFAR-10, UCL: no run yet.",
    ]
    assert texts[0] in root.all("p", "warning")[0].text


def test_no_run_and_no_finished_run(tmp_path):
    root = page_with(tmp_path / "none", [])
    assert names(root) == ["missing", "provenance"]
    assert "nothing can be said yet" in root.text
    diverged = {**fake.run(), "status": "diverged", "metrics": {}, "curves": {}}
    root = page_with(tmp_path / "diverged", [diverged])
    assert "1 of 1 runs diverged: mnist-scl-neg_mmiot" in root.text
    assert "results" not in names(root)


def test_a_run_that_does_not_say_what_it_is_is_refused(tmp_path, refused):
    record = fake.run()
    del record["config"]["backbone"]
    fake.write_study(tmp_path, [fake.run("iot"), record])
    found = refused("report", str(tmp_path))
    assert "runs.jsonl, line 2: config of run mnist-scl-neg_mmiot" in found


def test_a_folder_of_runs_is_a_study_too(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    for seed in (0, 1):
        for c in (10.0, 100.0):
            fake.write_run(tmp_path, fake.run(c=c, seed=seed))
    fake.write_run(tmp_path, fake.run("iot", seed=1))
    fake.write_run(tmp_path, fake.run("iot", seed=2), finished=False)
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    root = parse((tmp_path / "report.html").read_text(encoding="utf-8"))
    body = rows(section(root, "results").all("table")[0])[2:]
    assert [row[0] for row in body] == ["IOT", "Neg-MMIOT, c = 10", "Neg-MMIOT, c = 100"]
    assert "Neg-MMIOT, c = 100" in shown
    assert len(section(root, "sharpness").all("div", "panel")) == 1
    missing = section(root, "missing").text
    assert "1 of 6 runs did not finish: mnist-scl-iot-c10.0-lr0.001-seed2-test." in missing
    assert "IOT, MNIST, ResNet-18, SCL: seed 0 is missing." in missing
    assert "3 epochs on 5000 images (38 steps) here" in root.text


def test_one_run_is_a_folder_of_runs(tmp_path):
    root = page_of(fake.write_run(tmp_path, fake.run()))
    assert names(root) == ["results", "curves", "geometry", "provenance"]


def test_a_run_without_labels_has_curves_and_no_accuracy(tmp_path):
    path = fake.write_run(tmp_path, fake.run() | {"metrics": {}})
    root = page_of(tmp_path)
    assert f"for lack of labelled images: {path.name}" in section(root, "missing").text
    assert "curves" in names(root)


def test_a_run_of_an_earlier_version_is_named_with_what_to_do(tmp_path, refused):
    path = tmp_path / "run"
    path.mkdir()
    (path / "config.yaml").write_text("data: {}")
    for folder in (path, tmp_path):
        words = f"{path} is a run of an earlier version: tricouple evaluate {path} makes"
        assert words in refused("report", str(folder))


def test_figures_are_a_picture_and_a_markdown_table(study, tmp_path, capsys):
    assert cli.main(["report", str(study.folder), "--figures", str(tmp_path)]) == 0
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["vision-sharpness.png", "vision-table.md"]
    check_picture(files[0].read_bytes(), 20)
    text = files[1].read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0].startswith("SCL: accuracy on the features before the projection, %")
    where = "MNIST, ResNet-18, 38 steps"
    assert lines[2].startswith(f"| loss | {where}: c | {where}: linear probe | {where}: k-NN |")
    assert "UCL: accuracy on the embeddings after the projection, %" in text
    assert {line.count("|") for line in lines if line.startswith("|")} == {8}
    assert text.count("**") >= 2 * 16  # a best in each of sixteen columns
    assert "(99.21)" in text
    assert "The budget is not the paper's" in text


def test_a_terminal_shows_the_tables_and_what_they_are_worth(tmp_path, capsys):
    fake.write_study(tmp_path, [fake.run(loss) for loss in fake.LOSSES])
    assert cli.main(["report", str(tmp_path)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "SCL: accuracy on the features before the projection, %" in shown
    assert "SCL: accuracy on the embeddings after the projection, %" in shown
    assert "MNIST, ResNet-18, 38 steps" in shown
    assert "99.21 ± 0.09" in shown
    assert "The budget is not the paper's" in shown
    assert "5 of 160 planned runs have been recorded." in shown
