"""What tests of several experiments use."""

import io
from pathlib import Path

import pytest
from rich.console import Console

from tricouple.conf.compose import configure


@pytest.fixture
def console() -> Console:
    """A console whose text a test can read."""
    return Console(file=io.StringIO(), width=1000)


@pytest.fixture
def words(tiny_run: tuple[type, tuple[str, ...]], tmp_path: Path) -> list[str]:
    """Settings of a tiny run in a folder of its own."""
    return [*tiny_run[1], f"runs={tmp_path / 'runs'}"]


@pytest.fixture
def tiny(tiny_run, words):
    """Make the configuration of a tiny run, with further words."""
    return lambda *more: configure([*words, *more], tiny_run[0])
