"""The documentation: every Python block runs, every page is reached, every picture is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "assets" not in path.parts)
FENCE = re.compile(r"^```python\n(.*?)^```$", re.M | re.S)
# A sketch of the call; what tests/adapters run; what needs a trained run (tests/experiments).
ELSEWHERE = {"index.md", "adapters.md", "vision.md"}


@pytest.mark.parametrize(
    "page",
    [p for p in PAGES if FENCE.search(p.read_text()) and p.name not in ELSEWHERE],
    ids=lambda page: page.stem,
)
def test_python_on_a_page_runs_from_top_to_bottom(page: Path) -> None:
    names: dict[str, object] = {}
    for block in FENCE.findall(page.read_text()):
        exec(compile(block, str(page), "exec"), names)
    assert names


def test_every_page_is_in_a_table_of_contents() -> None:
    reached = {DOCS / "index.md"}
    for page in PAGES:
        for toc in re.findall(r"```\{toctree\}\n(.*?)```", page.read_text(), re.S):
            words = [line for line in toc.splitlines() if line and not line.startswith(":")]
            reached |= {(page.parent / f"{word}.md").resolve() for word in words}
    assert {page.resolve() for page in PAGES} == {page.resolve() for page in reached}


def test_links_between_pages_and_to_pictures_lead_somewhere() -> None:
    link = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in link.findall(page.read_text())
        if not (page.parent / target).exists()
    ]
    assert broken == []
