"""``tricouple clip``: one run with its page, sweeps, studies, and errors in one line."""

import json
import time

import pytest
from PIL import Image

from caption_files import write_csv
from report.html_check import parse
from tricouple_lab import cli
from tricouple_lab.conf.compose import read_study
from tricouple_lab.conf.schema import Clip, Study
from tricouple_lab.experiments.clip import CLIP
from tricouple_lab.experiments.encoder import load_encoder
from tricouple_lab.experiments.runs import study as study_module
from tricouple_lab.experiments.runs.study import run_study
from tricouple_lab.report.command import write_report


def test_clip_trains_writes_a_page_and_its_encoders_can_be_used(words, tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["clip", *words, "training.epochs=1"]) == 0
    shown = capsys.readouterr().out
    assert "image → text, in batches of 32" in shown
    assert "text → image, whole split, 44 images, 132 captions" in shown
    page = (CLIP.folder(tiny("training.epochs=1")).path / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 2 + 2 * 5
    assert "Queries and answers" in page
    assert "after training" in page
    run = CLIP.folder(tiny("training.epochs=1")).path
    encoder = load_encoder(run)
    image = encoder.model(encoder.transform(Image.new("RGB", (50, 40)))[None])
    assert image.shape == encoder.model.texts(["a red circle"]).shape == (1, 64)
    assert cli.main(["evaluate", str(run)]) == 2
    assert f"{run} is a run of tricouple clip: that command again" in capsys.readouterr().err


def test_errors_are_one_line(words, refused, tmp_path):
    write_csv(tmp_path, head=("file", "text"))
    given = ["data=csv", f"data.root={tmp_path}", "data.train=captions.csv"]
    found = refused("clip", *words, *given)
    assert (
        "has no column 'path' and no 'caption' but 'file', 'text': set data.image_column" in found
    )


def test_show_prints_the_settings_of_the_paper(capsys):
    assert cli.main(["clip", "scale=paper", "data=coco", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "captions_train2017.json" in shown
    assert "clip-coco-neg_mmiot-c100-rn50-seed0" in shown


def test_the_study_of_the_project_has_all_losses_and_one_grid():
    study = read_study("clip_cpu", Clip)
    assert {"infonce", "iot", "iot_uniformity", "dbot", "fused_gromov", "pushpull",
            "neg_mmiot"} <= set(study.losses)  # fmt: skip
    assert len(study.seeds) >= 3
    assert {1, 10, 100} <= set(study.sharpness)  # what public code and the paper use
    assert study.learning_rates == [5e-4]
    assert not any("loss" in word for words in [study.base, *study.blocks] for word in words)


@pytest.fixture
def study(words):
    base = [word for word in words if not word.startswith("runs=")]
    return Study(
        name="grid",
        base=[*base, "training.epochs=1", "evaluation.gallery=0"],
        blocks=[["data.name=shapes"]],
        losses=["infonce"],
        sharpness=[10, 100],
        learning_rates=[1e-3],
        seeds=[0, 1],
    )


def test_a_study_chooses_the_sharpness_and_its_page_says_what_is_missing(
    study, console, tmp_path, monkeypatch
):
    out, runs = tmp_path / "out", tmp_path / "runs"
    run_study(CLIP, study, out, runs, console)
    monkeypatch.setattr(study_module, "run_once", None)
    run_study(CLIP, study, out, runs, console)  # nothing is computed twice
    records = [json.loads(line) for line in (out / "runs.jsonl").read_text().splitlines()]
    assert [record["part"] for record in records] == ["sharpness"] * 2 + ["final"] * 2
    assert [record["config"]["evaluated_on"] for record in records] == ["validation"] * 2 + [
        "test"
    ] * 2
    best = max(records[:2], key=lambda record: record["metrics"]["in_batch/at1"])
    assert records[2]["config"]["sharpness"] == best["config"]["sharpness"]
    assert records[2]["metrics"]["chance/in_batch/image_to_text/at1"] == 1 / 32
    assert [path.stem for path in (out / "galleries").iterdir()] == [records[2]["id"]]
    page = write_report(out).read_text()
    assert not parse(page).all("img")
    assert "The study is not complete" not in page

    head = json.loads((out / "study.json").read_text())
    (out / "study.json").write_text(
        json.dumps(head | {"config": head["config"] | {"losses": ["infonce", "iot"]}})
    )
    assert "4 of 8 planned runs have been recorded" in write_report(out).read_text()


@pytest.mark.slow
def test_a_smoke_run_learns_shapes_and_colours(tmp_path):
    run, started = tmp_path / "run", time.process_time()
    words = ("scale=smoke", "training.epochs=12", f"run={run}", "progress=false")
    assert cli.main(["clip", *words]) == 0
    evaluation = json.loads((run / "evaluation.json").read_text())
    metrics = evaluation["metrics"]
    assert metrics["in_batch/image_to_text/at1"] >= 0.8  # of 32
    assert metrics["in_batch/text_to_image/at1"] >= 0.8  # of 32
    # Processor time: the wall clock of a busy machine measures its other work too.
    assert time.process_time() - started < 180
    assert (run / "report.html").read_text().count("✓") > 6
