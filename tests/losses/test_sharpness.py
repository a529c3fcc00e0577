"""Sharpness: one number for every loss, one default, and what the paper's value does."""

import math
import re
from functools import partial
from pathlib import Path

import pytest
import torch

import tricouple as tc
from conftest import draw

LABELS = torch.tensor([0, 0, 1, 1, 2, 2, 0, 1, 2])
ACROSS = {"ref_emb": draw(9, 5), "ref_labels": LABELS.flip(0)}
SHAPED = partial(tc.NegMMIOT, epsilon=0.5, shaping="exponential")
MODULES = [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE, tc.InvaSpread, tc.DBOT, tc.FusedGromov]
MODULES.append(tc.SigLIP)
EVERY = pytest.mark.parametrize("module", MODULES)


@pytest.mark.parametrize(
    ("make", "epsilon"),
    [(module, 0.1 if module in (tc.NegMMIOT, tc.PushPull) else 1.0) for module in MODULES]
    + [(SHAPED, 0.5), (partial(tc.PushPull, epsilon_neg=0.2), 0.1)],
)
def test_sharpness_stands_for_temperature_and_regularisation(make, epsilon):
    one = make(sharpness=8)
    other = make(**{one.scale: 1 / 8 / epsilon})
    assert one.sharpness == pytest.approx(8, rel=1e-15)
    assert other.sharpness == pytest.approx(8, rel=1e-15)
    assert torch.equal(one(draw(9, 0), LABELS, **ACROSS), other(draw(9, 0), LABELS, **ACROSS))


@EVERY
def test_default_of_every_loss_is_ten(module):
    x = draw(9, 0)
    assert module().sharpness == pytest.approx(10, rel=1e-15)
    wanted = module(sharpness=10)(x, LABELS, **ACROSS)
    assert torch.equal(module()(x, LABELS, **ACROSS), wanted)


@EVERY
def test_the_papers_sharpness_is_one_word_away(module):
    paper = {tc.InfoNCE: 10, tc.InvaSpread: 10, tc.IOT: 10, tc.PushPull: 100, tc.NegMMIOT: 100}
    stated = [paper[module]] if module in paper else []
    if not stated:
        with pytest.raises(ValueError, match=f'sharpness="paper".*{module.__name__}'):
            module(sharpness="paper")
    else:
        assert module(sharpness="paper").sharpness == pytest.approx(*stated, rel=1e-15)


@EVERY
@pytest.mark.parametrize("value", [0, -3.0, math.nan, math.inf, 1e-320])
def test_bad_sharpness_is_named(module, value):
    with pytest.raises(ValueError, match=r"(sharpness|temperature|epsilon|regularisation) must be"):
        module(sharpness=value)
    with pytest.raises(TypeError, match="sharpness must be a number"):
        module(sharpness="hard")


@EVERY
def test_sharpness_together_with_what_it_stands_for_is_refused(module):
    for value in (0.1, torch.tensor(0.1)):
        with pytest.raises(ValueError, match=f"sharpness=10 and {module.scale}=.*both.*leave one"):
            module(value, sharpness=10)


def test_vicreg_has_none():
    assert tc.VICReg().sharpness is tc.BothDirections(tc.VICReg()).sharpness is None


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.InfoNCE])
def test_sharpness_follows_a_temperature_that_learns(module):
    tau = torch.nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    criterion = module(tau)
    before = criterion.sharpness
    with torch.no_grad():
        tau.mul_(0.25)
    assert criterion.sharpness == pytest.approx(4 * before)


def test_the_guide_shows_what_c_100_does(capsys):
    # One step of SGD: all embeddings at one point, and a hundred more do not part them.
    guide = (Path(__file__).parents[2] / "docs/sharpness.md").read_text()
    snippet, printed = re.search(r"```python\n(.*?)```.*?```\n(.*?)```", guide, re.DOTALL).groups()
    names: dict = {}
    exec(compile(snippet, "docs/sharpness.md", "exec"), names)
    rows = [list(map(float, line.split())) for line in capsys.readouterr().out.splitlines()]
    shown = [list(map(float, line.split())) for line in printed.splitlines()]
    assert [row[0] for row in rows] == [3, 10, 30, 100]
    for row, wanted in zip(rows, shown, strict=True):
        assert row[:3] == pytest.approx(wanted[:3], abs=0.015)
        assert row[3] == pytest.approx(wanted[3], abs=0.3)  # a hundred steps magnify rounding
    (_, ten, _, hundred) = rows
    assert max(ten[2:]) < 0.6
    assert min(hundred[2:]) > 0.99
    after = {
        module: names["cosine_after"](50, module(sharpness=100))
        for module in (tc.PushPull, tc.InfoNCE, tc.IOT)
    }
    assert after[tc.PushPull] > 0.99
    assert max(after[tc.InfoNCE], after[tc.IOT]) < 0.9
