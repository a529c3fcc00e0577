"""The store of results: no record lost by several writers, a torn line, or another study."""

import json
import multiprocessing
import sys
from pathlib import Path
from unittest.mock import patch

import pytest

from tricouple_lab.experiments.runs.record import (
    Store,
    make_record,
    open_store,
    same_settings,
    shortened,
)
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance, line_provenance


def line(name: str, **found: object) -> dict:
    common = {"part": "main", "status": "done", "config": {"seed": 0}, "seconds": 1.0, "steps": 3}
    return make_record(name, **common, provenance={}, **found)


def write_many(folder: Path, writer: int) -> None:
    for number in range(40):
        Store(folder).append(line(f"{writer}-{number}", metrics={"x": list(range(300))}))


def test_two_processes_lose_no_record(tmp_path):
    context = multiprocessing.get_context("spawn")
    crew = [context.Process(target=write_many, args=(tmp_path, n)) for n in range(2)]
    for worker in crew:
        worker.start()
    for worker in crew:
        worker.join()
    names = {f"{writer}-{number}" for writer in range(2) for number in range(40)}
    assert Store(tmp_path).records().keys() == names


def test_a_torn_line_is_left_out_and_removed_by_the_next(tmp_path):
    store = Store(tmp_path)
    store.append(line("a"))
    with store.runs.open("a") as file:
        file.write('{"id":"b","part":"ma')
    assert store.records().keys() == {"a"}
    store.append(line("c"))
    assert store.records().keys() == {"a", "c"}
    assert store.runs.read_text().count("\n") == 2


def test_the_last_line_of_an_id_counts(tmp_path):
    store = Store(tmp_path)
    store.append(line("a", metrics={"knn": 0.1}))
    store.append(line("a", metrics={"knn": 0.2}))
    assert store.records()["a"]["metrics"] == {"knn": 0.2}
    assert len(store.runs.read_text().splitlines()) == 2


def test_broken_lines_are_named_with_what_to_do(tmp_path):
    (tmp_path / "runs.jsonl").write_text('{"id": "a"}\nno json\n')
    with pytest.raises(CommandError, match=r"runs\.jsonl, line 2 is not a record.*delete the line"):
        Store(tmp_path).records()


def test_records_hold_six_digits_and_null_for_what_is_not_finite():
    numbers = (1 / 3, 12345678, None, "x", float("nan"), float("-inf"))
    assert shortened([{"a": numbers}]) == [{"a": [0.333333, 12345678, None, "x", None, None]}]


def test_settings_are_compared_as_far_as_a_version_recorded_them():
    record = {"config": {"sharpness": 99.99999999999999, "seed": 0}}
    assert same_settings(record, {"sharpness": 100.0, "seed": 0, "new": 1})
    assert not same_settings(record, {"sharpness": 100.0, "seed": 1})
    assert not same_settings(record, {"sharpness": 100.0})


def test_a_folder_holds_one_study(tmp_path):
    store = open_store(tmp_path / "a", "vision", "mine", {"seeds": [0]}, {}, extend=True)
    assert json.loads((store.path / "study.json").read_text()).keys() == {
        "kind", "name", "config", "provenance"
    }  # fmt: skip
    with pytest.raises(CommandError, match="holds another study, 'mine' of kind 'vision'"):
        open_store(tmp_path / "a", "clip", "mine", {}, {}, extend=True)
    with pytest.raises(CommandError, match=r"other settings \(seeds \[0\] → \[0, 1\]\)"):
        open_store(tmp_path / "a", "vision", "mine", {"seeds": [0, 1]}, {}, extend=False)
    open_store(tmp_path / "a", "vision", "mine", {"seeds": [0, 1]}, {}, extend=True, verdicts={})
    head = json.loads((store.path / "study.json").read_text())
    assert (head["config"], head["verdicts"]) == ({"seeds": [0, 1]}, {})
    (tmp_path / "photo.png").touch()
    with pytest.raises(CommandError, match="holds other files and no study"):
        open_store(tmp_path, "vision", "mine", {}, {}, extend=True)


def test_a_line_says_which_sources_made_it_where_and_when():
    origin = collect_provenance() | {"commit": "abc", "date": "then", "load": 99.0}
    found = line_provenance(origin)
    kept = {"commit", "command", "system", "cpu", "cores", "load", "date", "python", "versions"}
    assert kept <= found.keys()
    assert found["commit"] == "abc"
    assert found["date"] != "then"
    assert found["versions"]["torch"]
    with patch.dict("sys.modules"):
        sys.modules.pop("timm", None)
        sys.modules["ott"] = sys  # as if it had been used
        origin["versions"] |= {"timm": "9", "ott-jax": "9"}
        assert line_provenance(origin)["versions"].keys() - {"timm"} >= {"tricouple", "ott-jax"}
        assert "timm" not in line_provenance(origin)["versions"]
    assert None not in found["versions"].values()
