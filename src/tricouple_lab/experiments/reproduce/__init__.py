"""Every table and figure of the paper: run again, and set beside it: ``tricouple reproduce``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tricouple_lab.options import at_least

DESCRIPTION = """\
Run any table or figure of the paper again, and set the paper's numbers beside ours. What is there
already is not run again, so a command that was interrupted goes on. Without an item, one page of
all that is there is written.
"""

EXAMPLES = """\
examples:
  tricouple reproduce --list                     every table and figure, what it needs, how long
  tricouple reproduce ablation --scale smoke     two minutes, on data that come with the program
  tricouple reproduce scl-cifar10 --workers 2    a table of the appendix at a scale for processors
  tricouple reproduce table-1 --scale paper      the paper's own settings, for GPUs
  tricouple reproduce                            one page of all that has been run
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("items", nargs="*", metavar="ITEM", help="what to run; see --list")
    add("--list", action="store_true", help="every item with its label, needs and time")
    add(
        "--scale",
        choices=("smoke", "cpu", "paper"),
        default="cpu",
        help="smoke: seconds to minutes, to see it work",
    )
    add("--workers", type=at_least(1), default=1, help="processes, for tables that are studies")
    add("--out", type=Path, default=Path("results"), help="folder of results; each has its own")
    add("--allow-dirty", action="store_true", help="record runs of sources that no commit names")


def run(args: argparse.Namespace) -> int:
    """See ``command``; it needs more than torch."""
    from tricouple_lab.experiments.reproduce.command import run as go

    return go(args)
