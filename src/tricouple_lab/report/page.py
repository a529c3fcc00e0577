"""One self-contained HTML page: articles of sections, tables and charts, nothing to download.

Example:
    >>> from tricouple_lab.report.tables import Table, to_html
    >>> table = to_html(Table("Residuals", ("statement", "residual"), [("etf", "1e-9")]))
    >>> article = Article("The theory, checked", "Every statement, measured.",
    ...                   [Section("numbers", "Numbers", table)])
    >>> page([article]).splitlines()[0]
    '<!DOCTYPE html>'

Charts become ``chart_sections(charts)``; the last section of a page should say where its numbers
come from: ``provenance_section(provenance, settings)``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from importlib.resources import files
from typing import Any, TypeAlias

from tricouple_lab.report.chart import DASHES, SYMBOLS, Chart, Panel, Style, stylesheet
from tricouple_lab.report.tables import Table, to_html

# The browser itself refuses anything that is not in the page.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)
HINT = (
    "Point at a line or a dot for its values; drag to zoom, double-click to go back; the legend "
    "switches lines on and off."
)

Part: TypeAlias = str | Table | Chart  # of a section; a text is HTML
# What the documentation shows, by the name of its file: a picture, or a text with tables in it.
Files: TypeAlias = dict[str, bytes | Sequence[Table | str]]


@dataclass(frozen=True)
class Section:
    """A part of an article: anchor, heading and HTML; without HTML it is left out."""

    id: str
    title: str
    html: str


@dataclass(frozen=True)
class Article:
    """Everything the page says about one subject."""

    title: str  # its heading
    lead: str  # what it is about, a sentence or two
    sections: Sequence[Section]  # its parts
    found: Sequence[str] = ()  # what was found, a sentence each, in a box on top
    # What makes it incomplete, a sentence each; the first is a warning on top.
    missing: Sequence[str] = ()
    left_out: Sequence[str] = ()  # what it never meant to have, a sentence each
    # What the reader can choose to see in the charts: key of ``when`` → its name, its options.
    choices: Mapping[str, tuple[str, Mapping[str, str]]] = field(default_factory=dict)


def page(articles: Iterable[Article]) -> str:
    """Return the whole page; plotly is included once, and only if there is a plot."""
    shown = list(articles)
    body = "\n".join(_article(article, number) for number, article in enumerate(shown, 1))
    title = escape(", ".join(article.title for article in shown))
    scripts = ""
    if 'class="plot"' in body:
        scripts = f"<script>{_plotly()}</script>\n<script>{asset('page.js')}</script>"
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{title} – tricouple report</title>
<style>
{stylesheet()}{asset("page.css")}</style>
</head>
<body>
<main>
{body}
</main>
{scripts}
</body>
</html>
"""


def chart_html(chart: Chart) -> str:
    """Return a chart: legend, panels with their text alternatives, caption, numbers as text."""
    small = any(panel.reach for panel in chart.panels)
    kind = "small" if small else "three" if len(chart.panels) % 3 == 0 else "two"
    panels = "\n".join(_panel(panel) for panel in chart.panels)
    details = ""
    if chart.tables:
        details = "<details><summary>The numbers as text</summary>{}</details>".format(
            "\n".join(map(to_html, chart.tables))
        )
    return f"""<figure class="figure">
{_legend(chart.styles)}{_slider(chart.steps)}<div class="panels {kind}">
{panels}
</div>
<p class="nothing" hidden>Nothing was measured for this choice.</p>
<figcaption>{escape(chart.caption)}</figcaption>
{details}
</figure>"""


def section(anchor: str, title: str, *parts: Part) -> Section:
    """Return HTML, tables and charts, one below the other; empty without a table or a chart."""
    shown = [html for part in parts if (html := part_html(part))]
    texts = sum(isinstance(part, str) and part != "" for part in parts)
    return Section(anchor, title, "\n".join(shown) if len(shown) > texts else "")


def part_html(part: Part) -> str:
    """Return a part of a section as HTML; nothing for a table or a chart of nothing."""
    if isinstance(part, Table):
        return to_html(part) if part.rows else ""
    if isinstance(part, Chart):
        return chart_html(part) if part.panels else ""
    return part


def chart_sections(charts: Iterable[Chart]) -> list[Section]:
    """Return a section for each chart that has something to show."""
    return [Section(own.id, own.title, chart_html(own)) for own in charts if own.panels]


def paragraph(text: str, kind: str = "") -> str:
    """Return a sentence as a paragraph.

    Example:
        >>> paragraph("a < b", "quiet")
        '<p class="quiet">a &lt; b</p>'
    """
    return f"<p{f' class={chr(34)}{kind}{chr(34)}' if kind else ''}>{escape(text)}</p>"


def items(sentences: Iterable[str]) -> str:
    """Return sentences as a list."""
    return "<ul>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in sentences) + "\n</ul>"


