"""Plain English: words that readers outside the project would not expect occur nowhere."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATTERNS = (
    r"\b(one|a|\d+|seconds|bytes|numbers|messages|texts|samples|memory|time) an? "
    r"(sample|class|loss|run|text|image|step|epoch|process|row|line|cell|intent|pixel|sweep"
    r"|setting|seed|node|core|rank|launch)\b",
    r"\btold (apart|from)\b|\bcan be told\b|\btells? (a|none|it)\b|\blevel with\b|\ball the same\b",
    r"\bhouse\b|\bengine room\b|\blaborator|\bdoor\b|\brungs?\b|\bcliff\b|\bisland\b|\bdisguise\b"
    r"|\bstrangers?\b|\bhunt\b|\bcure\b|\bdear\b|like cards|\bladder\b",
    r"\b(loss|coupling|plan|backbone|hinge|run|folder|report|code) "
    r"(knows?|says?|asks?|sees?|feels?|meets?|lives?|speaks?|bears?|wants?|looks? at)\b",
    r"\bnobody\b|\bmeets? itself\b|\bplainly\b|\bas you like\b|\bworth it\b|\bin a sentence\b"
    r"|\bwithout a word\b|\btruly\b|\bas ever\b|\bas it always\b|\bis said\b|\bare said\b",
    r"\bprocessors?\b|\btrainings\b|\ball but enough\b",
)
# Uses that are meant: captions and texts of generated data, names of other libraries.
MEANT = (
    "the blue door",
    'THINGS = ["car", "tree", "house", "dog"]',
    '{colour} house"',
    "processors",
    "model.path=nobody/nothing",
)
FOLDERS = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "docs", "examples", "src",
           "theory", "benchmarks", "studies", "reproduce", "tests")  # fmt: skip
ENDINGS = {".md", ".py", ".c", ".h", ".ipynb", ".yaml", ".html", ""}


def test_no_pattern_is_found_but_in_uses_that_are_meant() -> None:
    listed = subprocess.run(
        ["git", "ls-files", *FOLDERS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    paths = [ROOT / name for name in listed if Path(name).suffix in ENDINGS]
    assert len(paths) > 200
    found = []
    for path in paths:
        if path == Path(__file__):
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            hits = [m.group() for pattern in PATTERNS for m in re.finditer(pattern, line)]
            if hits and not any(text in line for text in MEANT):
                found.append(f"{path.relative_to(ROOT)}:{number}: {hits[0]}")
    assert found == [], "\n".join(found)
