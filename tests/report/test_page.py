"""The page: self-contained, escaped, with words for every figure, honest about what is missing."""

import base64
import json
import re

import numpy as np
import pytest

from report import fake
from report.html_check import page_of, parse, rows, section, table_of
from tricouple_lab.report.command import read_known, write_page, write_report
from tricouple_lab.report.read import StudyError


@pytest.fixture(scope="module")
def root(page):
    return parse(page)


def own_text(page):
    """The page without the library inside it."""
    start, end = page.index("<script>/**"), page.index("</script>\n<script>")
    return page[:start] + page[end:]


def test_nothing_is_loaded_from_elsewhere(page, root):
    for tag in ("link", "img", "iframe", "object", "embed", "audio", "video"):
        assert not root.all(tag)
    assert all("src" not in script.attributes for script in root.all("script"))
    assert all(link.attributes["href"].startswith("#") for link in root.all("a"))
    own = own_text(page)
    assert "http://" not in own
    assert "https://" not in own
    assert "@import" not in own
    assert "url(" not in own
    (policy,) = [e for e in root.all("meta") if e.attributes.get("http-equiv")]
    assert "default-src 'none'" in policy.attributes["content"]


def test_sections_are_linked_and_ids_are_unique(page, root):
    ids = re.findall(r'\sid="([^"]+)"', own_text(page))
    assert len(ids) == len(set(ids))
    targets = {link.attributes["href"].removeprefix("#") for link in root.all("a")}
    assert targets == {s.attributes["id"] for s in root.all("section")}
    names = {target.partition("-")[2] for target in targets}
    assert {"curves", "spectra", "finals", "claims", "tsne", "circle", "movie", "maps"} < names
    assert "provenance" in names
    assert not names & {"missing", "verdicts"}


def test_every_figure_has_a_caption_and_every_plot_a_text_with_numbers(root):
    figures = root.all("figure")
    assert len(figures) == 7  # curves, spectra, t-SNE, circle, movie, two sweeps
    for figure in figures:
        assert len(figure.all("figcaption")[0].text) > 15
        plots = figure.all("div", "plot")
        assert plots
        for plot in plots:
            assert plot.attributes["role"] == "img"
            assert re.search(r"\d", plot.attributes["aria-label"])
    assert len(root.all("div", "plot")) == 4 + 2 + 6 + 6 + 6 + 2 * 2


def test_the_curve_of_a_panel_is_the_mean_over_seeds(root, study_folder):
    panel = root.all("div", "panel")[0]
    drawn = json.loads("".join(panel.all("script")[0].texts))
    (line,) = [
        trace
        for trace in drawn["data"]
        if trace["meta"]["name"] == "IOT"
        and trace["meta"]["when"] == {"n_classes": "6"}
        and "fill" not in trace
    ]
    seeds = [
        run.curves["nc1"]
        for run in read_known(study_folder).part("main")
        if run.config["method"] == "iot" and run.config["n_classes"] == 6
    ]
    assert len(seeds) == 2
    values = np.frombuffer(base64.b64decode(line["y"]["bdata"]), np.float32)
    np.testing.assert_allclose(values, np.mean(seeds, axis=0), rtol=1e-6)
    spread = np.frombuffer(base64.b64decode(line["customdata"]["bdata"]), np.float32)
    np.testing.assert_allclose(spread, np.std(seeds, axis=0, ddof=1), rtol=1e-3)


def test_losses_without_psi_are_drawn_for_every_choice_of_it(root):
    drawn = json.loads("".join(root.all("div", "panel")[0].all("script")[0].texts))
    for trace in drawn["data"]:
        shaped = trace["meta"]["name"] in ("Neg-MMIOT", "PushPull")
        assert ("shaping" in trace["meta"]["when"]) == shaped


