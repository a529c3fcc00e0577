"""The page of image-text runs: tables beside the paper's, queries with marks, plans, verdicts."""

import numpy as np
import pytest

from report.fake import write_folder
from report.html_check import names, page_of, rows, section
from tricouple_lab import cli
from tricouple_lab.report import clip
from tricouple_lab.report.chart import Chart, Line, Panel
from tricouple_lab.report.command import read_known, write_report
from tricouple_lab.report.draw_matplotlib import picture
from tricouple_lab.report.read import StudyError

LOSSES = {"infonce": 0.10, "neg_mmiot": 0.12, "fused_gromov_published": 0.016, "iot": 0.02}
PLAN = {"losses": list(LOSSES), "seeds": [0, 1, 2], "sharpness": [10, 100]}


def record(loss: str, seed: int, part: str = "final", c: float = 10.0) -> dict:
    value = LOSSES[loss] + 0.001 * seed
    metrics = {"batch_size": 64, "n_images": 1000, "n_captions": 5000, "in_batch/at1": value / c}
    for place, chance in (("in_batch", 1 / 64), ("whole_split", 0.001)):
        for direction in ("image_to_text", "text_to_image"):
            for k in (1, 5, 10):
                metrics[f"{place}/{direction}/at{k}"] = k * value if place == "in_batch" else 0.05
                metrics[f"chance/{place}/{direction}/at{k}"] = k * chance
    if part == "final":
        metrics |= {"zero_shot/cifar10/top1": 0.2, "chance/zero_shot/cifar10/top1": 0.1}
        metrics |= {"zero_shot/cifar10/top5": 0.7, "chance/zero_shot/cifar10/top5": 0.5}
    names = ("gap", "alignment", "image_uniformity", "text_uniformity", "matched", "unmatched")
    metrics |= {f"modalities/{name}": 0.5 for name in names}
    return {
        "id": f"{loss}-c{c:g}-{part}-{seed}",
        "part": part,
        "status": "done",
        "config": {"loss": loss, "sharpness": c, "seed": seed, "data": "flickr8k", "epochs": 5},
        "seconds": 60,
        "metrics": metrics,
        "curves": {"epoch": [0, 1], "step": [0, 93], "loss": [None, 4.0], "gap": [0.9, 0.5]},
    }


def write_study(folder, records, plan=PLAN):
    head = {"kind": "clip", "name": "trial", "config": plan, "provenance": {"commit": "abc"}}
    return write_folder(folder, head, records)


def whole():
    for loss in LOSSES:
        for c in (10.0, 100.0):
            yield record(loss, 0, "sharpness", c)
        for seed in (0, 1, 2):
            yield record(loss, seed)


def gallery(queries: bool = True) -> dict:
    square = np.eye(4, dtype=np.float32)
    arrays = {f"similarity_{when}": square for when in ("before", "after")}
    arrays |= {f"plan_{a}_{w}": square / 4 for a in ("positive", "negative")
               for w in ("before", "after")}  # fmt: skip
    if queries:
        arrays |= {
            "queries": np.array([7, 2]),
            "own_captions": np.array(["a <dog>", "a cat"]),
            "answer_captions": np.array([["a <dog>", "a bus"], ["a tram", "a ship"]]),
            "answer_owners": np.array([[7, 1], [3, 4]]),
            "answer_captions_score": np.array([[0.9, 0.2], [0.5, 0.4]]),
            "answer_images": np.array([[2, 7], [2, 7]]),
            "answer_images_score": np.array([[0.8, 0.7], [0.6, 0.1]]),
            "thumbnail_of": np.array([2, 7]),
            "thumbnails": np.zeros((2, 3, 8, 8), dtype=np.uint8),
        }
    return arrays


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = write_study(tmp_path_factory.mktemp("clip"), list(whole()))
    (folder / "galleries").mkdir()
    np.savez(folder / "galleries/neg_mmiot-c10-final-0.npz", **gallery(queries=False))
    return page_of(folder)


def test_a_whole_study_has_every_section(page):
    assert names(page) == [
        "retrieval", "zero-shot", "matrices", "sharpness", "curves", "geometry", "provenance",
    ]  # fmt: skip


def test_tables_name_the_candidates_and_stand_beside_the_papers(page):
    batches, split = section(page, "retrieval").all("table")
    assert "in batches of the training size" in batches.all("caption")[0].text
    assert "all images and all captions" in split.all("caption")[0].text
    head, *body = rows(batches)
    table = {row[0]: dict(zip(head, row, strict=True)) for row in body}
    assert list(table) == [
        "InfoNCE (c = 10)", "IOT (c = 10)", "Neg-MMIOT (c = 10)",
        "Fused-Gromov, published code (c = 10)", "guessing",
    ]  # fmt: skip
    ours = next(row for row in body if row[0].startswith("Neg-MMIOT"))
    assert ours[1:3] == ["12.1 ± 0.1", "69.3"]
    assert next(row for row in body if row[0] == "guessing")[1] == "1.56"
    assert "paper" not in rows(split)[0]


