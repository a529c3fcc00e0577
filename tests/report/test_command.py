"""``tricouple report``: says where the page is, and refuses clearly without leaving traces."""

from pathlib import Path
from unittest.mock import Mock

import pytest

from report import fake, fake_vision
from report.html_check import check_picture
from tricouple_lab import cli, files
from tricouple_lab.report.command import KINDS, read_known, write_report


@pytest.fixture
def small(tmp_path):
    """A study that is quick to draw."""
    records = [fake.run("iot"), fake.run("byol")]
    return fake.write_study(tmp_path / "small", records, snapshots=False)


def test_the_page_goes_beside_the_results(small, capsys):
    assert cli.main(["report", str(small)]) == 0
    assert (small / "report.html").read_text(encoding="utf-8").startswith("<!DOCTYPE html>")
    assert str(small / "report.html") in capsys.readouterr().out


def test_the_page_of_several_studies_goes_where_the_user_is(small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["report", str(small), str(small)]) == 0
    assert Path("report.html").read_text(encoding="utf-8").count("<h1>") == 2
    assert not (small / "report.html").exists()


def test_runs_of_several_kinds_in_one_folder_are_on_one_page(tmp_path, capsys):
    fake.write_study(tmp_path / "runs/demo", fake.runs((5,), seeds=1))
    fake_vision.write_study(tmp_path / "runs/digits", fake_vision.runs())
    assert cli.main(["report", str(tmp_path / "runs")]) == 0
    page = (tmp_path / "runs/report.html").read_text()
    assert "runs, synthetic" in page
    assert "runs, vision" in page
    assert "report.html" in capsys.readouterr().out


def test_folders_that_are_no_runs_are_named_and_left_out(small, tmp_path, capsys):
    runs = tmp_path / "runs"
    fake.write_study(runs / "good", [fake.run("iot")], snapshots=False)
    fake.write_study(runs / "strange", [], kind="weather", snapshots=False)
    fake.write_study(runs / "torn", [fake.run("iot")], snapshots=False)
    with (runs / "torn/runs.jsonl").open("a") as file:
        file.write('{"id": "b", "sta')
    (runs / "photos").mkdir()
    (runs / ".sweep").mkdir()
    (runs / "older").mkdir()
    (runs / "older/config.yaml").write_text("seed: 0\n")
    assert cli.main(["report", str(runs)]) == 0
    shown = capsys.readouterr().out
    page = (runs / "report.html").read_text()
    for told in (
        f'Left out: {runs}/strange is of kind "weather", none of clip, synthetic, text and vision.',
        f"Left out: {runs}/torn/runs.jsonl, line 2: not JSON",
        f"Left out: {runs}/photos is no run.",
        f"Left out: {runs}/older is a run of an earlier version",
    ):
        assert told in shown
    assert ".sweep" not in shown
    assert "photos is no run." in page


def test_out_names_the_page_and_makes_its_folder(small, tmp_path):
    out = tmp_path / "new" / "folder" / "page.html"
    assert cli.main(["report", str(small), "--out", str(out)]) == 0
    assert out.is_file()


def test_figures_are_pictures_on_white_and_the_table_of_the_page(study_folder, tmp_path, capsys):
    assert cli.main(["report", str(study_folder), "--figures", str(tmp_path / "figures")]) == 0
    found = sorted((tmp_path / "figures").glob("*.png"))
    names = ["synthetic-curves.png", "synthetic-map.png", "synthetic-spectra.png"]
    assert [file.name for file in found] == names
    shown = capsys.readouterr().out
    for file in found:
        assert check_picture(file.read_bytes(), 20).width > 1000
        assert str(file) in shown
    again = KINDS["synthetic"].files(read_known(study_folder))
    assert again["synthetic-map.png"] == found[1].read_bytes()
    lines = (tmp_path / "figures" / "synthetic-table.md").read_text().splitlines()
    assert [line for line in lines if line.startswith("Final")] == [
        f"Final figures at K = {k} after 200 steps, mean ± std over seeds:" for k in (4, 6)
    ]
    cells = [line.count("|") for line in lines if line.startswith("|")]
    assert len(cells) > 5
    assert set(cells) == {13}
    assert any("**" in line for line in lines)


def test_figures_without_data_are_left_out(small, tmp_path):
    assert cli.main(["report", str(small), "--figures", str(tmp_path / "figures")]) == 0
    names = {file.name for file in (tmp_path / "figures").iterdir()}
    assert names == {"synthetic-curves.png", "synthetic-spectra.png", "synthetic-table.md"}


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["nowhere"], "nowhere: no such folder"),
        (["empty"], "empty is not a study: it has no study.json and no runs"),
        (["strange"], 'kind "weather" is not one of: clip, synthetic, text, vision'),
        (["broken"], "broken/runs.jsonl, line 2: not JSON"),
        (["senseless"], "senseless: study.json or a record has a value that makes no sense"),
        (["small", "--out", "file.txt/page.html"], "cannot write file.txt/page.html"),
        (["small", "--out", "empty"], "cannot write empty: Is a directory"),
        (["small", "--figures", "file.txt"], "cannot write file.txt/synthetic-curves.png"),
        (["small", "small", "--figures", "figures"], "--figures draws one study, 2 were given"),
    ],
)
def test_user_errors_are_one_line_and_change_nothing(
    words, complaint, small, tmp_path, monkeypatch, refused
):
    monkeypatch.chdir(tmp_path)
    Path("empty").mkdir()
    Path("file.txt").write_text("precious")
    fake.write_study(Path("strange"), [], kind="weather")
    fake.write_study(Path("broken"), [fake.run("iot")], snapshots=False)
    fake.write_study(Path("senseless"), [], snapshots=False, provenance={"versions": "x"})
    with Path("broken/runs.jsonl").open("a") as file:
        file.write("{cut")
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}
    assert complaint in refused("report", *words)
    assert before == {path: path.stat().st_mtime_ns for path in Path().rglob("*") if path.is_file()}


def test_out_and_figures_exclude_each_other(small, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", str(small), "--out", "a.html", "--figures", "b"])
    assert stopped.value.code == 2
    assert "not allowed with" in capsys.readouterr().err


def test_a_failure_while_writing_keeps_the_old_page(small, monkeypatch, refused):
    path = small / "report.html"
    path.write_text("old")
    before = sorted(small.iterdir())
    no_space = OSError(28, "No space left on device")
    monkeypatch.setattr(files.os, "replace", Mock(side_effect=no_space))
    with pytest.raises(OSError, match="No space left"):
        write_report(small)
    words = "No space left on device; the file from before is unharmed"
    assert words in refused("report", str(small))
    assert path.read_text() == "old"
    assert sorted(small.iterdir()) == before
