"""``tricouple reproduce``: any table or figure of the paper, ours beside theirs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from difflib import get_close_matches

from rich.console import Console

from tricouple_lab.experiments.reproduce import ablation, studies, timing
from tricouple_lab.experiments.reproduce.items import Item, Request, Shown
from tricouple_lab.experiments.runs.command import user_errors
from tricouple_lab.files import write_text
from tricouple_lab.options import CommandError
from tricouple_lab.provenance import collect_provenance, require_clean
from tricouple_lab.report.page import (
    Article,
    Section,
    chart_sections,
    items,
    page,
    provenance_section,
)
from tricouple_lab.report.tables import to_html, to_markdown, to_terminal

ITEMS: dict[str, Item] = {
    item.name: item for item in (*studies.ITEMS, ablation.ITEM, *timing.ITEMS)
}


def run(args: argparse.Namespace) -> int:
    """Run the items, or write the page."""
    console = Console()
    if args.list:
        print(listed())
        return 0
    chosen = [find(word) for word in args.items]
    if chosen:
        require_clean(allow_dirty=args.allow_dirty)
    out = args.out / "smoke" if args.scale == "smoke" else args.out
    origin = collect_provenance()
    with user_errors("The same command again goes on from here."):
        for item in chosen:
            item.run(Request(out, args.scale, console, args.workers, origin))
        for item in chosen:
            shown = item.show(out)
            for table in shown.tables:
                console.print(to_terminal(table))
            for sentence in shown.verdict:
                console.print(sentence, markup=False, highlight=False)
        every = [(item, item.show(out)) for item in ITEMS.values()]
        path = out / "reproduce.html"
        write_text(path, page([article(every, origin)]))
        write_text(path.with_suffix(".md"), tables_page(every))
    console.print(f"{path}", markup=False)
    return 0


def listed() -> str:
    """All items, a paragraph each."""
    return "\n".join(
        f"{item.name}  ({', '.join(item.labels)})\n    {item.title}\n    needs {item.needs}; "
        + "; ".join(f"{scale}: {words}" for scale, words in item.time.items())
        for item in ITEMS.values()
    )


def find(word: str) -> Item:
    """The item of a name or of a label of the paper."""
    for item in ITEMS.values():
        if word == item.name or word in item.labels:
            return item
    near = get_close_matches(word, ITEMS, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise CommandError(f"no item {word!r}: {hint}there are {', '.join(ITEMS)}")


def tables_page(shown: Sequence[tuple[Item, Shown]]) -> str:
    """All that has been run, in Markdown: tables and verdicts."""
    parts = ["# The paper, run again\n"]
    for item, own in shown:
        if own.tables or own.charts:
            title = (
                f"## {item.title}\n\n`tricouple reproduce {item.name}`, {', '.join(item.labels)}"
            )
            parts += [f"{title}\n", *(f"- {sentence}" for sentence in own.verdict), ""]
            parts += map(to_markdown, own.tables)
    return "\n".join(parts)


def article(shown: Sequence[tuple[Item, Shown]], origin: dict[str, object]) -> Article:
    """One page of everything."""
    sections = []
    for item, own in shown:
        parts = [items(list(own.verdict)), *map(to_html, own.tables)]
        title = f"{item.title} ({', '.join(item.labels)})"
        sections.append(Section(item.name, title, "\n".join(parts)))
        sections += chart_sections([chart for chart in own.charts if chart.panels])
    there = [item.name for item, own in shown if own.tables or own.charts]
    missing = [item.name for item, _ in shown if item.name not in there]
    return Article(
        "The paper, run again",
        "Every table and figure of “Multi-Marginal Inverse Optimal Transport for Contrastive "
        "Learning”, with the paper's numbers beside ours.",
        [*sections, provenance_section(origin, {})],
        found=[f"{len(there)} of {len(shown)} tables and figures have been run."],
        missing=[f"Not run yet: {', '.join(missing)}."] if missing else [],
    )
