"""Runs of about a second: tiny digits, a tiny network."""

import pytest

from tricouple_lab.conf.schema import Train

TINY = (
    "scale=smoke",
    "backbone.name=test_resnet",
    "data.train_size=200",
    "data.image_size=8",
    "training.epochs=2",
    "training.geometry_samples=100",
    "evaluation.probe_epochs=3",
    "trainer.accelerator=cpu",
    "progress=false",
)


@pytest.fixture
def tiny_run() -> tuple[type, tuple[str, ...]]:
    """The type of a configuration, and the words of a tiny one."""
    return Train, TINY
