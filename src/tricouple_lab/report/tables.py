"""Tables as data, and as HTML, as Markdown or for a terminal.

Example:
    >>> table = Table("Recall", ("loss", "@1"), [("a", "10.0"), ("b", "12.0")], bold={(1, 1)})
    >>> print(to_markdown(table))
    Recall:
    <BLANKLINE>
    | loss | @1 |
    | --- | --: |
    | a | 10.0 |
    | b | **12.0** |
    <BLANKLINE>

``to_html(table)`` is a string for a section of a page, ``to_terminal(table)`` is for
``rich.console.Console().print``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from html import escape
from itertools import chain, repeat
from typing import TypeAlias

from rich.table import Table as RichTable
from rich.text import Text

from tricouple_lab.report.numbers import MeanStd, mean_std

Badness: TypeAlias = Callable[[float], float]  # what the best of a column has least of
HUES = {"holds": "green", "fails": "red"}  # of kinds of cells in a terminal


@dataclass(frozen=True)
class Table:
    """A table of texts; none of them is taken for markup."""

    caption: str  # what it shows; Markdown leaves out an empty one
    head: Sequence[str]  # column titles
    rows: Sequence[Sequence[str]]  # cells, as many as there are titles
    words: int = 1  # how many leading columns hold words, not numbers
    bold: Set[tuple[int, int]] = frozenset()  # cells to stress, as (row, column)
    # HTML classes of cells, by (row, column): "holds" and "fails" are coloured everywhere.
    kinds: Mapping[tuple[int, int], str] = field(default_factory=dict)
    # A line above the titles: words, and how many columns they are about.
    spans: Sequence[tuple[str, int]] = ()
    note: str = ""  # how to read it, a line below

    @property
    def over(self) -> list[str]:
        """What stands above each title."""
        above = list(chain.from_iterable(repeat(text, width) for text, width in self.spans))
        return above + [""] * (len(self.head) - len(above))

    def __rich__(self) -> RichTable:
        return to_terminal(self)

    def narrow(self, *titles: str, note: str = "") -> Table:
        """The columns of these titles (all if none is given), in cells that wrap.

        Example:
            >>> Table("", ("loss", "@1", "@5"), [("a", "10", "20")]).narrow("loss", "@5").rows
            [('a', '20')]
        """
        kept = [self.head.index(title) for title in titles or self.head]
        place = {column: number for number, column in enumerate(kept)}
        return Table(
            self.caption,
            [self.head[column] for column in kept],
            [tuple(row[column] for column in kept) for row in self.rows],
            words=len(kept),
            bold={(row, place[column]) for row, column in self.bold if column in place},
            kinds={(r, place[c]): kind for (r, c), kind in self.kinds.items() if c in place},
            note=note,
        )


@dataclass(frozen=True)
class Column:
    """A column of measured values."""

    title: str  # its heading
    values: Sequence[MeanStd]  # mean ± std of each row
    # None where no value is the best.
    badness: Badness | None = None
    write: Callable[[MeanStd], str] = mean_std  # how a value is written


def measured_table(
    caption: str, head: Sequence[str], names: Sequence[Sequence[str]], columns: Sequence[Column]
) -> Table:
    """Lay out columns of measurements, the best of each in bold, beside columns of words.

    ``head`` has the titles of the words that lead a row, ``names`` those words, for each row.
    """
    rows = [
        (*name, *(column.write(column.values[row]) for column in columns))
        for row, name in enumerate(names)
    ]
    bold = {
        (row, place) for place, column in enumerate(columns, len(head)) for row in best_rows(column)
    }
    titles = (*head, *(column.title for column in columns))
    # c, steps and seeds are numbers: only the first of the leading columns is a word.
    return Table(caption, titles, rows, bold=bold)


def best_rows(column: Column) -> list[int]:
    """The rows that share the best mean as it is written; none if nothing was measured.

    Example:
        >>> best_rows(Column("error", [MeanStd(0.2, 0.0, 2), MeanStd(0.1, 0.0, 2)], abs))
        [1]
    """
    if column.badness is None:
        return []
    scores = [column.badness(value.mean) for value in column.values]
    finite = [row for row, score in enumerate(scores) if math.isfinite(score)]
    best = min(finite, key=lambda row: scores[row], default=None)
    if best is None or len(finite) < 2:  # one alone is not the best of anything
        return []
    # Digits that are not shown should not decide.
    shown = [column.write(MeanStd(value.mean)) for value in column.values]
    return [row for row in finite if shown[row] == shown[best]]


def to_html(table: Table) -> str:
    """Return a table as HTML in a box that scrolls sideways where the screen is narrow."""
    head = "".join(
        f'<th scope="col"{_kind(table, -1, column)}>{escape(title)}</th>'
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
    note = f'\n<p class="quiet">{escape(table.note)}</p>' if table.note else ""
    # The names of the rows stay in sight while the numbers scroll sideways.
    kind = "wide long" if table.words < 2 else "wide"
    return (
        f'<div class="{kind}" role="region" aria-label="{caption}" tabindex="0"><table>'
        f"<caption>{caption}</caption>\n<thead>{above}<tr>{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody></table></div>{note}"
    )


def to_markdown(table: Table) -> str:
    """Return a table as Markdown, between its caption and its note."""
    head = [
        f"{above}: {title}" if above else title
        for above, title in zip(table.over, table.head, strict=True)
    ]
    rule = ["---" if column < table.words else "--:" for column in range(len(table.head))]
    body = [
        [
            f"**{text}**" if text and (row, column) in table.bold else text
            for column, text in enumerate(cells)
        ]
        for row, cells in enumerate(table.rows)
    ]
    lines = "".join(
        f"| {' | '.join(text.replace('|', chr(92) + '|') for text in cells)} |\n"
        for cells in (head, rule, *body)
    )
    caption = f"{table.caption}:\n\n" if table.caption else ""
    return f"{caption}{lines}" + (f"\n{table.note}\n" if table.note else "")


def to_terminal(table: Table) -> RichTable:
    """Return a table for a terminal: words wrap where it is narrow, numbers do not."""
    about = [text for text, _ in table.spans if text]
    title = ", ".join([table.caption, *about]) if len(about) == 1 else table.caption
    shown = RichTable(
        title=Text(title, style="italic"), caption=Text(table.note) if table.note else None
    )
    for column, (above, title) in enumerate(zip(table.over, table.head, strict=True)):
        if column < table.words:
            shown.add_column(Text(title), overflow="fold")
        else:
            width = max((len(row[column]) for row in table.rows), default=0)
            heading = f"{above}\n{title}" if len(about) > 1 else title
            shown.add_column(Text(heading), justify="right", min_width=width)
    for row, cells in enumerate(table.rows):
        looks = [_look(table, row, column) for column in range(len(cells))]
        shown.add_row(*(Text(text, style=look) for text, look in zip(cells, looks, strict=True)))
    return shown


def _look(table: Table, row: int, column: int) -> str:
    hue = next((HUES[k] for k in table.kinds.get((row, column), "").split() if k in HUES), "")
    return " ".join(filter(None, ["bold" if (row, column) in table.bold else "", hue]))


def _row(table: Table, number: int) -> str:
    cells = ""
    for column, text in enumerate(table.rows[number]):
        stressed = (number, column) in table.bold
        shown = f"<strong>{escape(text)}</strong>" if stressed else escape(text)
        kind = _kind(table, number, column)
        # The first cell names its row.
        cells += f"<td{kind}>{shown}</td>" if column else f'<th scope="row"{kind}>{shown}</th>'
    return f"<tr>{cells}</tr>"


def _kind(table: Table, row: int, column: int) -> str:
    found = table.kinds.get((row, column)) or ("words" if column < table.words else "")
    return f' class="{found}"' if found else ""
