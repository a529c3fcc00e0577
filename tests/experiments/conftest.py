"""What tests of several experiments use."""

import io

import pytest
from rich.console import Console


@pytest.fixture
def console() -> Console:
    """A console whose text a test can read."""
    return Console(file=io.StringIO(), width=1000)
