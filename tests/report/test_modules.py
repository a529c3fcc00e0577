"""The report reads files: it knows no experiment, and its examples run."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

import tricouple.report

FOLDER = Path(tricouple.report.__file__).parent
MODULES = [
    info.name for info in pkgutil.walk_packages(tricouple.report.__path__, "tricouple.report.")
]


def imported(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom):
            found.add(str(node.module))
        elif isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
    return found


@pytest.mark.parametrize("path", sorted(FOLDER.rglob("*.py")), ids=lambda p: p.stem)
def test_only_the_command_knows_the_options_and_nothing_knows_an_experiment(path):
    foreign = {
        name
        for name in imported(path)
        if name.startswith("tricouple") and not name.startswith("tricouple.report")
    }
    allowed = {"tricouple.files", "tricouple.names"}
    assert foreign <= allowed | ({"tricouple.options"} if path.name == "command.py" else set())
    assert "torch" not in {name.partition(".")[0] for name in imported(path)}


@pytest.mark.parametrize("name", MODULES)
def test_examples_run(name):
    result = doctest.testmod(importlib.import_module(name))
    assert result.failed == 0


def test_there_are_examples():
    finder = doctest.DocTestFinder(exclude_empty=True)
    names = ("chart", "draw_matplotlib", "draw_plotly", "numbers", "page", "tables")
    for name in names:
        module = importlib.import_module(f"tricouple.report.{name}")
        assert sum(len(test.examples) for test in finder.find(module)) > 0
