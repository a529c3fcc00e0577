"""The pages: old and new records in one frame, golden tables, what is bold, self-contained HTML."""

import csv
import dataclasses
import importlib.util
import itertools
import json
import re
from functools import cache
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tricouple_lab.names import UserError
from tricouple_lab.report import comparison, figures, stats
from tricouple_lab.report.page import frame, run_page, sweep_page, write_report
from tricouple_lab.runs.folder import Record

ROOT = Path(__file__).parents[2]
GOLDEN = ("synthetic", "text")  # folders of results/
NASTY = ("<script>alert(1)</script>", "a & b", "$x^2$", "été [1]", "猫")
EVALUATION = {"split": "test", "knn_k": 20, "probe_weight_decay": 1e-3, "every": 1, "figures": True}


def record(seed=0, score=0.9, *, loss=None, stage="final", scale="cpu", task="images", **settings):
    """A record as a training run writes it."""
    key = {"clip": "recall/image_to_text@1", "mixture": "embedding/knn"}.get(task, "embedding/knn")
    curves = [
        {"epoch": e, "step": 5 * e, "loss": 2.0 / (e + 1), key: score - 0.1 * (3 - e) / 3}
        for e in range(4)
    ]
    config = {
        "task": task, "loss": loss or {"name": "infonce", "sharpness": 10.0}, "seed": seed,
        "data": {"name": "digits", "num_workers": 0}, "training": {"epochs": 3},
        "evaluation": EVALUATION, "trainer": {}, "logger": ["csv"], "scale": scale, "runs": "x",
    }  # fmt: skip
    for place, value in settings.items():
        section, name = place.split("__")
        config[section] = config[section] | {name: value}
    return Record(
        id=f"run-{config['loss']}-{seed}-{stage}-{settings}", task=task, config=config,
        data={"name": "digits", "digest": "0123456789abcdef", "sizes": {"test": 60},
              "classes": list(NASTY)},
        metric=key, chance={key: 0.2}, before={key: 0.5, "geometry/rank": 3.0},
        after={key: score, "geometry/rank": 7.0}, validation=score, curves=curves, per_class={},
        steps=15, seconds=1.0, stage=stage,
        provenance={"date": "2026-01-02T03:04:05+00:00", "command": "tricouple train <x>",
                    "commit": "f00ba4" * 6, "versions": {"torch": "2.13"}},
    )  # fmt: skip


def samples(n=60):
    generator = np.random.default_rng(0)
    labels = np.arange(n) % len(NASTY)
    return {
        "labels": labels, "predicted": np.where(np.arange(n) % 7, labels, 0),
        "embedding": generator.normal(size=(n, 8)) + labels[:, None],
        "examples_queries": np.array(NASTY), "examples_answers": np.array([NASTY] * 5),
        "examples_scores": generator.uniform(size=(5, 5)), "examples_right": np.eye(5, dtype=bool),
        "examples_views_queries": generator.integers(0, 255, (3, 40, 40, 3), dtype=np.uint8),
        "examples_views_scores": np.ones((3, 2)),
        "examples_views_answers": generator.integers(0, 255, (3, 2, 40, 40, 3), dtype=np.uint8),
        "spectrum": np.array([3.0, 2.0, 0.0]),
    }  # fmt: skip


