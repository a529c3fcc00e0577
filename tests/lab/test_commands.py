"""The commands that use finished runs: evaluate, embed and report, for each task."""

import csv

import numpy as np
import pytest
from PIL import Image

from tricouple_lab.cli import main
from tricouple_lab.commands.embed import neighbours
from tricouple_lab.config.compose import compose
from tricouple_lab.runs.execute import execute
from tricouple_lab.tasks.base import task_of

QUICK = ("scale=smoke", "training.epochs=1", "logger=none", "progress=false")
TASKS = {
    "images": ("data=digits", "data.train_size=64", "data.test_size=40", "backbone.width=8"),
    "clip": ("data.train_size=64", "data.test_size=20", "data.validation_size=0"),
    "text": ("data.train_size=64", "data.test_size=20"),
    "mixture": ("data.n_classes=3", "data.per_class=20", "training.batch_size=12"),
}


@pytest.fixture(scope="module", params=TASKS)
def run(request, tmp_path_factory):
    """A finished run of each task."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tricouple_lab.data.generated.BATCHES", 3)
        config = compose(request.param, [*QUICK, *TASKS[request.param], f"run={folder}"])
        execute(task_of(request.param), config, say=lambda line: None)
    return request.param, folder


def test_evaluate_measures_a_run_of_any_task_again(run, capsys):
    task, folder = run
    assert main(["evaluate", str(folder)]) == 0
    said = capsys.readouterr().out
    assert "test split (%)" in said
    assert all(row in said for row in ("chance", "before training", "after training"))
    recorded = (folder / "metrics.json").read_text()
    if task != "clip":
        assert main(["evaluate", str(folder), "evaluation.split=validation"]) == 0
        assert "validation split (%)" in capsys.readouterr().out
    assert (folder / "metrics.json").read_text() == recorded


def test_report_writes_the_page_of_a_run_of_any_task(run, tmp_path, capsys):
    _, folder = run
    out = tmp_path / "page.html"
    assert main(["report", str(folder), "--out", str(out)]) == 0
    assert out.read_text() == (folder / "report.html").read_text()
    assert f"written: {out}" in capsys.readouterr().out


def test_embed_writes_embeddings_of_own_files(run, tmp_path, capsys):
    task, folder = run
    if task in ("images", "clip"):
        for i in range(3):
            pixels = np.full((20, 20, 3), 80 * i, np.uint8)
            (tmp_path / "photos" / "été [1]").mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(tmp_path / "photos" / "été [1]" / f"{i}.png")
        items, names = tmp_path / "photos", [f"été [1]/{i}.png" for i in range(3)]
    else:
        items, names = tmp_path / "lines.txt", ["where is my card", "a red circle", "hello"]
        items.write_text("\n".join(names) + "\n\n")
    out = tmp_path / "found.npz"
    words = ["embed", str(folder), str(items), "--out", str(out), "--neighbours", "2"]
    if task == "mixture":
        assert main(words) == 2
        assert "has no images or texts to embed" in capsys.readouterr().err
        return
    assert main(words) == 0
    found = np.load(out)
    assert [*found["name"]] == names
    assert found["embedding"].shape[0] == found["neighbours"].shape[0] == 3
    assert f"{names[0]}: " in capsys.readouterr().out
    for suffix in (".csv", ".parquet"):
        assert main([*words[:4], str(out.with_suffix(suffix))]) == 0
    with out.with_suffix(".csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == names
    assert float(rows[0]["e0"]) == pytest.approx(found["embedding"][0, 0], abs=1e-5)


def test_texts_of_a_table_need_a_column_text(tmp_path, capsys):
    table = tmp_path / "table.csv"
    table.write_text("words\na\n")
    assert main(["embed", "nowhere", str(table)]) == 2
    assert "no column text (one text per row); its columns: words" in capsys.readouterr().err
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "folder").mkdir()
    for name, reason in {
        "empty.txt": "no texts",
        "binary.txt": "not a text",
        "folder": "no images",
    }.items():
        assert main(["embed", "nowhere", str(tmp_path / name)]) == 2
        assert reason in capsys.readouterr().err


def test_neighbours_are_others_in_the_order_of_their_cosine():
    rows = np.array([[1.0, 0.0], [2.0, 0.1], [0.0, 1.0], [-1.0, 0.0]])
    nearest, cosines = neighbours(rows, 9)
    assert nearest.tolist()[0] == [1, 2, 3]
    assert cosines[0] == pytest.approx([0.99875, 0.0, -1.0], abs=1e-4)
