"""The paper's theory as numerical experiments, each with a verdict (``tricouple verify``)."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Test each statement of the paper's theory numerically, in float64 and at convergence, and measure
what lies beyond it: other losses, unbalanced classes, few dimensions, and how exact the quadrature
of the log-sigmoid kernel is. The folder gets all numbers (theory.json), tables (README.md) and a
page with a chart for each statement (index.html).
"""

EXAMPLES = """\
examples:
  tricouple verify                                about a minute
  tricouple verify --list                         the statements and their names
  tricouple verify --only convexity,etf           two of them
  tricouple verify --only quadrature              those about the quadrature
  tricouple verify --read verify/theory.json      print an earlier run again
  tricouple verify --read verify/theory.json --docs docs/theory.md    put its tables into a page

exit code: 1 if a statement fails.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("--list", action="store_true", help="list the statements and stop")
    add("--only", metavar="NAMES", help="test these statements, separated by commas")
    add("--seed", type=int, default=0, help="seed of all random numbers")
    add("--out", type=Path, default=Path("verify"), help="folder of the results")
    add("--read", type=Path, metavar="JSON", help="read an earlier run instead of testing")
    add("--docs", type=Path, metavar="FILE", nargs="+", default=[],
        help="put the tables into the blocks of FILE")  # fmt: skip
    add("--figures", type=Path, metavar="FOLDER", help="draw the charts of the documentation")


def run(args: argparse.Namespace) -> int:
    """Test or read, print, and write."""
    from tricouple_lab.experiments.verify import command

    return command.run(args)