class Page(HTMLParser):
    """Tags and attributes; a wrongly nested tag is an error."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.links, self.text = [], set(), [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.add(tag)
        self.links += [
            value for name, value in attributes if name in ("src", "href", "xlink:href", "srcset")
        ]
        assert not [name for name, _ in attributes if name.startswith("on")]
        if tag not in ("meta", "img", "br", "wbr", "link"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if self.open[-1:] == [tag]:
            self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text.append(data)


def checked(page):
    """Parse a page that needs nothing beside itself and is small."""
    parsed = Page(page)
    assert "script" not in parsed.tags
    assert all(link.startswith(("#", "data:image/")) for link in parsed.links)
    assert not re.search(r"url\((?!#)|@import", page)
    assert len(page.encode()) <= 300_000
    return parsed


@cache
def committed(name):
    return frame(ROOT / "results" / name)


@pytest.mark.parametrize("name", GOLDEN)
def test_tables_of_committed_results_agree_with_the_golden_ones(name):
    runs, texts, selected = committed(name), {}, {}
    with (ROOT / "tests/golden" / f"{name}.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        if row["group"] not in selected:
            same = pd.Series(True, runs.index)
            for key, value in (part.split("=", 1) for part in row["group"].split("; ")):
                if key not in texts:
                    texts[key] = runs[key].map(
                        lambda x: f"{x:g}" if isinstance(x, float | int) else x
                    )
                same &= texts[key] == value
            selected[row["group"]] = runs[same]
        scores = selected[row["group"]][row["metric"]].astype(float)
        assert len(scores) == int(row["n"])
        assert scores.mean() == pytest.approx(float(row["mean"]), rel=1e-3, abs=1e-12)
        if row["std"]:
            assert scores.std() == pytest.approx(float(row["std"]), rel=1e-3, abs=1e-12)
    assert len(selected) > 3


@pytest.mark.parametrize("name", GOLDEN)
def test_the_page_of_a_committed_folder_is_whole_and_small(name):
    page, table = sweep_page(committed(name), title=name)
    assert {"table", "footer"} <= checked(page).tags
    assert not table["mean"].isna().all()


def test_methods_with_different_values_of_what_was_chosen_are_rows_and_their_value_a_column():
    runs = []
    for loss, best in (("infonce", 3.0), ("iot", 30.0)):
        for c, seed in itertools.product((3.0, 30.0), (100, 101)):
            one = record(seed, 0.5, loss={"name": loss, "sharpness": c}, stage="choose")
            runs.append(dataclasses.replace(one, provenance={"chosen": "loss.sharpness"}))
        runs += [record(s, 0.6, loss={"name": loss, "sharpness": best}) for s in (0, 1)]
    named, chosen = comparison.arrange(frame(runs))
    assert (chosen, set(named["row"])) == (["loss.sharpness"], {"InfoNCE", "IOT"})
    page, table = sweep_page([*runs, *(record(s, 0.4, loss={"name": "vicreg"}) for s in (0, 1))])
    assert [*table.index] == ["InfoNCE", "IOT", "VICReg"]
    row = next(cells for cells in page.split("<tr>") if "IOT" in cells)
    assert "<td>30</td>" in row


def test_new_records_and_old_lines_have_the_same_columns():
    new, old = frame([record()]), committed("text")
    shared = ["id", "task", "stage", "metric", "validation", "seconds", "steps", "curves", "seed"]
    shared += ["data.name", "loss.name", "loss.sharpness", "after/embedding/knn", "provenance"]
    assert {*shared} <= {*new.columns} & {*old.columns}
    assert (new["task"][0], old["task"][0]) == ("images", "text")
    assert len(new["curves"][0]) == 4


def lines(losses, seeds, scale="cpu", gap=0.05):
    spread = np.random.default_rng(1).normal(scale=0.01, size=len(seeds))
    noise = np.random.default_rng(2).normal(scale=0.002, size=(len(losses), len(seeds)))
    return [
        record(seed, 0.8 + gap * i + spread[j] + noise[i, j], loss={"name": loss}, scale=scale)
        for (i, loss), (j, seed) in itertools.product(enumerate(losses), enumerate(seeds))
    ]


def test_bold_only_where_every_other_row_is_significantly_lower_and_never_at_smoke_scale():
    losses = ("infonce", "iot", "pushpull")
    page, table = sweep_page(lines(losses, range(6)))
    assert list(table["bold"]) == [False, False, True]
    assert page.count("<strong>") == 2  # in the table of methods and in that of all measurements
    assert "<strong>" not in sweep_page(lines(losses, range(6), gap=0.0))[0]
    assert "<strong>" not in sweep_page(lines(losses, range(6), scale="smoke"))[0]
    assert "<strong>" not in sweep_page(lines(losses, range(1)))[0]


def test_an_equal_score_of_two_methods_is_no_best_and_has_no_interval():
    table = stats.compare(pd.DataFrame({"a": [1.0, 2.0, 3.0], "b": [1.0, 2.0, 3.0]}))
    assert (table.loc["b", "difference"], list(table["best"])) == (0.0, [False, False])
    assert np.isnan(table.loc["b", "low"])


def test_seeds_are_paired_and_missing_runs_are_counted():
    runs = [one for one in lines(("infonce", "iot"), range(5)) if one.config["seed"] != 4]
    extra = record(9, 0.1, loss={"name": "infonce"})
    page, table = sweep_page([*runs, extra], planned=12)
    assert list(table["n"]) == [5, 4]
    assert table.loc["IOT", "difference"] == pytest.approx(5.0, abs=1.0)  # seed 9 has no partner
    assert "3 of 12 planned runs are missing." in page
    assert "planned" not in sweep_page(runs, planned=8)[0]
    page, table = sweep_page([], planned=2)
    assert "2 of 2 planned runs are missing." in page
    assert table.empty


def test_blocks_are_compared_apart_and_arguments_of_a_loss_are_rows():
    runs = [
        record(seed, 0.5, loss={"name": loss, "epsilon": e}, data__name=data)
        for data, loss, e, seed in itertools.product(
            ("mnist", "svhn"), ("iot", "dbot"), (1, 2), (0, 1)
        )
    ]
    _, table = sweep_page(runs)
    assert [*table.index] == [
        (data, f"{loss}, epsilon = {e}")
        for data, loss, e in itertools.product(("MNIST", "SVHN"), ("IOT", "DBOT"), (1, 2))
    ]
    by_epochs = [record(s, 0.5, training__epochs=e) for e in (3, 9) for s in (0, 1)]
    assert [*sweep_page(by_epochs)[1].index] == ["epochs = 3", "epochs = 9"]


def test_changed_data_of_one_name_are_not_mixed():
    other = record(0, 0.4)
    other = dataclasses.replace(other, id="other", data=other.data | {"digest": "fedcba98"})
    assert len(sweep_page([record(0, 0.9), other])[1]) == 2


@pytest.mark.parametrize("task", ["images", "clip", "text", "mixture"])
def test_the_page_of_a_run_is_whole_escaped_and_says_chance_before_and_after(task):
    arrays = samples()
    if task == "clip":
        arrays |= {"image": np.eye(60), "text": np.eye(60)}
    page = run_page(record(task=task), arrays)
    parsed = checked(page)
    assert "<script" not in page
    text = "".join(parsed.text)
    assert {"chance", "before training", "after training"} <= {*parsed.text}
    for name in NASTY:
        assert name in text
    for value in ("20.0", "50.0", "90.0", "f00ba4f00ba4", "tricouple train <x>", "0123456789ab"):
        assert value in text
    assert page.count("<svg") >= 4
    assert page.count("data:image/") == 9
    assert page == run_page(record(task=task), arrays)  # equal input gives equal bytes


def test_a_run_without_arrays_validation_or_classes_has_a_page():
    bare = dataclasses.replace(
        record(), curves=[{"epoch": 0, "loss": None, "step": 0}], validation=None
    )
    assert "Accuracy" in "".join(checked(run_page(bare)).text)


def test_many_classes_and_samples_keep_the_page_small():
    n = 2000
    arrays = {
        "labels": np.arange(n) % 200, "predicted": np.arange(n) % 199,
        "embedding": np.random.default_rng(0).normal(size=(n, 64)),
    }  # fmt: skip
    one = record()
    one.data["classes"] = [f"class {i}" for i in range(200)]
    checked(run_page(one, arrays))


def test_figures_follow_the_theme_and_keep_numbers_readable():
    line = figures.Series("$a", (0.0001, 1.0), (1e-6, 10.0), (0.0, 1.0))
    drawn = figures.svg(figures.lines_figure({"": [line]}, "x", "y", log_x=True, log_y=True))
    assert "var(--blue)" in drawn
    assert "#0072b2" not in drawn
    assert "0.0001" in drawn  # rounding of coordinates leaves texts alone


def test_the_plane_of_class_means_separates_classes():
    labels = np.repeat([0, 1, 2], 50)
    means = np.eye(3)[labels] * 20
    rows = np.concatenate([means, np.random.default_rng(0).normal(size=(150, 20))], axis=1)
    points = figures.plane(rows, labels)
    centres = np.stack([points[labels == k].mean(axis=0) for k in range(3)])
    assert np.linalg.norm(centres[0] - centres[1]) > 1
    assert points.shape == (150, 2)


def test_report_writes_the_page_of_a_run_and_of_several(tmp_path):
    for seed in (0, 1):
        folder = tmp_path / f"run {seed}"
        folder.mkdir()
        (folder / "metrics.json").write_text(record(seed).to_json(indent=1))
    np.savez(tmp_path / "run 0" / "examples.npz", **samples())
    write_report([tmp_path / "run 0"], tmp_path / "one.html")
    write_report([tmp_path], tmp_path / "both.html")
    assert "Examples" in "".join(checked((tmp_path / "one.html").read_text()).text)
    assert "runs: 2, seeds: 0, 1" in (tmp_path / "both.html").read_text()
    (tmp_path / "plan.json").write_text(json.dumps({"planned": 3}))
    write_report([tmp_path], tmp_path / "both.html")
    assert "1 of 3 planned runs are missing." in (tmp_path / "both.html").read_text()


@pytest.mark.parametrize("text", ["{", "[]", '{"id": "x"}', '{"after": 1}', "null"])
def test_a_line_that_is_no_record_is_named(text, tmp_path):
    (tmp_path / "runs.jsonl").write_text(record().to_json() + "\n" + text + "\n")
    with pytest.raises(UserError, match=r"runs\.jsonl, line 2: not the record of a run"):
        frame(tmp_path)
    with pytest.raises(UserError, match="no finished run here"):
        frame(tmp_path / "nothing")


@pytest.fixture(scope="module")
def documentation():
    spec = importlib.util.spec_from_file_location("docs_figures", ROOT / "docs/figures.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ROWS = {
    "synthetic": ["| PushPull, c = 2 | 0.127 ± 0.003 | (3.41 ± 0.21)e-05 |", "| ★ ETF 2/3 | 3 |"],
    "text": [
        "| Neg-MMIOT | 83.41 ± 0.43 | 83.81 ± 0.57 | 83.99 ± 0.46 | 83.44 ± 0.61 |",
        "| before training | – | 80.58 ± 0.76 | 77.56 ± 0.48 | 83.12 ± 0.69 |",
    ],
}


@pytest.mark.parametrize("name", ROWS)
def test_the_figures_and_tables_of_the_documentation_are_redrawn(name, tmp_path, documentation):
    if name == "text":  # without the pictures of its galleries: t-SNE takes long
        drawn = documentation.draw_text(committed(name).assign(**{"loss.shaping": None}), tmp_path)
        for file, write in drawn:
            write(tmp_path / file)
    else:
        documentation.docs_figures(ROOT / "results" / name, tmp_path)
    own = {path.name for path in (ROOT / "docs/assets").glob(f"{name}-*")} - {"text-map.png"}
    assert own == {path.name for path in tmp_path.iterdir()}
    table = (tmp_path / f"{name}-table.md").read_text()
    assert all(row in table for row in ROWS[name])
