"""benchmarks/versions.py times two trees in one run and stores what it measured."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.targets import SECTIONS
from benchmarks.versions import rows_of

from tricouple.ot import compiled

ROOT = Path(__file__).parents[1]


def versions(*words):
    run = [sys.executable, "-m", "benchmarks.versions", *map(str, words)]
    return subprocess.run(run, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def numbers(section, measured):
    """Rows of the first group of a section, its seconds and bytes given by name and version."""
    make, sizes = SECTIONS[section]
    cases = next(make(sizes))
    found = {
        (case.name, version): measured(case, version) for case in cases for version in case.versions
    }
    return {(row["case"], row.get("number")): row for row in rows_of(section, cases, found)}


def test_growth_is_the_power_of_n():
    rows = numbers("growth", lambda case, _: {"seconds": 3e-9 * case.n**2.2})
    row = rows["InfoNCE", "growth, N^…"]
    assert row["value"] == pytest.approx(2.2)
    assert (row["N"], row["target"], row["met"]) == (8192, 2.1, False)


def test_a_loss_is_compared_with_each_peer():
    times = {"NegMMIOT": 2e-3, "InfoNCE (plain PyTorch)": 1e-3, "SupConLoss (PML)": 4e-3}
    rows = numbers("peers", lambda case, _: {"seconds": times[case.name]})
    plain = rows["NegMMIOT", "time over InfoNCE (plain PyTorch)"]
    pml = rows["NegMMIOT", "time over SupConLoss (PML)"]
    assert [(row["value"], row["target"], row["met"]) for row in (plain, pml)] == [
        (2.0, 2.5, True), (0.5, 1.0, True)
    ]  # fmt: skip
    assert rows["SupConLoss (PML)", None]["this, ms"] == 4.0


def test_memory_is_counted_in_matrices_and_over_the_other_version():
    def measured(case, version):
        factor = 3.0 if version == "this" else 2.0
        return {"seconds": 1.0, "extra_bytes": factor * 4 * case.n**2}

    row = numbers("large", measured)["NegMMIOT, streamed", "memory, N²"]
    assert (row["value"], row["met"]) == (3.0, False)
    rows = numbers("streamed", measured)
    row = rows["NegMMIOT, nothing kept", "memory, N²"]
    assert (row["value"], row["value of other"], row["met"]) == (3.0, 2.0, None)
    assert rows["NegMMIOT, half kept", "time / other"]["value"] == 1.0


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