def test_choices_offer_every_k_and_psi(root):
    offered = {
        select.attributes["data-key"]: [o.attributes["value"] for o in select.all("option")]
        for select in root.all("select")
    }
    assert offered == {"n_classes": ["4", "6"], "shaping": ["linear", "log_sigmoid"]}


def test_verdicts_stand_in_the_map_as_the_study_gave_them(root):
    head, *body = rows(table_of(root, "Outcomes over ε"))
    assert head == ["ε", "c", "0.01", "0.1", "1"]
    assert ["Neg-MMIOT", "2", "★ ETF", "★ ETF", "★ ETF"] in body
    assert ["BYOL", "–", "▼ collapsed", "▼ collapsed", "▼ collapsed"] in body


def test_a_study_tells_what_its_verdicts_mean_and_has_no_table_of_none(tmp_path):
    records = [fake.run("iot", part="maps/dim", dim=d) | {"verdict": None} for d in (2, 8)]
    root = page_of(fake.write_study(tmp_path, records, verdicts={"rich": "<b>many"}))
    assert "Along embedding dimension" in root.text
    assert "Outcomes over" not in root.text
    assert [item.text for item in section(root, "verdicts").all("li")] == ["● rich: <b>many."]


def test_provenance_is_all_there(root):
    tables = section(root, "provenance").all("table")
    cells = dict(row for table in tables for row in rows(table)[1:])
    assert cells["command"] == "tricouple demo --fast"
    assert cells["commit"] == cells["commits of the runs"] == "0123abc"
    assert cells["torch"] == "9.9"
    assert cells["seeds"] == "0, 1"
    assert cells["data.kappa"] == "5.0"
    assert cells["runs"] == "68 (68 done)"
    assert cells["time of all runs"] == "14 min 10 s"


def test_texts_of_the_study_cannot_become_markup(tmp_path):
    evil = '</script><img src=x onerror="alert(1)">&'
    records = [fake.run("iot", seed=seed) for seed in (0, 1)]
    for record in records:
        record["config"] |= {"method": evil, "note": evil}
    swept = fake.run("iot", part=f"maps/{evil}") | {"id": "swept"}
    swept["config"][evil] = 1
    records.append(swept)
    head = {"name": evil, "config": {"note": evil}, "provenance": {"command": evil}}
    folder = fake.write_study(tmp_path, records, snapshots=False, **head)
    text = write_report(folder).read_text(encoding="utf-8")
    assert not parse(text).all("img")
    assert evil not in text
    assert evil in parse(text).text


def test_the_same_study_gives_the_same_page(tmp_path):
    folder = fake.write_study(tmp_path / "a", [fake.run("neg_mmiot", 4, 0, "linear")])
    first = write_report(folder, tmp_path / "one.html").read_bytes()
    assert write_report(folder, tmp_path / "two.html").read_bytes() == first


def test_two_studies_share_one_page_and_one_library(tmp_path):
    folders = [
        fake.write_study(tmp_path / name, [fake.run("iot")], snapshots=False, name=name)
        for name in ("first", "second")
    ]
    out = write_page([read_known(folder) for folder in folders], tmp_path / "both.html")
    text = out.read_text(encoding="utf-8")
    assert [h.text for h in parse(text).all("h1")] == [
        "Synthetic study: first",
        "Synthetic study: second",
    ]
    assert text.count("* plotly.js v") == 1
    ids = re.findall(r'\sid="([^"]+)"', own_text(text))
    assert len(ids) == len(set(ids))


def test_a_run_that_does_not_say_what_or_where_it_is_is_refused(tmp_path):
    record = fake.run("iot", part="maps/kappa")
    with pytest.raises(StudyError, match="part of maps/kappa, but its config gives kappa as None"):
        write_report(fake.write_study(tmp_path, [record], snapshots=False))
    record["part"] = "main"
    del record["config"]["n_classes"]
    with pytest.raises(StudyError, match=r"line 1: config of run .* needs n_classes \(int\)"):
        write_report(fake.write_study(tmp_path, [record], snapshots=False))