def provenance_section(
    provenance: Mapping[str, Any],
    settings: Mapping[str, Any],
    counted: Mapping[str, Any] | None = None,
) -> Section:
    """Return what is needed to judge or repeat a result.

    Provenance is as result files have it; ``counted`` is what else to say of how it was run.
    """
    origin = dict(provenance)
    versions = origin.pop("versions", None) or {}
    tables = {
        "How it was run": origin | dict(counted or {}),
        "Settings of the study": settings,
        "Versions": versions,
    }
    shown = [
        Table(caption, ("what", "value"), [row for row in _flat(values) if row[1]], words=2)
        for caption, values in tables.items()
        if values
    ]
    return Section("provenance", "Where the numbers come from", "\n".join(map(to_html, shown)))


def asset(name: str) -> str:
    """Return a file that is installed beside this module."""
    return files("tricouple_lab.report").joinpath("assets", name).read_text(encoding="utf-8")


def _flat(values: Mapping[str, Any], prefix: str = "") -> list[tuple[str, str]]:
    """Nested settings as dotted names.

    Example:
        >>> _flat({"loss": {"epsilon": 0.5}, "seed": 0})
        [('loss.epsilon', '0.5'), ('seed', '0')]
    """
    rows: list[tuple[str, str]] = []
    for key, value in values.items():
        if isinstance(value, Mapping):
            rows += _flat(value, f"{prefix}{key}.")
        elif value is not None:
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            rows.append((f"{prefix}{key}", text))
    return rows


def _article(article: Article, number: int) -> str:
    """One article; `number` keeps the anchors of several apart."""
    shown = [own for own in article.sections if own.html]
    links = " ".join(f'<a href="#s{number}-{own.id}">{escape(own.title)}</a>' for own in shown)
    sections = "\n".join(
        f'<section id="s{number}-{own.id}">\n<h2>{escape(own.title)}</h2>\n{own.html}\n</section>'
        for own in shown
    )
    found = ""
    if article.found:
        found = f'<div class="found">\n<h2>What was found</h2>\n{items(article.found)}\n</div>'
    plots = ""
    if 'class="plot"' in sections:
        without = "The plots need JavaScript; the tables and texts do not."
        plots = f"{paragraph(HINT, 'quiet')}\n<noscript>{paragraph(without, 'warning')}</noscript>"
    warning = ""
    if article.missing:
        more = " More under “What is missing”." if len(article.missing) > 1 else ""
        text = f"The study is not complete: {article.missing[0]}{more}"
        warning = paragraph(text, "warning")
    return f"""<article class="study">
<h1>{escape(article.title)}</h1>
{paragraph(article.lead)}
{warning}
{found}
<nav aria-label="Sections">{links}</nav>
{plots}
{_choices(article.choices)}
{sections}
</article>"""


def _panel(panel: Panel) -> str:
    from tricouple_lab.report.draw_plotly import drawing  # a page of tables does without plotly

    # "<" never appears in the data block, so nothing in it can end the script element.
    data = drawing(panel).to_json().replace("<", "\\u003c")
    return (
        f'<div class="panel"><h4>{escape(panel.title)}</h4>\n'
        f'<div class="plot" role="img" aria-label="{escape(panel.alt)}"></div>\n'
        f'<script type="application/json">{data}</script></div>'
    )


def _legend(styles: Mapping[str, Style]) -> str:
    if not styles:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-name="{escape(name)}">'
        f"{_swatch(look)}{escape(name)}</button>"
        for name, look in styles.items()
    )
    return f'<div class="legend" role="group" aria-label="Lines to show">{buttons}</div>\n'


def _swatch(look: Style) -> str:
    """A sample of a line that screen readers skip: the name stands beside it."""
    stops, at = [], 0
    for place, length in enumerate(DASHES[look.dash] or (1,)):
        colour = "transparent" if place % 2 else "currentColor"
        stops.append(f"{colour} {at}px {at + length}px")
        at += length
    return (
        f'<span class="swatch" aria-hidden="true" style="color:{look.colour};background-image:'
        f'repeating-linear-gradient(90deg,{",".join(stops)})">{SYMBOLS[look.symbol][1]}</span>'
    )


def _slider(steps: Sequence[int]) -> str:
    if len(steps) < 2:
        return ""
    shown = " ".join(map(str, steps))
    return (
        f'<div class="movie" data-steps="{shown}"><button type="button">Play</button>\n'
        f'<label>step <input type="range" min="0" max="{len(steps) - 1}" value="{len(steps) - 1}"'
        f' step="1">\n<output>{steps[-1]}</output></label></div>\n'
    )


def _choices(choices: Mapping[str, tuple[str, Mapping[str, str]]]) -> str:
    fields, away = "", " hidden"
    for key, (title, offered) in choices.items():
        options = "".join(
            f'<option value="{escape(value)}">{escape(name)}</option>'
            for value, name in offered.items()
        )
        # One option is no choice: the script still reads it, the reader need not see it.
        hidden = "" if len(offered) > 1 else " hidden"
        away = away and hidden
        if options:
            select = f'<select data-key="{key}">{options}</select>'
            fields += f"<label{hidden}>{escape(title)} {select}</label>\n"
    label = "What the figures show"
    whole = f'<div class="choices" role="group" aria-label="{label}"{away}>{fields}</div>'
    return whole if fields else ""


@cache
def _plotly() -> str:
    """The drawing library, safe inside a script element."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")
