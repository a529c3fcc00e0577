"""The page in a real browser: every figure is drawn, in both themes and on a phone, silently."""

import os

import pytest

from report import chromium

PROGRAM = chromium.find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed"),
    pytest.mark.skipif(os.name != "posix", reason="drives Chromium over POSIX pipes"),
]

VISIBLE = "[...document.querySelectorAll('.panel')].filter(p => !p.hidden)"
PAPER = "getComputedStyle(document.body).backgroundColor"
LINE_COLOUR = "getComputedStyle(document.querySelector('.plot .trace + .trace .js-line')).stroke"


@pytest.fixture(scope="module")
def tab(page_file):
    with chromium.silent_page(PROGRAM, page_file) as opened:
        yield opened


def choose(tab, key, value):
    tab.evaluate(
        f"(() => {{ const s = document.querySelector('select[data-key={key}]');"
        f" s.value = '{value}'; s.dispatchEvent(new Event('change')); }})()"
    )
    tab.wait_until_drawn()


def test_every_panel_is_drawn_with_its_traces(tab):
    drawn = tab.evaluate(
        f"{VISIBLE}.map(p => [Number(p.querySelector('.plot').dataset.drawn),"
        " p.querySelectorAll('.plot .trace').length,"
        " p.querySelector('.main-svg').getBoundingClientRect().width])"
    )
    assert len(drawn) == 28  # curves, spectra, three kinds of pictures, two sweeps
    for traces, shown, width in drawn:
        assert traces == shown > 0
        assert width > 100


def test_no_line_is_missing_a_colour(tab):
    variables = "document.querySelectorAll('[style*=\"var(--\"]').length"
    swatches = "document.querySelectorAll('.legend .swatch').length"
    assert tab.evaluate(variables) == tab.evaluate(swatches) > 0  # plotly got colours


def test_choosing_k_moves_the_curves(tab):
    points = "document.querySelector('.plot').data.map(t => t.y.bdata)"
    before = tab.evaluate(points)
    choose(tab, "n_classes", "6")
    after = tab.evaluate(points)
    # Snapshots were kept at K = 4 only: the pictures step aside and say so.
    hidden = tab.evaluate(
        "[...document.querySelectorAll('.nothing')].filter(p => !p.hidden).length"
    )
    choose(tab, "n_classes", "4")
    assert len(before) == len(after)
    assert before != after
    assert hidden == 3
    assert tab.evaluate(points) == before


def test_choosing_psi_keeps_the_losses_without_one(tab):
    methods = "document.querySelector('.plot').data.map(t => t.meta.name + t.meta.when.shaping)"
    choose(tab, "shaping", "log_sigmoid")
    shown = set(tab.evaluate(methods))
    choose(tab, "shaping", "linear")
    assert {"Neg-MMIOTlog_sigmoid", "PushPulllog_sigmoid", "IOTundefined"} <= shown
    assert "Neg-MMIOTlinear" not in shown


def test_the_legend_switches_a_method_off_and_on(tab):
    button = "document.querySelector('.legend button[data-name=IOT]')"
    shown = "document.querySelector('.plot').data.some(t => t.meta.name === 'IOT')"
    assert tab.evaluate(shown)
    tab.evaluate(f"{button}.click()")
    tab.wait(f"!({shown})")
    assert tab.evaluate(f"{button}.getAttribute('aria-pressed')") == "false"
    tab.evaluate(f"{button}.click()")
    tab.wait(shown)


def test_the_slider_moves_the_embedding(tab):
    place = (
        "(() => { const p = document.querySelector('.movie').parentElement.querySelector('.plot');"
        " return [p.data[0].x[0], p.querySelector('.point').getAttribute('transform')]; })()"
    )
    last = tab.evaluate(place)
    tab.evaluate(
        "(() => { const s = document.querySelector('.movie input');"
        " s.value = 0; s.dispatchEvent(new Event('input')); })()"
    )
    tab.wait("document.querySelector('.movie output').value === '0'")
    assert tab.evaluate(place)[0] != last[0]
    assert tab.evaluate(place)[1] != last[1]


def test_play_runs_to_the_end(tab):
    tab.evaluate("document.querySelector('.movie button').click()")
    assert tab.evaluate("document.querySelector('.movie button').textContent") == "Pause"
    tab.wait("document.querySelector('.movie button').textContent === 'Play'", 20)
    assert tab.evaluate("document.querySelector('.movie output').value") == "200"


def test_a_dark_theme_darkens_the_page_and_recolours_the_lines(tab):
    light = tab.evaluate(f"[{PAPER}, {LINE_COLOUR}]")
    tab.prefer("dark")
    tab.wait(f"{LINE_COLOUR} !== '{light[1]}'")
    tab.wait_until_drawn()
    dark = tab.evaluate(f"[{PAPER}, {LINE_COLOUR}]")
    tab.prefer("light")
    tab.wait(f"{LINE_COLOUR} === '{light[1]}'")
    assert light == ["rgb(255, 255, 255)", "rgb(163, 69, 139)"]
    assert dark == ["rgb(13, 17, 23)", "rgb(230, 163, 203)"]


def test_a_phone_shows_everything_without_scrolling_sideways(tab, page_file):
    tab.resize(390, 844, mobile=True)
    tab.open(page_file)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    assert tab.evaluate("document.documentElement.clientWidth") == 390
    widths = tab.evaluate(
        f"{VISIBLE}.map(p => p.querySelector('.main-svg').getBoundingClientRect().right)"
    )
    assert len(widths) == 28
    assert max(widths) <= 390
