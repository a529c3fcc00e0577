"""``tricouple verify``: test the statements, print the verdicts, keep the numbers and charts."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from itertools import takewhile
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from tricouple_lab.evaluation.probe import threads
from tricouple_lab.experiments.verify.setting import ACCURACY, PROVED_HERE, Outcome, Report
from tricouple_lab.experiments.verify.statements import QUADRATURE, STATEMENTS, select, verify
from tricouple_lab.files import write_text
from tricouple_lab.options import CommandError, explained, require_writable
from tricouple_lab.provenance import collect_provenance
from tricouple_lab.report.chart import Chart
from tricouple_lab.report.numbers import plain
from tricouple_lab.report.page import (
    Article,
    Section,
    chart_html,
    page,
    paragraph,
    provenance_section,
)
from tricouple_lab.report.tables import Table, to_html, to_markdown, to_terminal

BLOCK = re.compile(r"<!-- verify:(?P<name>[a-z-]+) -->\n.*?<!-- /verify -->", re.DOTALL)
TITLE = "The theory, checked by running it"
PICTURES = {
    "decoupling": "theory-decoupling.png",
    "shaping-forces": "shaping-forces.png",
    "shaping-three-way": "shaping-three-way.png",
    "quadrature-kernel": "quadrature-error.png",
}
"""The charts that the documentation shows."""


def run(args: argparse.Namespace) -> int:
    """Test or read, print, and write."""
    console = Console()
    if args.list:
        console.print(to_terminal(list_table()))
        return 0
    if args.read is not None:
        with explained(args.read, "read"):
            report = Report.from_json(args.read.read_text(encoding="utf-8"))
    else:
        require_writable(args.out / "theory.json")
        report = verify_with_progress(chosen(args.only), args.seed, console)
        write_text(args.out / "theory.json", report.to_json())
        write_text(args.out / "README.md", readme(report))
        write_text(args.out / "index.html", page([article(report)]))
    console.print(to_terminal(brief_verdicts(report)))
    console.print(verdict_count(report))
    if args.read is None:
        console.print(f"Numbers and charts: {args.out / 'index.html'}", markup=False)
    for path in args.docs:
        with explained(path, "write into"):
            write_text(path, fill(path.read_text(encoding="utf-8"), report))
        console.print(f"Tables written into {path}", markup=False)
    if args.figures is not None:
        for path in draw(report, args.figures):
            console.print(f"Chart drawn: {path}", markup=False)
    for outcome in report.failed:
        console.print(f"[red]fails:[/red] {outcome.words}")
    return 1 if report.failed else 0


def chosen(names: str | None) -> list[str]:
    """Return the names of the statements that the option means, in their order."""
    wanted = None if names is None else [name.strip() for name in names.split(",")]
    try:
        return [statement.id for statement in select(wanted)]
    except ValueError as error:
        raise CommandError(str(error)) from error


def verify_with_progress(names: list[str], seed: int, console: Console) -> Report:
    """Test statements under a progress bar that names the one at work."""
    texts = MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.description}")
    with threads(1), Progress(BarColumn(), *texts, console=console) as progress:
        provenance = collect_provenance()
        task = progress.add_task(names[0], total=len(names))
        found: list[Outcome] = []
        for outcome in verify(seed=seed, only=names):
            found.append(outcome)
            following = [*names, "done"][len(found)]
            progress.update(task, advance=1, description=following)
    return Report(seed, tuple(found), provenance)


def draw(report: Report, folder: Path) -> Iterator[Path]:
    """Draw the charts that the documentation shows, as far as a report has them."""
    from tricouple_lab.report.draw_matplotlib import png

    for outcome in report.outcomes:
        if outcome.id in PICTURES:
            path = folder / PICTURES[outcome.id]
            require_writable(path)
            path.write_bytes(png(chart_of(outcome), height=3.2))
            yield path


# --- tables and pages ----------------------------------------------------------------------------


def fill(text: str, report: Report) -> str:
    """Write the numbers of a report into a page.

    A block ``<!-- verify:etf --> … <!-- /verify -->`` becomes the table of the statement of that
    name; ``summary`` is the table of verdicts on the theory, ``quadrature`` that on the quadrature
    and ``conditions`` the sentence on the run.

    Raises:
        ValueError: If there is no block, or one whose name the report does not have.
    """
    if not BLOCK.search(text):
        raise ValueError("it has no block <!-- verify:NAME --> … <!-- /verify -->")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- verify:{name} -->\n{section(report, name).strip()}\n<!-- /verify -->"

    return BLOCK.sub(block, text)


def section(report: Report, name: str) -> str:
    """Return what stands in the block of a name."""
    if name == "conditions":
        return conditions(report)
    if name in ("summary", QUADRATURE):
        about = name == QUADRATURE
        return to_markdown(verdicts([o for o in report.outcomes if (o.kind == ACCURACY) is about]))
    try:
        return to_markdown(rows_table(report.find(name)))
    except KeyError:
        raise ValueError(f"the report does not have the statement {name!r}") from None


def readme(report: Report) -> str:
    """Return a page with the verdicts and all numbers, as Markdown."""
    parts = [f"# {TITLE}", verdict_count(report)]
    parts.append(to_markdown(verdicts(report.outcomes)).strip())
    for one in report.outcomes:
        parts += [f"## {one.id}", f"{one.words} ({one.reference}; {one.kind})"]
        parts.append(to_markdown(rows_table(one)).strip())
    return "\n\n".join([*parts, conditions(report)]) + "\n"


def article(report: Report) -> Article:
    """Return the same with charts, for a page."""
    table = to_html(verdicts(report.outcomes, "Statements and verdicts"))
    sections = [Section("summary", "Verdicts", table)]
    for one in report.outcomes:
        said = (
            f"{one.words} ({one.reference}; {one.kind}). {one.residual_is.capitalize()}: "
            f"{cell(one.residual)} (tolerance {plain(one.tolerance)}): {one.verdict}."
        )
        table = to_html(rows_table(one, f"Numbers behind {one.id}"))
        html = f"{paragraph(said)}\n{chart_html(chart_of(one))}\n{table}"
        sections.append(Section(one.id, one.id, html))
    sections.append(provenance_section(report.provenance, {"seed": report.seed}))
    return Article(TITLE, f"{verdict_count(report)} {conditions(report)}", sections)


def chart_of(outcome: Outcome) -> Chart:
    """Return the chart of a statement."""
    return Chart(outcome.id, outcome.figure.title, outcome.figure.alt, [outcome.figure])


def verdicts(outcomes: Sequence[Outcome], caption: str = "") -> Table:
    """Return the table of statements and verdicts."""
    head = ("statement", "in words", "in the paper", "residual", "tolerance", "verdict")
    rows = []
    for one in outcomes:
        residual = f"{cell(one.residual)} ({one.residual_is})"
        judged = residual, plain(one.tolerance), one.verdict
        rows.append((one.id, one.words, one.reference, *judged))
    return Table(caption, head, rows, words=4, **_stressed(outcomes, 5))


def brief_verdicts(report: Report) -> Table:
    """Return the same for a terminal, where only the words may break."""
    rows = [
        (
            f"{one.words} ({one.reference})",
            one.id,
            cell(one.residual),
            plain(one.tolerance),
            one.verdict,
        )
        for one in report.outcomes
    ]
    head = ("statement", "name", "residual", "tolerance", "verdict")
    return Table(f"the theory, seed {report.seed}", head, rows, **_stressed(report.outcomes, 4))


def _stressed(outcomes: Sequence[Outcome], column: int) -> dict[str, Any]:
    """The column of verdicts in bold and in colours."""
    kinds = {(row, column): one.verdict for row, one in enumerate(outcomes)}
    return {"bold": set(kinds), "kinds": kinds}


def rows_table(outcome: Outcome, caption: str = "") -> Table:
    """Return the numbers behind a statement."""
    head = list(outcome.rows[0])
    words = len(list(takewhile(lambda value: isinstance(value, str), outcome.rows[0].values())))
    cells = [[cell(row[name]) for name in head] for row in outcome.rows]
    return Table(caption, head, cells, words=words)


def list_table() -> Table:
    """Return the table of statements that can be tested."""
    rows = [(f"{one.words} ({one.reference})", one.id, one.kind) for one in STATEMENTS]
    return Table("statements", ("statement", "name", "kind"), rows)


def cell(value: str | int | float) -> str:
    """Return a number with three significant digits."""
    # Adding zero turns −0 into 0.
    return f"{value + 0.0:.3g}" if isinstance(value, float) else str(value)


def verdict_count(report: Report) -> str:
    """Say in one sentence how many statements hold."""
    found = [outcome.verdict for outcome in report.outcomes]
    own = sum(outcome.kind in (PROVED_HERE, ACCURACY) for outcome in report.outcomes)
    beyond = f", {own} of them not in the paper" if own else ""
    observed = found.count("measured")
    return (
        f"{found.count('holds')} of {len(found) - observed} statements hold{beyond}; "
        f"{observed} observation{'s' * (observed != 1)} beyond them."
    )


def conditions(report: Report) -> str:
    """Say in one sentence how the numbers were obtained."""
    facts = report.provenance
    return (
        f"Seed {report.seed}, float64, {facts['cores']} cores of {facts['cpu']}, "
        f"torch {facts['versions']['torch']}, {facts['date'][:10]}."
    )
