"""benchmarks/versions.py times two trees in one run and stores what it measured."""

import json
import math
from pathlib import Path

import pytest

from processes import python
from tricouple.ot import compiled

ROOT = Path(__file__).parents[1]


def versions(*words):
    return python("-m", "benchmarks.versions", *words, cwd=ROOT).stdout


@pytest.mark.skipif(not compiled(), reason="compares compiled trees")
def test_a_tree_is_compared_with_itself_and_the_run_can_be_read_again(tmp_path):
    stored, page = tmp_path / "run.json", tmp_path / "page.md"
    chosen = ["--only", "easy", "--sizes", 64, "--match", "NegMMIOT", "--rounds", 1]
    printed = versions("--other-tree", ROOT, "--threads", 1, "--out", stored, *chosen)
    report = json.loads(stored.read_text())
    assert (report["threads"], report["clock"]) == (1, "CPU")
    assert {"commit", "cpu", "load", "versions", "command"} <= set(report["provenance"])
    (row,) = report["rows"]
    assert (row["section"], row["case"], row["N"]) == ("easy", "NegMMIOT", 64)
    assert (row["number"], row["target"]) == ("time / other", 1.3)
    assert row["value"] == row["this, ms"] / row["other, ms"]
    assert row["met"] == (row["value"] <= 1.3)
    assert math.isfinite(row["value"])

    again = versions("--read", stored, "--markdown", page)
    assert printed.splitlines()[-2:] == again.splitlines()[-2:]
    assert "| NegMMIOT | 64 |" in page.read_text()
