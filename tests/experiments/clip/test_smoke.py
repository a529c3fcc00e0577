"""The first thing that a user tries: trained, evaluated and shown on data made on the spot."""

import json

import pytest

from tricouple import cli


@pytest.mark.slow
@pytest.mark.parametrize("loss", ["neg_mmiot", "pushpull"])
def test_a_smoke_run_learns_shapes_and_colours(loss, tmp_path, capsys):
    run = tmp_path / "run"
    assert cli.main(["clip", "scale=smoke", f"loss={loss}", f"run={run}", "progress=false"]) == 0
    evaluation = json.loads((run / "evaluation.json").read_text())
    metrics = evaluation["metrics"]
    assert metrics["in_batch/image_to_text/at1"] >= 0.9
    assert metrics["in_batch/text_to_image/at1"] >= 0.9
    # Processor time would be the fair measure; the wall clock of a busy machine is none.
    assert (run / "report.html").read_text().count("✓") > 6
