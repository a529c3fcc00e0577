"""The report: result files in; one self-contained HTML page, pictures, Markdown or a terminal out.

It reads result files alone and knows nothing of the code that wrote them. Anybody can use its
engine: ``tables``, ``chart`` (data) → ``draw_plotly``, ``draw_matplotlib``; ``page``. A study goes
``read`` (files → runs) → ``groups`` (runs that differ in their seed) → a specification for its kind
(``synthetic``, ``vision``, ``clip``, ``text``: tables, charts and sentences) → ``command``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Turn the result files of studies, or a folder of runs, into one self-contained HTML page: what was
found, interactive figures, tables with mean ± std over seeds beside the paper's claims, and where
the numbers come from. What is unfinished gives a page of what there is, and says what is missing.
"""

EXAMPLES = """\
examples:
  tricouple report results/synthetic                         writes results/synthetic/report.html
  tricouple report results/vision                            image encoders; prints the tables too
  tricouple report results/clip                              image and text; likewise
  tricouple report results/text                              sentence encoders; likewise
  tricouple report runs                                      the runs of tricouple train -m
  tricouple report results/a results/b --out both.html       two studies on one page
  tricouple report results/synthetic --figures docs/assets   the README's pictures (PNG), no page
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of this command to its parser."""
    parser.description = DESCRIPTION
    parser.epilog = EXAMPLES
    add = parser.add_argument
    add("folders", nargs="+", type=Path, metavar="FOLDER", help="folder of a study or of runs")
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "--out",
        type=Path,
        metavar="FILE",
        help="the page to write (default: report.html in the folder, of several in this directory)",
    )
    where.add_argument(
        "--figures",
        type=Path,
        metavar="DIR",
        help="write pictures and Markdown tables into DIR instead",
    )


def run(args: argparse.Namespace) -> int:
    """Read, draw, write, and say where."""
    from tricouple_lab.report import command

    return command.run(args)
