"""The frame of the page: plain HTML around articles, sections and figures, nothing to download."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from html import escape
from importlib.resources import files

from tricouple.report.palette_before import stylesheet
from tricouple.report.panel import Figure, Panel
from tricouple.report.swatch import swatch
from tricouple.report.words import METHODS

# The browser itself refuses anything that is not in the page.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "img-src data: blob:; font-src data:"
)


@dataclass(frozen=True)
class Section:
    """A part of an article: anchor, heading and HTML."""

    id: str
    title: str
    html: str


@dataclass(frozen=True)
class Choices:
    """Something the reader can choose: a key of ``when``, its name, and the options."""

    key: str
    title: str
    options: dict[str, str]


@dataclass(frozen=True)
class Article:
    """Everything the page says about one study."""

    title: str
    lead: str
    found: list[str]
    warning: str
    choices: tuple[Choices, ...]
    sections: tuple[Section, ...]


def page(articles: Iterable[Article]) -> str:
    """Return the whole page; plotly is included once, and only if there is a plot."""
    shown = list(articles)
    body = "\n".join(article_html(article, number) for number, article in enumerate(shown, 1))
    title = escape(", ".join(article.title for article in shown))
    scripts = ""
    if 'class="plot"' in body:
        scripts = f"<script>{plotly_source()}</script>\n<script>{asset('page.js')}</script>"
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


def article_html(article: Article, number: int) -> str:
    """Return one study; `number` keeps the anchors of several apart."""
    links = " ".join(
        f'<a href="#s{number}-{section.id}">{escape(section.title)}</a>'
        for section in article.sections
    )
    sections = "\n".join(
        f'<section id="s{number}-{section.id}">\n<h2>{escape(section.title)}</h2>\n'
        f"{section.html}\n</section>"
        for section in article.sections
    )
    warning = f'<p class="warning">{escape(article.warning)}</p>' if article.warning else ""
    return f"""<article class="study">
<h1>{escape(article.title)}</h1>
<p>{escape(article.lead)}</p>
{warning}
<div class="found">
<h2>What was found</h2>
{items(article.found)}
</div>
<nav aria-label="Sections">{links}</nav>
<p class="quiet">Point at a line or a dot for its values; drag to zoom, double-click to go back; the
legend switches methods on and off.</p>
<noscript><p class="warning">The plots need JavaScript; the tables and texts do not.</p></noscript>
{_choices_html(article.choices)}
{sections}
</article>"""


def figure_html(figure: Figure) -> str:
    """Return a figure: legend, panels with their text alternatives, caption, numbers as text."""
    kind = "small" if figure.small else "three" if len(figure.panels) % 3 == 0 else "two"
    panels = "\n".join(_panel_html(panel) for panel in figure.panels)
    details = ""
    if figure.text:
        details = f"<details><summary>The numbers as text</summary>{figure.text}</details>"
    return f"""<figure class="figure">
{_legend(figure.methods)}{_slider(figure)}<div class="panels {kind}">
{panels}
</div>
<p class="nothing" hidden>Nothing was measured for this choice.</p>
<figcaption>{escape(figure.caption)}</figcaption>
{details}
</figure>"""


def items(sentences: Iterable[str]) -> str:
    """Return sentences as a list."""
    return "<ul>\n" + "\n".join(f"<li>{escape(text)}</li>" for text in sentences) + "\n</ul>"


def asset(name: str) -> str:
    """Return a file that is installed beside this module."""
    return files("tricouple.report").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def plotly_source() -> str:
    """Return the drawing library, safe inside a script element."""
    from plotly.offline import get_plotlyjs

    return str(get_plotlyjs()).replace("</script", "<\\/script")


def _panel_html(panel: Panel) -> str:
    # "<" never appears in the data block, so nothing in it can end the script element.
    data = panel.drawing.to_json().replace("<", "\\u003c")
    return (
        f'<div class="panel"><h4>{escape(panel.title)}</h4>\n'
        f'<div class="plot" role="img" aria-label="{escape(panel.label)}"></div>\n'
        f'<script type="application/json">{data}</script></div>'
    )


def _legend(methods: tuple[str, ...]) -> str:
    if not methods:
        return ""
    buttons = "".join(
        f'<button type="button" aria-pressed="true" data-method="{escape(method)}">'
        f"{swatch(method)}{escape(METHODS.get(method, method))}</button>"
        for method in methods
    )
    return f'<div class="legend" role="group" aria-label="Methods to show">{buttons}</div>\n'


def _slider(figure: Figure) -> str:
    if len(figure.movie_steps) < 2:
        return ""
    last = len(figure.movie_steps) - 1
    steps = " ".join(str(step) for step in figure.movie_steps)
    return (
        f'<div class="movie" data-steps="{steps}"><button type="button">Play</button>\n'
        f'<label>step <input type="range" min="0" max="{last}" value="{last}" step="1">\n'
        f"<output>{figure.movie_steps[-1]}</output></label></div>\n"
    )


def _choices_html(choices: tuple[Choices, ...]) -> str:
    offered = [choice for choice in choices if choice.options]
    if not offered:
        return ""
    # One option is no choice: the script still reads it, the reader need not see it.
    fields = "".join(
        f'<label{_hidden(choice)}>{escape(choice.title)} <select data-key="{escape(choice.key)}">'
        + "".join(
            f'<option value="{escape(value)}">{escape(name)}</option>'
            for value, name in choice.options.items()
        )
        + "</select></label>\n"
        for choice in offered
    )
    hidden = "" if any(len(choice.options) > 1 for choice in offered) else " hidden"
    return (
        f'<div class="choices" role="group" aria-label="What the figures show"{hidden}>'
        f"{fields}</div>"
    )


def _hidden(choice: Choices) -> str:
    return "" if len(choice.options) > 1 else " hidden"
