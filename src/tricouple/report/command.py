"""``tricouple report``: the page of a study, or the README's pictures."""

from __future__ import annotations

import argparse
from pathlib import Path

from rich.console import Console

from tricouple.files import WriteError
from tricouple.options import CommandError, require_writable
from tricouple.report.kinds import KINDS, read_known, write_files, write_page
from tricouple.report.read import StudyError

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
        help="the page to write; None: report.html in the folder, of several in this directory",
    )
    where.add_argument(
        "--figures",
        type=Path,
        metavar="DIR",
        help="write pictures and Markdown tables into DIR instead",
    )


def run(args: argparse.Namespace) -> int:
    """Read, draw, write, and say where."""
    try:
        if args.figures is not None:
            return pictures(args.folders, args.figures)
        several = len(args.folders) > 1
        out = args.out or (Path() if several else args.folders[0]) / "report.html"
        studies = [read_known(folder) for folder in args.folders]
        require_writable(out)
        write_page(studies, out)
    except (StudyError, WriteError) as error:
        raise CommandError(str(error)) from error
    console = Console()
    for study in studies:
        for shown in KINDS[study.kind].terminal(study):
            console.print(shown, highlight=False, markup=False)
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB)")
    return 0


def pictures(folders: list[Path], target: Path) -> int:
    """Write what the documentation shows of one study."""
    if len(folders) > 1:
        raise CommandError(f"--figures draws one study, {len(folders)} were given")
    study = read_known(folders[0])
    for path in write_files(study, target):
        print(f"{path} ({path.stat().st_size / 1024:.0f} kB)")
    return 0
