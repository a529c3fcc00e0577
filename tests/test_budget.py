"""How large the code may be: a limit for each folder, so that growth is a decision."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lines of the files below some folders.
LIMITS = {
    (("src/tricouple",), (".py",)): 9_536,
    (("src/tricouple",), (".c", ".h")): 1_600,
    (("src/tricouple_lab",), (".py",)): 7_500,
    (("theory", "benchmarks", "studies", "reproduce"), (".py",)): 5_600,
    (("tests",), (".py",)): 16_000,
}


def lines(folders: tuple[str, ...], endings: tuple[str, ...]) -> int:
    files = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    sources = (path for path in files if path.suffix in endings)
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in sources)


@pytest.mark.parametrize(("folders", "endings"), LIMITS)
def test_folders_keep_their_budget(folders, endings):
    found = lines(folders, endings)
    assert 0 < found <= LIMITS[folders, endings], f"{folders}: {found} lines of {endings}"
