"""Tables as HTML (escaped, scrollable on a phone), Markdown or for a terminal, the best in bold."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from html import escape

from rich.table import Table as RichTable
from rich.text import Text

from tricouple.report.statistics import MeanStd
from tricouple.report.words import mean_std


@dataclass(frozen=True)
class Table:
    """A table of texts.

    Attributes:
        caption: What it shows.
        head: Column titles.
        rows: Cells, as many as there are titles.
        words: How many leading columns hold words, not numbers.
        bold: Cells to stress, as (row, column).
        notes: HTML classes of cells, by (row, column).
        spans: A line above the titles: words, and how many columns they are about.
    """

    caption: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    bold: Set[tuple[int, int]] = frozenset()
    notes: dict[tuple[int, int], str] | None = None
    spans: Sequence[tuple[str, int]] = ()


@dataclass(frozen=True)
class Column:
    """A column of measured values.

    Attributes:
        title: Its heading.
        values: Mean ± std of each row.
        badness: What the best row has least of; None where no value is the best.
    """

    title: str
    values: Sequence[MeanStd]
    badness: Callable[[float], float] | None = None


def measured_table(
    caption: str, head: str, names: Sequence[str], columns: Sequence[Column]
) -> Table:
    """Lay out columns of measurements, a row for each name, the best of each column in bold."""
    rows = [
        (name, *(mean_std(column.values[row]) for column in columns))
        for row, name in enumerate(names)
    ]
    bold = {(row, number) for number, c in enumerate(columns, 1) for row in best_rows(c)}
    return Table(caption, (head, *(c.title for c in columns)), rows, bold=frozenset(bold))


def best_rows(column: Column) -> list[int]:
    """The rows that share the best mean as it is written; none if nothing was measured.

    Example:
        >>> best_rows(Column("error", [MeanStd(0.2, 0.0, 2), MeanStd(0.1, 0.0, 2)], abs))
        [1]
    """
    if column.badness is None:
        return []
    scores = [column.badness(value.mean) for value in column.values]
    best = min((score for score in scores if math.isfinite(score)), default=math.nan)
    # Digits that are not shown should not decide.
    return [row for row, score in enumerate(scores) if math.isclose(score, best, rel_tol=5e-4)]


def html_table(table: Table) -> str:
    """Return a table as HTML in a box that scrolls sideways where the screen is narrow."""
    head = "".join(
        f'<th scope="col"{_words(table, column)}>{escape(title)}</th>'
        for column, title in enumerate(table.head)
    )
    above = "".join(
        f'<th scope="colgroup" colspan="{width}" class="span">{escape(text)}</th>'
        if text
        else f'<td colspan="{width}"></td>'
        for text, width in table.spans
    )
    above = f"<tr>{above}</tr>\n" if above else ""
    body = "\n".join(_row(table, number) for number in range(len(table.rows)))
    caption = escape(table.caption)
    # The names of the rows stay in sight while the numbers scroll sideways.
    kind = "wide long" if table.words < 2 else "wide"
    return (
        f'<div class="{kind}" role="region" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption>\n<thead>{above}<tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>"
    )


def markdown_table(table: Table) -> str:
    """Return a table as Markdown, under its caption.

    Example:
        >>> print(markdown_table(Table("Errors", ("loss", "error"), [("a", "1")], bold={(0, 1)})))
        Errors:
        <BLANKLINE>
        | loss | error |
        | --- | --: |
        | a | **1** |
        <BLANKLINE>
    """
    rule = ["---" if column < table.words else "--:" for column in range(len(table.head))]
    bold = table.bold
    body = [
        [f"**{text}**" if (row, column) in bold else text for column, text in enumerate(cells)]
        for row, cells in enumerate(table.rows)
    ]
    lines = "".join(f"| {' | '.join(cells)} |\n" for cells in (table.head, rule, *body))
    return f"{table.caption}:\n\n{lines}"


def terminal_table(table: Table) -> RichTable:
    """Return a table for a terminal: words wrap where it is narrow, numbers do not."""
    shown = RichTable(title=table.caption)
    for column, title in enumerate(table.head):
        if column < table.words:
            shown.add_column(title)
        else:
            width = max((len(row[column]) for row in table.rows), default=0)
            shown.add_column(title, justify="right", min_width=width)
    for row, cells in enumerate(table.rows):
        bold = [(row, column) in table.bold for column in range(len(cells))]
        shown.add_row(*(Text(t, style="bold" * b) for t, b in zip(cells, bold, strict=True)))
    return shown


def _row(table: Table, number: int) -> str:
    cells = []
    for column, text in enumerate(table.rows[number]):
        shown = escape(text)
        if (number, column) in table.bold:
            shown = f"<strong>{shown}</strong>"
        note = (table.notes or {}).get((number, column))
        kind = f' class="{note}"' if note else _words(table, column)
        # The first cell names its row.
        cells.append(
            f'<th scope="row"{kind}>{shown}</th>' if column == 0 else f"<td{kind}>{shown}</td>"
        )
    return f"<tr>{''.join(cells)}</tr>"


def _words(table: Table, column: int) -> str:
    return ' class="words"' if column < table.words else ""
