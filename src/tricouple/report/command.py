"""``tricouple report``: the page of a study, or the README's pictures."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table as RichTable

from tricouple.options import CommandError, require_writable
from tricouple.report.clip import drawings as clip
from tricouple.report.kinds import read_known, write_page
from tricouple.report.pictures import drawings, write_pictures
from tricouple.report.read import Study, StudyError
from tricouple.report.vision import tables as vision

# What each kind of study prints beside its page; others print nothing.
TABLES: dict[str, Callable[[Study], Sequence[RichTable | str]]] = {
    "clip": clip.terminal_tables,
    "vision": vision.terminal_tables,
}
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
        show_tables(studies)
    except StudyError as error:
        raise CommandError(str(error)) from error
    except OSError as error:
        raise CommandError(f"cannot write {error.filename}: {error.strerror}") from error
    print(f"{out} ({out.stat().st_size / 2**20:.1f} MB)")
    return 0


def show_tables(studies: list[Study]) -> None:
    """Print the main tables of studies that have some."""
    console = Console()
    for study in studies:
        if study.kind in TABLES:
            for table in TABLES[study.kind](study):
                console.print(table, highlight=False)


def pictures(folders: list[Path], target: Path) -> int:
    """Write the README's pictures of one study."""
    if len(folders) > 1:
        raise CommandError(f"--figures draws one study, {len(folders)} were given")
    study = read_known(folders[0])
    for name in drawings(study):
        require_writable(target / name)
    for path in write_pictures(study, target):
        print(f"{path} ({path.stat().st_size / 1024:.0f} kB)")
    return 0
