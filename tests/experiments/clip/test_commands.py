"""``tricouple clip``: one run with its page, sweeps, studies, and errors in one line."""

import json
import subprocess
import sys
from dataclasses import replace
from importlib.resources import files

import pytest

from caption_files import write_csv
from report.html_check import parse
from tricouple import cli
from tricouple.conf.compose import STARTS, read_study
from tricouple.conf.schema import Clip, Study
from tricouple.experiments.clip import CLIP
from tricouple.experiments.runs import study as study_module
from tricouple.experiments.runs import sweep as sweep_module
from tricouple.experiments.runs.study import run_study
from tricouple.options import CommandError
from tricouple.report.kinds import write_report


def test_clip_trains_and_writes_a_page(words, tiny, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert cli.main(["clip", *words, "training.epochs=1"]) == 0
    shown = capsys.readouterr().out
    assert "image → text, in batches of 32" in shown
    assert "text → image, whole split, 44 images, 132 captions" in shown
    page = (CLIP.folder(tiny("training.epochs=1")).path / "report.html").read_text()
    assert page.count("data:image/png;base64,") >= 2 + 2 * 5
    assert "Queries and answers" in page
    assert "after training" in page


def test_errors_are_one_line(words, capsys, tmp_path):
    write_csv(tmp_path, head=("file", "text"))
    given = ["data=csv", f"data.root={tmp_path}", "data.train=captions.csv"]
    assert cli.main(["clip", *words, *given]) == 2
    error = capsys.readouterr().err
    assert "has no column 'path' but 'file', 'text': set data.image_column" in error
    assert error.count("\n") == 1
    assert cli.main(["clip", "loss=byol"]) == 2
    assert "choose one of dbot, dbot_published, fused_gromov" in capsys.readouterr().err
    assert cli.main(["clip", "--study", "vision_cpu"]) == 2
    assert "choose one of clip_cpu" in capsys.readouterr().err


def test_show_prints_the_settings_of_the_paper(capsys):
    assert cli.main(["clip", "scale=paper", "data=coco", "--show"]) == 0
    shown = capsys.readouterr().out
    assert "captions_train2017.json" in shown
    assert "clip-coco-neg_mmiot-c100-rn50-seed0" in shown


def test_help_names_every_choice(capsys):
    with pytest.raises(SystemExit):
        cli.main(["clip", "--help"])
    shown = capsys.readouterr().out.split()
    choices = [
        entry.name.removesuffix(".yaml")
        for group in ("data", "model", "scale")
        for entry in (files("tricouple.conf") / "clip" / group).iterdir()
    ]
    for name in [*choices, *STARTS[Clip].losses]:
        assert name in [word.strip(";") for word in shown], name


def test_a_sweep_runs_the_clip_command(words, console, monkeypatch, tmp_path):
    started = []

    def process(command, **_):
        started.append(command[3:])
        return subprocess.CompletedProcess(command, 0, stderr="")

    monkeypatch.setattr(sweep_module.subprocess, "run", process)
    assert cli.main(["clip", "-m", "loss=iot,fused_gromov", f"runs={tmp_path}"]) == 0
    assert [command[:2] for command in started] == [
        ["clip", "loss=iot"], ["clip", "loss=fused_gromov"]
    ]  # fmt: skip


def test_a_mistyped_word_is_answered_before_torch_is_imported():
    code = (
        "import sys; from tricouple import cli; code = cli.main(['clip', 'loss=foo']); "
        "sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr


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


def test_a_study_with_other_settings_is_refused(study, console, tmp_path):
    run_study(
        CLIP, replace(study, sharpness=[10], seeds=[0]), tmp_path / "o", tmp_path / "r", console
    )
    changed = replace(study, sharpness=[10], seeds=[0], base=[*study.base, "training.epochs=2"])
    with pytest.raises(CommandError, match="was run with other settings"):
        run_study(CLIP, changed, tmp_path / "o", tmp_path / "r", console)
