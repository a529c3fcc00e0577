"""A made-up study and its page, written once for all tests that only look."""

from pathlib import Path

import pytest

from report import fake
from tricouple_lab.report.command import write_report


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A whole study: six methods, both ψ, K = 4 and 6, two seeds, two sweeps, snapshots."""
    return fake.write_study(tmp_path_factory.mktemp("study") / "whole", fake.runs((4, 6)))


@pytest.fixture(scope="session")
def page_file(study_folder: Path) -> Path:
    """The page of that study."""
    return write_report(study_folder)


@pytest.fixture(scope="session")
def page(page_file: Path) -> str:
    """The text of that page."""
    return page_file.read_text(encoding="utf-8")
