"""A new loss takes one file, one line in the table of names and one configuration."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple

LOSS = '''
"""Spread: mean cosine of negatives minus that of positives."""

from torch import Tensor

from tricouple.batch import Batch
from tricouple.losses.base import ContrastiveLoss


class Spread(ContrastiveLoss):
    """The mean similarity of a triplet's negative minus that of its positive, over τ."""

    scale = "temperature"

    def __init__(self, temperature=None, *, sharpness=None, empty: str = "raise") -> None:
        super().__init__(empty=empty)
        self._set_scale(temperature, sharpness)

    def compute(self, batch: Batch) -> Tensor:
        """−⟨P̃¹² − P̃¹³, s⟩/τ."""
        moved = batch.relation.triplets().contrast.times(batch.references)
        return -(batch.anchors * moved).sum() / batch.temperature
'''
LINE = '    "spread": LossName("Spread", "tricouple.losses.spread.Spread"),\n'
CONFIG = """
name: spread
_target_: tricouple.losses.spread.Spread
sharpness: 4
temperature: ${reciprocal:${.sharpness}}
empty: zero
"""


@pytest.mark.slow
def test_a_file_a_line_and_a_configuration_make_a_loss_that_trains_and_is_reported(tmp_path):
    library, lab = tmp_path / "tricouple", tmp_path / "tricouple_lab"
    for package in (library, lab):
        shutil.copytree(Path(tricouple.__file__).parents[1] / package.name, package)
    (library / "losses/spread.py").write_text(LOSS)
    (lab / "conf/loss/spread.yaml").write_text(CONFIG)
    table = (lab / "names.py").read_text()
    first = table.index("LOSSES = {\n") + len("LOSSES = {\n")
    (lab / "names.py").write_text(table[:first] + LINE + table[first:])

    words = [
        "train", "data=digits", "setting=scl", "loss=spread", "scale=smoke", "training.epochs=1",
        "data.train_size=200",
    ]  # fmt: skip
    both = (
        "from tricouple_lab import cli; "
        f"assert not cli.main({words}) | cli.main(['report', 'runs'])"
    )
    done = subprocess.run(
        [sys.executable, "-c", both],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    (run,) = (tmp_path / "runs").glob("digits-scl-spread-c4-*")
    record = json.loads((run / "runs.jsonl").read_text().splitlines()[-1])
    assert record["status"] == "done"
    assert (record["config"]["loss"], record["config"]["sharpness"]) == ("spread", 4)
    assert "Spread" in done.stdout
