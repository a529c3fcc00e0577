"""Studies that decide when a three-marginal loss is worth it: ``tricouple study``."""

from __future__ import annotations

import argparse
from pathlib import Path

from tricouple_lab.options import at_least

DESCRIPTION = """\
Decide a question by running: a hypothesis and what would refute it are written down first, every
loss has the same steps, seeds and grid of sharpnesses, its own sharpness is chosen on validation
data, and the verdict is printed by the program. The folder gets study.json (the plan), runs.jsonl
(a line a run), verdict.md and pictures. A study that was interrupted goes on with the same command.
"""

EXAMPLES = """\
examples:
  tricouple study --list                       the questions, and how long they take
  tricouple study three-way                    when is a triplet more than its two pairs? (minutes)
  tricouple study noise --workers 2            which losses suffer least from wrong labels?
  tricouple study noise --scale smoke          the same in seconds, on a mixture that is drawn
  tricouple study noise --verdict              what the runs say so far, without running
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="one of: three-way, length, noise, hubs, tail")
    add("--list", action="store_true", help="name the studies and their hypotheses")
    add("--scale", choices=("smoke", "cpu"), default="cpu", help="smoke: seconds, for a look")
    add("--verdict", action="store_true", help="judge the runs that are there, run nothing")
    add("--workers", type=at_least(1), default=1, help="processes, each with one thread")
    add("--out", type=Path, metavar="FOLDER", help="default: runs/study-NAME")
    add("--allow-dirty", action="store_true", help="record runs of sources that no commit names")


def run(args: argparse.Namespace) -> int:
    """See ``command``; it needs more than torch."""
    from tricouple_lab.experiments.studies.command import run as go

    return go(args)
