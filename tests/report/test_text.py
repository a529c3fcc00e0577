"""The page of text studies: at equal c and at its own c, nearest texts, confusions, gaps."""

import numpy as np
import pytest

from report.fake import write_folder
from report.html_check import parse
from tricouple_lab import cli
from tricouple_lab.report import text
from tricouple_lab.report.command import read_known, write_report
from tricouple_lab.report.read import StudyError

PLAN = {
    "losses": ["infonce", "neg_mmiot"], "seeds": [0, 1, 2], "sharpness": [3, 30], "equal": True,
    "blocks": [["data.shots=10"]],
}  # fmt: skip
# Right answers on the test texts, by loss and c.
RIGHT = {
    ("infonce", 3): 0.80, ("infonce", 30): 0.86, ("neg_mmiot", 3): 0.84, ("neg_mmiot", 30): 0.7
}  # fmt: skip
CHOSEN = {"infonce": 30, "neg_mmiot": 3}


def record(loss: str, c: float, seed: int, part: str) -> dict:
    value = RIGHT[loss, c] + 0.001 * seed
    metrics = {"right": value, "n_test": 3080, "n_train": 770}
    for kind, less in (("embedding", 0.0), ("penultimate", 0.05)):
        metrics |= {f"{kind}/{name}": value - less for name in ("ncm", "knn", "linear")}
    return {
        "id": f"{loss}-c{c:g}-{part}-{seed}",
        "part": part,
        "status": "done",
        "config": {"loss": loss, "sharpness": c, "seed": seed, "data": "banking77",
                   "model": "minilm", "shots": 10},
        "seconds": 5,
        "metrics": metrics,
        "curves": {"epoch": [0, 50], "step": [0, 150], "loss": [None, 4.0], "alpha": [0.4, 0.5]},
    }  # fmt: skip


def whole():
    for loss, c in RIGHT:
        yield record(loss, c, 0, "sharpness")
        for seed in (0, 1, 2):
            yield record(loss, c, seed, "final" if CHOSEN[loss] == c else "equal")


def gallery() -> dict:
    return {
        "classes": np.array(["lost <card>", "late card"]),
        "queries": np.array(["where is it?"]),
        "query_labels": np.array([1]),
        "answers": np.array([["is it on its way?", "I lost it"]]),
        "answer_labels": np.array([[1, 0]]),
        "scores": np.array([[0.9, 0.4]]),
        "confused": np.array([[1, 0]]),
        "confused_count": np.array([7]),
        "confused_of": np.array([40]),
        "confused_text": np.array(["it has not come"]),
        "map_labels": np.arange(12) % 2,
        "map_names": np.array(["lost <card>", "late card"]),
        "map_penultimate": np.eye(12, dtype=np.float16),
        "map_embedding": np.eye(12, dtype=np.float16)[::-1],
    }


@pytest.fixture
def folder(tmp_path):
    head = {"kind": "text", "name": "trial", "config": PLAN, "provenance": {"commit": "abc"}}
    return write_folder(tmp_path / "study", head, whole())


def test_losses_are_compared_at_equal_c_and_at_their_own(folder):
    study = read_known(folder)
    (table,) = text.equal_tables(text.finals(study), text.at_every_c(study))
    assert table.head == ("loss", "c = 3", "c = 30", "at its own c")
    assert [row[0] for row in table.rows] == ["InfoNCE", "Neg-MMIOT"]
    assert table.rows[0][1:] == ("80.10 ± 0.10", "86.10 ± 0.10", "86.10 ± 0.10")
    assert table.rows[1][1:] == ("84.10 ± 0.10", "70.10 ± 0.10", "84.10 ± 0.10")
    assert table.bold == {(1, 1), (0, 2), (0, 3)}
    (first,) = text.accuracy_tables(text.finals(study))
    assert [row[:2] for row in first.rows] == [
        ("InfoNCE", "30"), ("Neg-MMIOT", "3"), ("the encoder as it is", "–")
    ]  # fmt: skip
    found = " ".join(text.headline(text.finals(study), text.at_every_c(study)))
    assert "c of each loss, %. BANKING77, 10 texts a class, MiniLM: best InfoNCE (86" in found
    assert "at c = 3: best Neg-MMIOT (84.10 ± 0.10); last InfoNCE (80.10 ± 0.10)" in found


def test_the_page_shows_nearest_texts_confusions_and_a_map(folder, capsys):
    (folder / "galleries").mkdir()
    np.savez(folder / "galleries/infonce-c30-final-0.npz", **gallery())
    shown = parse(write_report(folder).read_text())
    titles = [heading.text for heading in shown.all("h2")]
    assert {"Nearest texts", "Confused classes", "A map of the texts"} <= set(titles)
    assert "late card lost <card> 7 of 40 it has not come" in shown.text
    (right,) = shown.all("li", "right")
    assert right.text == "is it on its way? (late card) 0.90 ✓"
    assert "The study is not complete" not in shown.text
    assert cli.main(["report", str(folder), "--figures", str(folder / "figures")]) == 0
    drawn = {path.name for path in (folder / "figures").iterdir()}
    assert drawn == {"text-table.md", "text-sharpness.png", "text-map.png"}
    assert "| InfoNCE | 80.10 ± 0.10 | **86.10" in (folder / "figures/text-table.md").read_text()


def test_a_damaged_gallery_is_named_and_what_lacks_is_said(tmp_path):
    head = {"kind": "text", "name": "trial", "config": PLAN, "provenance": {}}
    own = write_folder(tmp_path / "study", head, list(whole())[:-1])
    assert "15 of 16 planned runs have been recorded" in write_report(own).read_text()
    (own / "galleries").mkdir()
    np.savez(own / "galleries/infonce-c30-final-0.npz", classes=np.array(["a"]))
    with pytest.raises(StudyError, match=r"gallery\.npz is damaged"):
        write_report(own)
