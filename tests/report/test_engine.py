"""Tables, charts and pages as any command uses them, without a study."""

import io

import numpy as np
import pytest
from rich.console import Console

from report.html_check import check_picture, parse
from tricouple_lab.report.chart import (
    DASHES,
    SYMBOLS,
    Axis,
    Chart,
    Cloud,
    Grid,
    Line,
    Panel,
    numbered,
    style,
)
from tricouple_lab.report.draw_matplotlib import picture, png
from tricouple_lab.report.draw_plotly import drawing
from tricouple_lab.report.numbers import MeanStd
from tricouple_lab.report.page import Article, Section, chart_html, page, provenance_section
from tricouple_lab.report.tables import (
    Column,
    Table,
    measured_table,
    to_html,
    to_markdown,
    to_terminal,
)

EVIL = "[/b] <img src=x> | [red]"
TABLE = Table(
    EVIL, ("loss", EVIL, "b"), [(EVIL, "1.0", "holds"), ("b", "2.0", "fails")],
    bold={(1, 1)}, kinds={(0, 2): "holds", (1, 2): "fails"},
    spans=(("", 1), ("both", 2)), note=EVIL,
)  # fmt: skip


def printed(table: Table, width: int = 120) -> str:
    console = Console(width=width, file=io.StringIO())
    console.print(to_terminal(table))
    return console.file.getvalue()


def test_a_terminal_prints_texts_as_they_are():
    assert printed(TABLE).count(EVIL) == 4  # caption, title, cell, note
    assert "both" in printed(TABLE)


def test_a_terminal_stresses_the_best_alone_and_colours_verdicts():
    names, values, verdicts = to_terminal(TABLE).columns
    assert [cell.style for cell in names.cells] == ["", ""]
    assert [(cell.plain, cell.style) for cell in values.cells] == [("1.0", ""), ("2.0", "bold")]
    assert [cell.style for cell in verdicts.cells] == ["green", "red"]


def test_numbers_of_a_narrow_terminal_are_whole():
    table = Table("a", ("loss", "value"), [("a rather long name of a loss", "12.34 ± 0.56")])
    assert "12.34 ± 0.56" in printed(table, 30)


def test_html_and_markdown_escape_and_stress():
    html = parse(to_html(TABLE))
    assert not html.all("img")
    assert html.all("caption")[0].text == EVIL
    assert [cell.text for cell in html.all("strong")] == ["2.0"]
    assert html.all("td", "holds")[0].text == "holds"
    text = to_markdown(TABLE)
    assert "| **2.0** |" in text
    assert r"\| [red]" in text
    assert "both: b" in text
    lines = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines} == {4}


def test_columns_of_measurements_are_written_with_the_best_in_bold():
    column = Column("a < b", [MeanStd(2.0, 0.5, 3), MeanStd(1.0)], abs)
    table = measured_table("caption", ("loss", "c"), [("x", "1"), ("y", "10")], [column])
    assert table.head == ("loss", "c", "a < b")
    assert table.rows == [("x", "1", "2.00 ± 0.50"), ("y", "10", "1.00")]
    assert table.bold == {(1, 2)}


def chart(**axis) -> Chart:
    lines = [
        Line("a", (1, 2, 4), (1.0, 0.0, 1e-9), band=((0.5, 0, 0), (2, 0.1, 1e-8))),
        Line("b", (1, 2, 4), (1.0, np.nan, 0.5), bars=(0.1, 0.1, 0.1), ring=(4, 0.5)),
        Line("c", (1, 2), (0.1, 0.2), points=True),
    ]
    words = Panel("words", "The same by word.", [Line("a", ("x", "y"), (1, 2))],
                  x=Axis(ticks=("x", "y")))  # fmt: skip
    first = Panel("numbers", "Falls to 1e-9.", lines, y=Axis("residual", log=True, **axis))
    return Chart("both", "Both", "How to read it.", [first, words], tables=[TABLE])


def test_both_renderers_draw_the_same_lines():
    panel = chart(floor=1e-12).panels[0]
    traces = [trace for trace in drawing(panel).data if trace.name]
    (axes, _) = picture(chart(floor=1e-12)).axes
    drawn = {line.get_label(): line for line in axes.lines}
    assert [trace.name for trace in traces] == ["a", "b", "c"]
    np.testing.assert_allclose(traces[0].y, [1.0, 1e-12, 1e-9], rtol=1e-6)
    np.testing.assert_allclose(drawn["a"].get_ydata(), [1.0, 1e-12, 1e-9])
    assert axes.get_yscale() == "log"
    assert [trace.mode for trace in traces] == ["lines+markers", "lines+markers", "markers"]
    assert len(drawing(panel).data) == 3 + 2  # a band and a ring


def test_a_logarithmic_axis_without_a_floor_leaves_zero_out():
    assert np.isnan(Axis(log=True).shown([0.0, 1.0])).tolist() == [True, False]


def test_styles_differ_in_more_than_colour():
    looks = [numbered(place) for place in range(6)]
    assert len({look.dash for look in looks}) == len({look.symbol for look in looks}) == 6
    assert all(look.dash in DASHES and look.symbol in SYMBOLS for look in looks)
    assert style("no such loss") == style("nor this")


@pytest.mark.parametrize(
    "panel",
    [
        chart().panels[0],
        Panel("grid", "", [Grid(np.array([[1.0, np.nan]]), (0.1, 1), ["r"], ["x", "y"], log=True,
                                texts=[["★", ""]], unit="u")]),
        Panel("cloud", "", [Cloud(np.eye(2), np.arange(2))], reach=1.1, circle=True),
    ],
    ids=["lines", "grid", "cloud"],
)  # fmt: skip
def test_every_kind_of_panel_has_both_forms(panel):
    assert len(drawing(panel).data) > 0
    content = png(Chart("a", "", "caption", [panel]))
    check_picture(content)
    assert png(Chart("a", "", "caption", [panel])) == content  # repeatable


def test_a_page_without_a_study():
    sections = [Section("chart", "Chart", chart_html(chart(floor=1e-12)))]
    origin = provenance_section({"commit": "abc", "versions": {"torch": "9.9"}}, {"a": {"b": 1}})
    text = page([Article("A <title>", "A lead.", [*sections, origin])])
    root = parse(text)
    assert [plot.attributes["aria-label"] for plot in root.all("div", "plot")] == [
        "Falls to 1e-9.",
        "The same by word.",
    ]
    assert [button.text for button in root.all("button")] == ["a ●", "b ■", "c ◆"]
    assert "What was found" not in text
    assert "a.b 1" in root.text
    assert "torch 9.9" in root.text
    tables = page([Article("Tables", "Alone.", [Section("t", "T", to_html(TABLE))])])
    assert "plotly" not in tables
    assert "<script" not in tables
