"""The first thing that a user tries: trained, evaluated and shown on data made on the spot."""

import json
import time

import pytest

from tricouple import cli


@pytest.mark.slow
def test_a_smoke_run_learns_shapes_and_colours(tmp_path):
    run, started = tmp_path / "run", time.process_time()
    words = ("scale=smoke", "training.epochs=12", f"run={run}", "progress=false")
    assert cli.main(["clip", *words]) == 0
    evaluation = json.loads((run / "evaluation.json").read_text())
    metrics = evaluation["metrics"]
    assert metrics["in_batch/image_to_text/at1"] >= 0.8  # of 32
    assert metrics["in_batch/text_to_image/at1"] >= 0.8  # of 32
    # Processor time: the wall clock of a busy machine measures its other work too.
    assert time.process_time() - started < 180
    assert (run / "report.html").read_text().count("✓") > 6
