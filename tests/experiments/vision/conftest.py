"""Runs of about a second: tiny digits, a tiny network."""

from pathlib import Path

import pytest

from tricouple.conf.compose import configure
from tricouple.conf.schema import Train

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
def words(tmp_path: Path) -> list[str]:
    """Settings of a tiny run in a folder of its own."""
    return [*TINY, f"runs={tmp_path / 'runs'}"]


@pytest.fixture
def tiny(words):
    """Make the configuration of a tiny run."""

    def make(*more: str) -> Train:
        return configure([*words, *more], Train)

    return make
