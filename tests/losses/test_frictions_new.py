"""What a user types first is answered: settings that show, mean and are called what one thinks."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch

import tricouple as tc


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


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.InfoNCE])
def test_tau_is_called_temperature(make):
    with pytest.raises(TypeError, match="temperature"):
        make(tau=0.1)


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
    found = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT_NUMPY],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(map(str, (tmp_path, package)))},
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stderr
    assert found.stdout.endswith("no numpy\n")
    assert found.stderr == ""
