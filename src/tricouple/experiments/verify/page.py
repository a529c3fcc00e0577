"""The report as one self-contained HTML page: every statement with its figure and its numbers."""

from __future__ import annotations

from html import escape

from tricouple.experiments.verify.markdown import cell, conditions, tolerance_text, verdict_count
from tricouple.experiments.verify.results import Figure, Outcome, Report, Row
from tricouple.experiments.verify.svg import chart

STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #ffffff; --faint: #d0d7de;
  --holds: #1a7f37; --fails: #b42318; --measured: #57606a;
  --c0: #0a5ac2; --c1: #b54708; --c2: #1a7f37; --c3: #8250df;
  --c4: #0e7490; --c5: #a5195f; --c6: #6b5900; --c7: #57606a; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --faint: #30363d;
  --holds: #56d364; --fails: #ff7b72; --measured: #9da7b3;
  --c0: #79b8ff; --c1: #ffa657; --c2: #7ee787; --c3: #d2a8ff;
  --c4: #76e3ea; --c5: #ff9bce; --c6: #e3c64a; --c7: #b1bac4; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper);
  max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
th, td { border-bottom: 1px solid var(--faint); padding: .25rem .6rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
.words td { text-align: left; }
section { border-top: 1px solid var(--faint); margin-top: 2.5rem; }
figure { margin: 1rem 0; } figcaption { font-weight: 600; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--ink); }
.grid { stroke: var(--faint); stroke-width: .6; } .axis { stroke: var(--ink); }
.line { fill: none; stroke-width: 1.8; }
.holds { color: var(--holds); } .fails { color: var(--fails); }
.measured { color: var(--measured); }
.holds, .fails { font-weight: 600; }
""" + "\n".join(
    f".line.c{n} {{ stroke: var(--c{n}); }} .points.c{n} {{ fill: var(--c{n}); }}" for n in range(8)
)


def standalone_chart(figure: Figure) -> str:
    """Return a chart as an SVG file of its own, with the colours of the page."""
    head, _, rest = chart(figure).partition(">")
    head = head.replace("<svg", '<svg xmlns="http://www.w3.org/2000/svg"')
    own = "svg { background: var(--paper); font-family: system-ui, sans-serif; }"
    return f"{head}><style>{STYLE}\n{own}</style>{rest}\n"


def page(report: Report) -> str:
    """Return the whole page."""
    rows = "".join(
        f'<tr><td><a href="#{outcome.id}">{outcome.id}</a></td><td>{escape(outcome.words)}</td>'
        f"<td>{escape(outcome.reference)}</td><td>{cell(outcome.residual)}</td>"
        f"<td>{tolerance_text(outcome)}</td>{_verdict(outcome)}</tr>"
        for outcome in report.outcomes
    )
    sections = "\n".join(_section(outcome) for outcome in report.outcomes)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>tricouple verify</title>
<style>{STYLE}</style>
</head>
<body>
<h1>The theory, checked by running it</h1>
<p>{escape(verdict_count(report))}</p>
<div class="wide"><table class="words">
<tr><th>statement</th><th>in words</th><th>in the paper</th><th>residual</th><th>tolerance</th>
<th>verdict</th></tr>
{rows}
</table></div>
{sections}
<p>{escape(conditions(report))}</p>
</body>
</html>
"""


def _section(outcome: Outcome) -> str:
    return f"""<section id="{outcome.id}">
<h2>{escape(outcome.words)}</h2>
<p>{escape(outcome.reference)}, {outcome.kind}. {escape(outcome.residual_is.capitalize())}:
{cell(outcome.residual)} (tolerance {tolerance_text(outcome)}).</p>
<figure><figcaption>{escape(outcome.figure.title)}</figcaption>
{chart(outcome.figure)}
</figure>
<div class="wide">{_table(outcome.rows)}</div>
</section>"""


def _table(rows: tuple[Row, ...]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in rows[0])
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell(value))}</td>" for value in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"


def _verdict(outcome: Outcome) -> str:
    return f'<td class="{outcome.verdict}">{outcome.verdict}</td>'
