"""benchmarks/versions.py times two trees in one run and stores what it measured."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest

from tricouple.ot import compiled

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "benchmarks" / "versions.py"


def versions(*words):
    run = [sys.executable, SCRIPT, *map(str, words)]
    return subprocess.run(run, capture_output=True, text=True, check=True).stdout


@pytest.mark.skipif(not compiled(), reason="compares compiled trees")
def test_a_tree_is_compared_with_itself_and_the_run_can_be_read_again(tmp_path):
    stored, page = tmp_path / "run.json", tmp_path / "page.md"
    page.write_text("before\n<!-- versions -->\nreplaced\n<!-- /versions -->\nafter\n")
    chosen = ["--only", "easy", "--sizes", 64, "--match", "NegMMIOT", "--rounds", 1]
    printed = versions("--other-tree", ROOT, "--threads", 1, "--out", stored, *chosen)
    report = json.loads(stored.read_text())

    assert report["threads"] == 1
    assert report["torch"]
    assert report["machine"]["cpu"]
    assert report["commits"]["this"]["commit"] == report["commits"]["other"]["commit"]
    (row,) = report["rows"]
    assert (row["section"], row["name"], row["n"], row["rounds"]) == ("easy", "NegMMIOT", 64, 1)
    assert set(row["seconds"]) == {"this", "other"}
    assert not row["errors"]
    (ratio,) = row["ratios"]
    assert ratio["of"] == "other"
    assert ratio["target"] == 1.3
    assert math.isfinite(ratio["value"])
    assert ratio["value"] > 0
    assert ratio["met"] == (ratio["value"] <= 1.3)

    again = versions("--read", stored, "--markdown", page)
    assert [line for line in printed.splitlines() if line.startswith("NegMMIOT")] == [
        line for line in again.splitlines() if line.startswith("NegMMIOT")
    ]
    text = page.read_text()
    assert text.startswith("before\n<!-- versions -->\n")
    assert text.endswith("\nafter\n")
    assert "| NegMMIOT | 64 |" in text
    assert "replaced" not in text