def test_losses_at_chance_are_named_with_a_reason(page):
    (found,) = page.all("div", "found")
    first = "Recall@1 among 64 candidates, % (guessing gives 1.6). image → text and text → image: "
    assert f"{first}best Neg-MMIOT (12.1 ± 0.1 and 12.1 ± 0.1); last Fused-Gromov" in found.text
    assert "Holm-corrected over 6 comparisons: image → text: InfoNCE, IOT and Fused" in found.text
    assert "Fused-Gromov, published code is not well above chance" in found.text
    assert "sign of the kernel flipped" in found.text
    assert "IOT is not well above chance" in found.text
    assert "its training loss moved too little" in found.text
    assert "InfoNCE is not" not in found.text


def test_all_losses_above_chance_are_said_so(tmp_path):
    good = [one for one in whole() if one["config"]["loss"] in ("infonce", "neg_mmiot")]
    folder = write_study(tmp_path, good, PLAN | {"losses": ["infonce", "neg_mmiot"]})
    text = write_report(folder).read_text(encoding="utf-8")
    assert "Every loss is well above chance in both directions" in text
    assert "The study is not complete" not in text


def test_a_partial_study_says_what_is_missing(tmp_path):
    folder = write_study(tmp_path, list(whole())[:4])
    page = page_of(folder)
    missing = section(page, "missing").text
    assert "4 of 20 planned runs have been recorded" in missing
    assert "no final run yet of InfoNCE (seed 2); Neg-MMIOT (seed 0, 1 and 2)" in missing
    empty = write_study(tmp_path / "empty", [])
    assert "nothing can be said yet" in write_report(empty).read_text(encoding="utf-8")


def test_a_terminal_shows_retrieval_and_what_was_found(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "80")
    assert cli.main(["report", str(write_study(tmp_path, list(whole())))]) == 0
    shown = capsys.readouterr().out
    for words in ("12.10 ± 0.10", "60.50 ± 0.50", "guessing", "20.0 ± 0.0", "best Neg-MMIOT"):
        assert words in shown
    assert max(map(len, shown.splitlines()[:-1])) <= 80
    assert "…" not in shown


def test_many_losses_are_named_in_two_rows():
    for count, columns in ((6, 6), (9, 5)):
        lines = [Line(f"loss {number}", (0, 1), (0, 1)) for number in range(count)]
        (legend,) = picture(Chart("a", "", "", [Panel("", "", lines)])).legends
        assert legend._ncols == columns


def test_figures_are_recall_over_c_and_markdown_tables(tmp_path):
    folder = write_study(tmp_path / "study", list(whole())[:-1])
    assert cli.main(["report", str(folder), "--figures", str(tmp_path)]) == 0
    (panel,) = clip.sharpness_chart(read_known(folder)).panels
    lines = {line.name: list(line.y) for line, _ in panel.lines}
    assert list(lines) == ["InfoNCE", "IOT", "Neg-MMIOT", "Fused-Gromov, published code"]
    assert lines["Neg-MMIOT"] == pytest.approx([1.2, 0.12])
    assert (tmp_path / "clip-sharpness.png").stat().st_size > 5000
    text = (tmp_path / "clip-table.md").read_text(encoding="utf-8")
    row = next(line for line in text.splitlines() if line.startswith("| Neg-MMIOT (c = 10)"))
    assert row.split(" | ")[1:3] == ["**12.1 ± 0.1**", "**60.5 ± 0.5**"]
    assert "- IOT is not well above chance" in text
    assert "- 19 of 20 planned runs have been recorded." in text


def test_a_study_without_results_has_no_pictures(tmp_path):
    folder = write_study(tmp_path / "study", [])
    assert cli.main(["report", str(folder), "--figures", str(tmp_path / "figures")]) == 0
    assert not (tmp_path / "figures").exists()


def test_queries_show_pictures_and_mark_right_answers(tmp_path):
    folder = write_study(tmp_path, [record("neg_mmiot", 0)], {})
    np.savez(folder / "gallery.npz", **gallery())
    page = page_of(folder)
    queries = section(page, "queries")
    right = [item.text for item in queries.all("li", "right")]
    assert right == ["a <dog> 0.90 ✓"]
    marked = [one.text.strip() for one in queries.all("figure", "right")]
    assert marked == ["✓ 0.70", "✓ 0.60"]
    assert len(queries.all("img")) == 2 + 4
    assert all(i.attributes["src"].startswith("data:image/png") for i in queries.all("img"))
    plots = section(page, "matrices-run").all("h4")
    assert [plot.text for plot in plots] == [
        f"{what}, {when} training"
        for when in ("before", "after")
        for what in ("cosine", "plan, positive", "plan, negative")
    ]
    labels = [p.attributes["aria-label"] for p in section(page, "matrices-run").all("div", "plot")]
    assert "plan, positive, of 4 pairs after training: 1.00 on average for matching" in labels[4]


def test_broken_files_are_named(tmp_path):
    folder = write_study(tmp_path, [record("iot", 0)])
    (folder / "gallery.npz").write_bytes(b"no archive")
    with pytest.raises(StudyError, match=r"gallery\.npz: not a gallery"):
        write_report(folder)
    (folder / "gallery.npz").unlink()
    broken = record("iot", 0)
    del broken["config"]["loss"]
    write_study(tmp_path, [broken])
    with pytest.raises(StudyError, match="line 1: config of run iot-c10-final-0 needs loss"):
        write_report(folder)
    assert read_known(folder).kind == "clip"
