"""The report as Markdown: the page beside the data, and tables inside a documentation page."""

from __future__ import annotations

import re
from collections.abc import Sequence

from tricouple.experiments.verify.results import PROVED_HERE, Outcome, Report, Row

BLOCK = re.compile(r"<!-- verify:(?P<name>[a-z-]+) -->\n.*?<!-- /verify -->", re.DOTALL)
SUMMARY, CONDITIONS = "summary", "conditions"


def readme(report: Report) -> str:
    """Return a page with the verdicts and all numbers."""
    parts = ["# The theory, checked by running it", verdict_count(report), summary(report)]
    for outcome in report.outcomes:
        sentence = f"{outcome.words} ({outcome.reference}; {outcome.kind})"
        parts += [f"## {outcome.id}", sentence, rows_table(outcome.rows)]
    return "\n\n".join([*parts, conditions(report)]) + "\n"


def fill(text: str, report: Report) -> str:
    """Write the numbers of a report into a page.

    A block ``<!-- verify:etf --> … <!-- /verify -->`` becomes the table of the statement of that
    name; ``summary`` is the table of verdicts and ``conditions`` the sentence on the run.

    Raises:
        ValueError: If there is no block, or one whose name the report does not have.
    """
    if not BLOCK.search(text):
        raise ValueError("it has no block <!-- verify:NAME --> … <!-- /verify -->")

    def block(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- verify:{name} -->\n{section(report, name)}\n<!-- /verify -->"

    return BLOCK.sub(block, text)


def section(report: Report, name: str) -> str:
    """Return what stands in the block of a name."""
    if name == SUMMARY:
        return summary(report)
    if name == CONDITIONS:
        return conditions(report)
    try:
        return rows_table(report.find(name).rows)
    except KeyError:
        raise ValueError(f"the report does not have the statement {name!r}") from None


def summary(report: Report) -> str:
    """Return the table of statements and verdicts."""
    head = ["statement", "in words", "in the paper", "residual", "tolerance", "verdict"]
    rows = [
        [
            f"`{outcome.id}`",
            outcome.words,
            outcome.reference,
            f"{cell(outcome.residual)} ({outcome.residual_is})",
            tolerance_text(outcome),
            f"**{outcome.verdict}**",
        ]
        for outcome in report.outcomes
    ]
    return table(head, rows)


def rows_table(rows: Sequence[Row]) -> str:
    """Return the numbers behind a statement."""
    head = list(rows[0])
    return table(head, [[cell(row[name]) for name in head] for row in rows])


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(value: str | int | float) -> str:
    """Return a number with three significant digits."""
    # Adding zero turns −0 into 0.
    return f"{value + 0.0:.3g}" if isinstance(value, float) else str(value)


def tolerance_text(outcome: Outcome) -> str:
    """Return the tolerance, a dash for an observation."""
    return "–" if outcome.tolerance is None else f"{outcome.tolerance:g}"


def verdict_count(report: Report) -> str:
    """Say in one sentence how many statements hold."""
    verdicts = [outcome.verdict for outcome in report.outcomes]
    own = [outcome.verdict for outcome in report.outcomes if outcome.kind == PROVED_HERE]
    proved = len(verdicts) - verdicts.count("measured")
    beyond = f", {len(own)} of them proved here and not in the paper" if own else ""
    return (
        f"{verdicts.count('holds')} of {proved} statements hold{beyond}; "
        f"{verdicts.count('measured')} observations beyond them."
    )


def conditions(report: Report) -> str:
    """Say in one sentence how the numbers were obtained."""
    facts = report.provenance
    return (
        f"Seed {report.seed}, float64, {facts['cores']} cores of {facts['cpu']}, "
        f"torch {facts['versions']['torch']}, {facts['date'][:10]}."
    )
