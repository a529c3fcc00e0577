"""``tricouple report``: a page of one run, of several, or of a study."""

import argparse
from collections.abc import Sequence
from pathlib import Path


def configure(parser: argparse.ArgumentParser, _: str) -> None:
    """Add options."""
    add = parser.add_argument
    add("words", nargs="+", metavar="PATH", help="folders of runs, sweeps or studies")
    add("--out", type=Path, default=Path("report.html"), help="the page (default: report.html)")


def run(options: argparse.Namespace, words: Sequence[str]) -> int:
    """Write the page."""
    from tricouple_lab.report.page import write_report

    write_report([Path(word) for word in words], options.out)
    print(f"written: {options.out}")
    return 0
