"""benchmarks/versions.py times two trees in one run and stores what it measured."""

import json
import math
from pathlib import Path

import pytest
from benchmarks.targets import SECTIONS
from benchmarks.versions import rows_of

from processes import python
from tricouple.ot import compiled

ROOT = Path(__file__).parents[1]


def versions(*words):
    return python("-m", "benchmarks.versions", *words, cwd=ROOT).stdout


TIMES = {"InfoNCE (plain PyTorch)": 1e-3, "NegMMIOT": 2e-3, "SupConLoss (PML)": 4e-3}


@pytest.mark.parametrize(
    ("section", "case", "number", "value", "target", "met"),
    [
        ("growth", "InfoNCE", "growth, N^…", 2.2, 2.1, False),
        ("peers", "NegMMIOT", "time over InfoNCE (plain PyTorch)", 2.0, 2.5, True),
        ("peers", "NegMMIOT", "time over SupConLoss (PML)", 0.5, 1.0, True),
        ("large", "NegMMIOT, two sets", "memory, N²", 3.0, 0.6, False),
        ("streamed", "NegMMIOT, half kept", "time / other", 1.0, 1.0, True),
    ],
)
def test_each_number_is_what_its_section_says(section, case, number, value, target, met):
    make, sizes = SECTIONS[section]
    cases = [*make(sizes)][-1] if section == "large" else next(make(sizes))
    found = {
        (one.name, version): {
            "seconds": TIMES[one.name] if section == "peers" else 3e-9 * one.n**2.2,
            "extra_bytes": (3.0 if version == "this" else 2.0) * 4 * one.n**2,
        }
        for one in cases for version in one.versions
    }  # fmt: skip
    rows = {(row["case"], row.get("number")): row for row in rows_of(section, cases, found)}
    row = rows[case, number]
    assert (row["value"], row["target"], row["met"]) == (pytest.approx(value), target, met)


@pytest.mark.skipif(not compiled(), reason="compares compiled trees")
def test_a_tree_is_compared_with_itself_and_the_run_can_be_read_again(tmp_path):
    stored, page = tmp_path / "run.json", tmp_path / "page.md"
    chosen = ["--only", "easy", "--sizes", 64, "--rounds", 1]
    printed = versions("--against", ROOT, "--threads", 1, "--out", stored, *chosen)
    report = json.loads(stored.read_text())
    assert (report["threads"], report["clock"]) == (1, "CPU")
    assert {"commit", "cpu", "load", "versions", "command"} <= set(report["provenance"])
    *_, row = report["rows"]
    assert (row["section"], row["case"], row["N"]) == ("easy", "NegMMIOT", 64)
    assert (row["number"], row["target"]) == ("time / other", 1.3)
    assert row["value"] == row["this, ms"] / row["other, ms"]
    assert row["met"] == (row["value"] <= 1.3)
    assert math.isfinite(row["value"])

    again = versions("--read", stored, "--markdown", page)
    assert printed.splitlines()[-1] == again.splitlines()[-2]  # then the page
    assert "| NegMMIOT | 64 |" in page.read_text()
