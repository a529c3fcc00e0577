"""Names that look like markup, in folders, classes, files and captions, through every command."""

import json
from pathlib import Path

import pytest

from caption_files import write_csv
from image_files import write_classes
from tricouple_lab import cli

ODD = "a[/b] [red]é=(1), it's"  # with its slash, two folders
TINY = ["scale=smoke", "training.epochs=1", "trainer.accelerator=cpu", "progress=false"]


@pytest.fixture
def place(tmp_path, monkeypatch) -> Path:
    folder = tmp_path / ODD
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return folder


def run(*words: str) -> None:
    assert cli.main(words) == 0, words


def test_images_train_evaluate_and_report_under_any_name(place, capsys):
    write_classes(Path(f"pics {ODD}"), {"[bold] $_$ cat": 12, "[]dog": 12})
    (Path(f"pics {ODD}") / "[red").mkdir()  # an empty class: named in a note
    (Path(f"pics {ODD}") / "[]dog" / "[loop]").symlink_to("..")
    words = [
        "data=folder", f"data.root=pics {ODD}", f"runs=runs {ODD}", "backbone.name=test_resnet",
        "training.batch_size=8", "evaluation.probe_epochs=2", "evaluation.figures=true",
    ]  # fmt: skip
    run("train", *TINY, *words)
    shown = " ".join(capsys.readouterr().out.split())
    assert "/[red holds no images" in shown
    assert "[loop] is left out" in shown
    run("train", *TINY, *words)
    assert f"Already finished: runs {ODD}" in " ".join(capsys.readouterr().out.split())
    (folder,) = (path.parent for path in Path(f"runs {ODD}").glob("*/encoder.pt"))
    run("evaluate", str(folder), "evaluation.probe_epochs=1", "evaluation.figures=false")
    run("report", f"runs {ODD}")
    assert (Path(f"runs {ODD}") / "report.html").is_file()


def test_captions_train_and_report_under_any_name(place, capsys):
    texts = [[f"[/INST] number {n} " + "word " * 20, f"[b]{n} \x1b[31m"] for n in range(30)]
    write_csv(Path(), texts, head=("[file]", "[/caption]"))
    run(
        "clip", *TINY, "data=csv", "data.train=captions.csv", "data.train_images=images",
        "data.image_column=[file]", "data.caption_column=[/caption]", "evaluation.zero_shot=[]",
        "data.train_size=null", "training.batch_size=8", f"runs=runs {ODD}",
        "model.vision.width=4", "model.text.width=32", "model.text.heads=1", "model.text.layers=1",
    )  # fmt: skip
    shown = capsys.readouterr().out
    assert "[/INST] number" in " ".join(shown.split())
    (evaluation,) = Path(f"runs {ODD}").glob("*/evaluation.json")
    assert json.loads(evaluation.read_text())["epoch"] == 1
    run("report", f"runs {ODD}")
