"""A new loss takes one file and one row in the table of names."""

import json
import shutil
from pathlib import Path

import tricouple
from processes import python

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
        contrast = batch.relation.triplets().contrast
        moved, _ = contrast.products(batch.references, batch.anchors)
        return -(batch.anchors * moved).sum() / batch.temperature
'''
ROW = '    "spread": LossName("Spread", "tricouple.losses.spread.Spread"),\n'


def test_a_file_and_a_row_make_a_loss_that_trains_and_is_reported(tmp_path):
    library, lab = tmp_path / "tricouple", tmp_path / "tricouple_lab"
    for package in (library, lab):
        shutil.copytree(Path(tricouple.__file__).parents[1] / package.name, package)
    (library / "losses/spread.py").write_text(LOSS)
    table = (lab / "names.py").read_text()
    first = table.index("LOSSES = {\n") + len("LOSSES = {\n")
    (lab / "names.py").write_text(table[:first] + ROW + table[first:])

    words = [
        "train", "-m", "data=digits", "loss=infonce,spread", "loss.sharpness=4", "scale=smoke",
        "training.epochs=1", "data.train_size=200", "logger=csv", "trainer.accelerator=cpu",
        "evaluation.figures=false",
    ]  # fmt: skip
    both = (
        "from tricouple_lab import cli; "
        f"assert not cli.main({words}) | cli.main(['report', 'sweep'])"
    )
    python("-c", both, cwd=tmp_path, PYTHONPATH=str(tmp_path))
    (run,) = (tmp_path / "sweep/runs").glob("digits-scl-spread-c4-*")
    record = json.loads((run / "metrics.json").read_text())
    assert record["config"]["loss"] == {"name": "spread", "sharpness": 4}
    assert "Spread" in (tmp_path / "report.html").read_text()
