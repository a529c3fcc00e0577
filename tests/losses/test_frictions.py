"""What a user types first is accepted, or answered."""

import os
import warnings
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch

import tricouple as tc
from conftest import draw
from processes import python

# --- What a user has at hand is accepted ---------------------------------------------------------


LABELS = [3, 3, 1, 1, 4, 4, 4, 1]


LABEL_DTYPES = (torch.int32, torch.int16, torch.uint8, torch.float32, torch.float64, torch.float16)


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT, tc.InfoNCE])
@pytest.mark.parametrize(
    "kind",
    [
        *(list, tuple, np.array, lambda ids: np.array(ids, dtype=np.int32)),
        *(partial(torch.tensor, dtype=dtype) for dtype in LABEL_DTYPES),
    ],
)
def test_labels_may_be_lists_or_arrays_of_whole_numbers(kind, make):
    x, references = draw(8, 0), draw(8, 1)
    criterion, ids = make(), torch.tensor(LABELS)
    assert torch.equal(criterion(x, kind(LABELS)), criterion(x, ids))
    found = criterion(x, kind(LABELS), ref_emb=references, ref_labels=kind(LABELS[::-1]))
    assert torch.equal(found, criterion(x, ids, ref_emb=references, ref_labels=ids.flip(0)))


@pytest.mark.parametrize("number", [np.float32, np.float64, np.float16])
def test_settings_may_be_numbers_of_numpy(number):
    x, ids = draw(8, 0).requires_grad_(), torch.tensor(LABELS)
    makers = [
        lambda h, n: tc.NegMMIOT(h, h, n_iters=n, tol=h / 500),
        lambda h, n: tc.PushPull(h, h, h, n_iters=n),
        lambda h, n: tc.IOT(h, uniformity=h),
        lambda h, n: tc.InfoNCE(h),
        lambda h, n: tc.InvaSpread(h),
        lambda h, n: tc.DBOT(h, n_iters=n, lower=h),
        lambda h, n: tc.VICReg(h, h, h),
    ]
    half = number(0.5)
    for make in makers:
        assert torch.equal(make(half, np.int64(5))(x, ids), make(0.5, 5)(x, ids))
    plan = tc.ot.sinkhorn(draw(8, 0), half, n_iters=np.int64(7))
    assert torch.equal(plan.dense(), tc.ot.sinkhorn(draw(8, 0), 0.5, n_iters=7).dense())


def test_views_may_come_in_a_list():
    views = [draw(5, 0), draw(5, 1), draw(5, 2)]
    for found, wanted in zip(tc.pair_views(views), tc.pair_views(*views), strict=True):
        assert torch.equal(found, wanted)
    with pytest.raises(ValueError, match="at least 2 views"):
        tc.pair_views(views[:1])


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE, tc.InvaSpread])
def test_a_temperature_that_is_a_plain_tensor_belongs_to_the_module(module):
    criterion = module(torch.tensor(0.5))
    assert torch.equal(criterion.state_dict()["temperature"], torch.tensor(0.5))
    assert not list(criterion.parameters())
    assert criterion.to(torch.float64).temperature.dtype == torch.float64
    assert module(torch.tensor(0.5)).to("meta").temperature.is_meta
    criterion.temperature = 0.25  # a number again
    assert criterion.temperature == 0.25
    assert list(module(torch.nn.Parameter(torch.tensor(0.5))).state_dict()) == ["temperature"]


def test_plans_print_in_a_line():
    z = torch.nn.functional.normalize(draw(6, 0), dim=1)
    text = repr(tc.ot.triplet_sinkhorn(z @ z.T, 1.0, 0.5, n_iters=100))
    assert text.startswith("TripletPlan(6×6×6, epsilon=0.5, n_iters=100, marginal_error=")
    assert text.endswith("converged=True)")
    text = repr(tc.ot.sinkhorn(z, 0.01, n_iters=1))
    assert text.startswith("PairPlan(6×5, epsilon=0.01, n_iters=1, marginal_error=")
    assert text.endswith("converged=False)")


# --- What a user types first is answered ---------------------------------------------------------


@pytest.mark.parametrize(
    ("criterion", "sharpness"),
    [
        (tc.NegMMIOT(), "10"),
        (tc.NegMMIOT(sharpness="paper"), "100"),
        (tc.NegMMIOT(temperature=0.1, epsilon=0.5), "20"),
        (tc.PushPull(sharpness=7), "7"),
        (tc.IOT(epsilon=0.2), "5"),
        (tc.InfoNCE(temperature=0.1), "10"),
    ],
)
def test_a_loss_shows_its_sharpness_first(criterion, sharpness):
    name = type(criterion).__name__
    assert repr(criterion).startswith(
        (f"{name}(sharpness={sharpness},", f"{name}(sharpness={sharpness})")
    )


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull])
def test_a_temperature_that_means_another_sharpness_is_questioned(make):
    with pytest.warns(UserWarning, match=r"100") as found:
        criterion = make(temperature=0.1)
    assert criterion.sharpness == pytest.approx(100)  # as it was asked for
    (message,) = {str(warning.message) for warning in found}
    assert "sharpness=10" in message
    assert "InfoNCE(temperature=0.1)" in message
    assert found[0].filename == __file__  # the line that asked for it
    with pytest.warns(UserWarning, match="sharpness="):
        make(0.1)
    with pytest.warns(UserWarning, match="sharpness="):
        make(torch.nn.Parameter(torch.tensor(0.1)))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"sharpness": 100},
        {"sharpness": "paper"},
        {"temperature": 0.5},  # c = 20
        {"temperature": 0.1, "epsilon": 0.1},
    ],
)
@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull])
def test_no_other_setting_is_questioned(make, settings):
    if make is tc.PushPull and "epsilon" in settings:
        settings = {"temperature": 0.1, "epsilon_pos": 0.1, "epsilon_neg": 0.1}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        criterion = make(**settings)
        criterion(torch.randn(8, 4), torch.arange(8) // 2, temperature=0.1)
        tc.InfoNCE(temperature=0.01)
        tc.IOT(epsilon=0.01)


WITHOUT_NUMPY = """
import tricouple as tc
criterion = tc.NegMMIOT()
import torch  # which warns by itself where it is imported first
criterion(torch.randn(8, 4, requires_grad=True), [0, 0, 1, 1, 2, 2, 3, 3]).backward()
print(criterion, criterion.diagnostics()["sweeps"])
try:
    import numpy
except ImportError:
    print("no numpy")
"""


def test_torch_is_all_that_a_loss_needs(tmp_path):
    (tmp_path / "numpy.py").write_text("raise ModuleNotFoundError('not here', name='numpy')\n")
    package = Path(tc.__file__).parents[1]
    paths = os.pathsep.join(map(str, (tmp_path, package)))
    found = python("-W", "error", "-c", WITHOUT_NUMPY, PYTHONPATH=paths)
    assert found.stdout.endswith("no numpy\n")
    assert found.stderr == ""
