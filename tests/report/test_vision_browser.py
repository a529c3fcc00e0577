"""The vision page in a real browser: drawn in both themes and on a phone, switchable, silent."""

import os

import pytest

from report import chromium
from report import fake_vision as fake
from tricouple.report.kinds import write_report

PROGRAM = chromium.find_chromium()
pytestmark = [
    pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed"),
    pytest.mark.skipif(os.name != "posix", reason="drives Chromium over POSIX pipes"),
]

PANELS = 4 + 6  # accuracy over sharpness in four blocks, six curves
DRAWN = (
    "[...document.querySelectorAll('.panel')].filter(p => !p.hidden).map(p => "
    "[Number(p.querySelector('.plot').dataset.drawn), p.querySelectorAll('.plot .trace').length,"
    " p.querySelector('.main-svg').getBoundingClientRect().right])"
)
FIRST = "document.querySelector('.plot').data.map(trace => trace.y.bdata ?? [...trace.y])"
CURVES = "document.querySelectorAll('.figure')[1].querySelector('.plot').data"
LINE = "getComputedStyle(document.querySelector('.plot .trace .js-line')).stroke"


@pytest.fixture(scope="module")
def page_file(tmp_path_factory):
    return write_report(fake.write_study(tmp_path_factory.mktemp("vision"), fake.runs()))


@pytest.fixture(scope="module")
def tab(page_file):
    with chromium.silent_page(PROGRAM, page_file) as opened:
        yield opened


def choose(tab, key, number):
    tab.evaluate(
        f"(() => {{ const s = document.querySelector('select[data-key={key}]');"
        f" s.selectedIndex = {number}; s.dispatchEvent(new Event('change')); }})()"
    )
    tab.wait_until_drawn()


def test_every_panel_is_drawn_with_its_traces(tab):
    drawn = tab.evaluate(DRAWN)
    assert len(drawn) == PANELS
    assert all(traces == shown > 0 for traces, shown, _ in drawn)
    assert drawn[0][0] == 2 * 5  # a line and a ring for each loss


def test_another_accuracy_moves_the_points(tab):
    before = tab.evaluate(FIRST)
    choose(tab, "measure", 1)
    after = tab.evaluate(FIRST)
    choose(tab, "measure", 0)
    assert len(before) == len(after)
    assert before != after
    assert tab.evaluate(FIRST) == before


def test_another_block_changes_the_curves_alone(tab):
    block = f"{CURVES}[0].meta.when.block"
    before = tab.evaluate(block)
    choose(tab, "block", 3)
    after = tab.evaluate(block)
    choose(tab, "block", 0)
    assert (before, after) == ("MNIST, ResNet-18, SCL", "CIFAR-10, ResNet-18, UCL")


def test_a_dark_theme_recolours_the_lines(tab):
    light = tab.evaluate(LINE)
    tab.prefer("dark")
    tab.wait(f"{LINE} !== '{light}'")
    tab.wait_until_drawn()
    dark = tab.evaluate(LINE)
    tab.prefer("light")
    tab.wait(f"{LINE} === '{light}'")
    assert (light, dark) == ("rgb(163, 69, 139)", "rgb(230, 163, 203)")  # InfoNCE


def test_a_phone_shows_everything_without_scrolling_sideways(tab, page_file):
    tab.resize(390, 844, mobile=True)
    tab.open(page_file)
    assert tab.evaluate("document.documentElement.scrollWidth") == 390
    drawn = tab.evaluate(DRAWN)
    assert len(drawn) == PANELS
    assert max(right for *_, right in drawn) <= 390
    selects = "[...document.querySelectorAll('select')].map(s => s.getBoundingClientRect().right)"
    assert max(tab.evaluate(selects)) <= 390
