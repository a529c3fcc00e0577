"""``tricouple verify``: test the statements, print the verdicts, keep the numbers and figures."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from tricouple.experiments.verify import markdown
from tricouple.experiments.verify.page import page
from tricouple.experiments.verify.results import Report
from tricouple.experiments.verify.statements import STATEMENTS, Statement, select, verify
from tricouple.options import CommandError, require_writable
from tricouple.provenance import collect_provenance

DESCRIPTION = """\
Test each statement of the paper's theory numerically, in float64 and at convergence, and measure
what lies beyond it: other losses, unbalanced classes, few dimensions. The folder gets all numbers
(theory.json), a table (README.md) and a page with a figure for each statement (index.html).
"""

EXAMPLES = """\
examples:
  tricouple verify                                about a minute
  tricouple verify --list                         the statements and their names
  tricouple verify --only convexity,etf           two of them
  tricouple verify --read verify/theory.json      print an earlier run again
  tricouple verify --read verify/theory.json --docs docs/theory.md    put its tables into a page

exit code: 1 if a statement that the paper proves fails.
"""

COLOURS = {"holds": "green", "fails": "red", "measured": "blue"}


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
    add("--docs", type=Path, metavar="FILE", help="put the tables into the blocks of FILE")


def run(args: argparse.Namespace) -> int:
    """Test or read, print, and write."""
    console = Console()
    if args.list:
        console.print(list_table())
        return 0
    if args.read is not None:
        report = read_report(args.read)
    else:
        require_writable(args.out / "theory.json")
        report = verify_with_progress(chosen(args.only), args.seed, console)
        write(report, args.out)
    console.print(verdict_table(report))
    console.print(markdown.verdict_count(report))
    if args.read is None:
        console.print(f"Numbers and figures: {args.out / 'index.html'}")
    if args.docs is not None:
        insert(report, args.docs)
        console.print(f"Tables written into {args.docs}")
    for outcome in report.failed:
        console.print(f"[red]fails:[/red] {outcome.words}")
    return 1 if report.failed else 0


def chosen(names: str | None) -> tuple[Statement, ...]:
    """Return the statements that the option names."""
    try:
        return select(None if names is None else [name.strip() for name in names.split(",")])
    except ValueError as error:
        raise CommandError(str(error)) from error


def verify_with_progress(statements: tuple[Statement, ...], seed: int, console: Console) -> Report:
    """Test statements under a progress bar that names the one at work."""
    columns = (
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    names = [statement.id for statement in statements]
    with one_thread(), Progress(*columns, console=console) as progress:
        report = Report(seed, (), collect_provenance())
        task = progress.add_task(names[0], total=len(names))
        for number, outcome in enumerate(verify(seed=seed, only=names), 1):
            report = replace(report, outcomes=(*report.outcomes, outcome))
            following = names[number] if number < len(names) else "done"
            progress.update(task, advance=1, description=following)
    return report


@contextmanager
def one_thread() -> Iterator[None]:
    """Let torch use one thread: on tiny tensors more of them only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write(report: Report, folder: Path) -> None:
    """Write the numbers, the table and the page."""
    for name, text in (
        ("theory.json", report.to_json()),
        ("README.md", markdown.readme(report)),
        ("index.html", page(report)),
    ):
        (folder / name).write_text(text, encoding="utf-8")


def read_report(path: Path) -> Report:
    """Read an earlier run."""
    try:
        return Report.from_json(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"cannot read {path}: {error}") from error


def insert(report: Report, path: Path) -> None:
    """Put the tables of a report into a page."""
    try:
        text = path.read_text(encoding="utf-8")
        path.write_text(markdown.fill(text, report), encoding="utf-8")
    except OSError as error:
        raise CommandError(f"cannot write into {path}: {error.strerror}") from error
    except ValueError as error:
        raise CommandError(f"cannot write into {path}: {error}") from error


def list_table() -> Table:
    """Lay out the statements."""
    table = Table(title="statements")
    for heading in ("name", "statement", "in the paper", "kind"):
        table.add_column(heading)
    for statement in STATEMENTS:
        table.add_row(statement.id, statement.words, statement.reference, statement.kind)
    return table


def verdict_table(report: Report) -> Table:
    """Lay out the verdicts with the numbers behind them."""
    table = Table(title=f"the paper's theory, seed {report.seed}", show_lines=True)
    table.add_column("statement", no_wrap=True)
    table.add_column("in words")
    for heading in ("residual", "tolerance"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict")
    for outcome in report.outcomes:
        table.add_row(
            outcome.id,
            f"{outcome.words} ({outcome.reference})",
            markdown.cell(outcome.residual),
            markdown.tolerance_text(outcome),
            f"[{COLOURS[outcome.verdict]}]{outcome.verdict}",
        )
    return table
