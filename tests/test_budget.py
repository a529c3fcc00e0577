"""How large the code may be: a limit for each folder, so that growth is a decision."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# Lines of the files below a folder. The library is on its way to 8,000 Python and 1,600 C lines.
LIMITS = {
    ("src/tricouple", (".py",)): 9_329,
    ("src/tricouple", (".c", ".h")): 1_666,
    ("src/tricouple_lab", (".py",)): 23_700,
    ("benchmarks", (".py",)): 700,
    ("tests", (".py",)): 23_300,
}


def lines(folder: str, endings: tuple[str, ...]) -> int:
    files = (path for path in (ROOT / folder).rglob("*") if path.suffix in endings)
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


@pytest.mark.parametrize(("folder", "endings"), LIMITS)
def test_folder_keeps_its_budget(folder, endings):
    found = lines(folder, endings)
    assert 0 < found <= LIMITS[folder, endings], f"{folder}: {found} lines of {endings}"
