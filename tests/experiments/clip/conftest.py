"""Runs of a second or two: a few coloured shapes, a tiny network."""

from pathlib import Path

import pytest

from tricouple.conf.compose import configure
from tricouple.conf.schema import Clip

TINY = (
    "scale=smoke",
    "data.train_size=96",
    "data.validation_size=40",
    "data.test_size=44",  # another size than that of the validation set,
    "model.vision.width=4",
    "model.text.width=32",
    "model.text.heads=1",
    "model.text.layers=1",
    "training.epochs=2",
    "training.geometry_every=1",
    "training.geometry_samples=32",
    "evaluation.gallery=2",
    "trainer.accelerator=cpu",
    "progress=false",
)


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    """Settings of a tiny run in a folder of its own."""
    return [*TINY, f"runs={tmp_path / 'runs'}"]


@pytest.fixture
def tiny(words):
    """Make the configuration of a tiny run."""

    def make(*more: str) -> Clip:
        return configure([*words, *more], Clip)

    return make
