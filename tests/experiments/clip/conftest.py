"""Runs of a second or two: a few coloured shapes, a tiny network."""

import pytest

from tricouple_lab.conf.schema import Clip

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
def tiny_run() -> tuple[type, tuple[str, ...]]:
    """The type of a configuration, and the words of a tiny one."""
    return Clip, TINY
