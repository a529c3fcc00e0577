"""A report as tables: for the terminal with rich, for the README in Markdown."""

from __future__ import annotations

from collections.abc import Sequence

from rich.table import Table

from tricouple.experiments.bench.contenders import LOSS, PAIR_PLAN, TRIPLET_PLAN
from tricouple.experiments.bench.record import Measurement, Report
from tricouple.experiments.bench.summary import Claim, claims, growth, three_digits

# Of a run with more sizes than a page has room for.
README_SIZES = (256, 1024, 4096, 8192)
ROOM = 5
START, END = "<!-- bench -->", "<!-- /bench -->"


def terminal_tables(report: Report) -> list[Table]:
    """Return one table a task, with a row a contender and a column a size."""
    return [
        task_table(report, task)
        for task in (LOSS, TRIPLET_PLAN, PAIR_PLAN)
        if contenders_of(report, task)
    ]


def task_table(report: Report, task: str) -> Table:
    """Return the times, growth and memory of the contenders of one task."""
    table = Table(title=f"{task}, best time in ms")
    table.add_column("N =", no_wrap=True)
    for size in report.sizes():
        table.add_column(str(size), justify="right")
    for heading in ("time ∝ N^", "memory ∝ N^", "extra memory"):
        table.add_column(heading, justify="right")
    for contender in contenders_of(report, task):
        times = [time_cell(report.find(contender, size)) for size in report.sizes()]
        slopes = [
            slope_cell(growth(report, contender, field)) for field in ("seconds", "extra_bytes")
        ]
        table.add_row(contender, *times, *slopes, largest_memory(report, contender))
    return table


def claims_table(found: Sequence[Claim]) -> Table:
    """Return the claims with their targets, met or missed."""
    table = Table(title="targets")
    table.add_column("measured")
    table.add_column("target")
    table.add_column("met")
    for claim in found:
        table.add_row(claim.text, claim.target, "[green]yes" if claim.met else "[red]no")
    return table


def readme_section(report: Report) -> str:
    """Return the Markdown that stands between the markers of the README."""
    sizes = report.sizes()
    if len(sizes) > ROOM:
        sizes = tuple(size for size in README_SIZES if size in sizes)
    header = ["value and gradient, time in ms", *(f"N = {size}" for size in sizes), "extra memory"]
    rows = [
        [
            contender,
            *(time_cell(report.find(contender, size)) for size in sizes),
            largest_memory(report, contender),
        ]
        for contender in contenders_of(report, LOSS)
    ]
    lines = [markdown_row(header), markdown_row(["---", *("---:" for _ in header[1:])])]
    lines += [markdown_row(row) for row in rows]
    lines += ["", "Measured against the targets of the project:", ""]
    lines += [
        f"- {claim.text} (target: {claim.target}{verdict(claim)})" for claim in claims(report)
    ]
    return "\n".join([*lines, "", conditions(report)])


def insert_into(readme: str, section: str) -> str:
    """Replace what stands between the markers.

    Raises:
        ValueError: If the text does not have both markers, in order.
    """
    before, start, rest = readme.partition(START)
    _, end, after = rest.partition(END)
    if not (start and end):
        raise ValueError(f"the markers {START} and {END} are missing")
    return f"{before}{START}\n{section}\n{END}{after}"


def conditions(report: Report) -> str:
    """Say in one sentence how the numbers were obtained."""
    problem, facts = report.problem, report.provenance
    return (
        f"{facts['cores']} cores of {facts['cpu']} (load {facts['load']:.1f} before the run), "
        f"torch {facts['versions']['torch']}, float32, "
        f"d = {problem.dim}, {problem.classes} unbalanced classes, τ = {problem.temperature:g}, "
        f"ε = {problem.epsilon:g}, {problem.n_iters} sweeps; best of interleaved rounds on "
        f"{facts['date'][:10]}; extra memory in a process of its own, in N×N float32 matrices."
    )


def contenders_of(report: Report, task: str) -> list[str]:
    """Return the names of a task's contenders in the order they were measured."""
    return list(dict.fromkeys(row.contender for row in report.measurements if row.task == task))


def time_cell(measurement: Measurement | None) -> str:
    """Return a time in ms, the note if there is none, a dash if it was not tried."""
    if measurement is None:
        return "–"
    if measurement.seconds is None:
        return measurement.note
    return three_digits(1e3 * measurement.seconds)


def largest_memory(report: Report, contender: str) -> str:
    """Return the extra memory at the largest size where it was measured."""
    for size in reversed(report.sizes()):
        found = report.find(contender, size)
        if found is not None and found.extra_matrices is not None:
            return f"{three_digits(found.extra_matrices)} N² at {size}"
    return "–"


def slope_cell(slope: float | None) -> str:
    """Return an exponent with two decimals."""
    return "–" if slope is None else f"{slope:.2f}"


def markdown_row(cells: Sequence[str]) -> str:
    """Return one row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def verdict(claim: Claim) -> str:
    """Return the remark that follows a target."""
    return "" if claim.met else ", **missed**"
