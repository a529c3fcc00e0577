"""Runs of a second: phrases made by the program, a bag of words."""

import pytest

from adapters.conftest import bert_folder  # noqa: F401
from tricouple_lab.conf.schema import Text

TINY = (
    "scale=smoke",
    "data.shots=8",
    "training.epochs=3",
    "training.batch_size=40",
    "training.geometry_samples=100",
    "evaluation.probe_epochs=3",
    "evaluation.gallery=3",
    "trainer.accelerator=cpu",
    "progress=false",
)


@pytest.fixture
def tiny_run() -> tuple[type, tuple[str, ...]]:
    """The type of a configuration, and the words of a tiny one."""
    return Text, TINY


@pytest.fixture
def faq(tmp_path):
    """A table of questions and answers, some questions with two answers."""
    lines = [f"what about thing {n},this is thing {n} of many" for n in range(40)]
    lines += [f"what about thing {n},another word on {n}" for n in range(10)]
    path = tmp_path / "faq.csv"
    path.write_text("question,answer\n" + "\n".join(lines) + "\n")
    return path
