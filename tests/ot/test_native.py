"""The compiled module is used only where it was built from these sources."""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType

import pytest
import torch

import tricouple as tc
from tricouple.ot.sweeps import native

NAME = "tricouple.ot.sweeps._native"


@pytest.mark.parametrize("calls", [None, native.CALLS - 1, native.CALLS + 1])
def test_a_module_of_other_sources_is_named_and_not_used(calls, monkeypatch):
    other = ModuleType(NAME)
    other.__file__ = "/somewhere/_native.so"
    if calls is not None:
        other.CALLS = calls
    monkeypatch.setitem(sys.modules, NAME, other)
    with pytest.warns(UserWarning, match=r"/somewhere/_native\.so was built from another version"):
        assert native.load() is None


def test_one_of_these_sources_is_used(monkeypatch):
    own = ModuleType(NAME)
    own.CALLS = native.CALLS
    monkeypatch.setitem(sys.modules, NAME, own)
    assert native.load() is own


def test_none_is_no_error(monkeypatch):
    monkeypatch.setitem(sys.modules, NAME, None)
    assert native.load() is None


COMPILER = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
COMPILED = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler")


@COMPILED
def test_it_keeps_to_the_limited_api_so_that_one_build_serves_every_python():
    assert native.compiled is not None, "there is a compiler, but nothing was built"
    assert Path(native.compiled.__file__).name in ("_native.abi3.so", "_native.pyd")
    command = [sys.executable, "-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.11"]
    done = subprocess.run([*command, native.compiled.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@COMPILED
def test_a_free_threaded_python_goes_without_it():
    source = Path(__file__).parents[2] / "src/tricouple/ot/sweeps/_native.c"
    preprocess = [COMPILER, "-E", "-DPy_GIL_DISABLED", f"-I{sysconfig.get_path('include')}"]
    done = subprocess.run([*preprocess, str(source)], capture_output=True, text=True)
    assert done.returncode != 0
    assert "it works through PyTorch" in done.stderr


@pytest.mark.parametrize("switch", ["0", "1"])
def test_an_environment_variable_leaves_it_alone(switch):
    found = subprocess.run(
        [sys.executable, "-c", "import tricouple.ot; print(tricouple.ot.compiled())"],
        env={**os.environ, "TRICOUPLE_NATIVE": switch},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(switch == "1" and native.compiled is not None)


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_there_is_no_room_in_advance_for_sweeps_that_a_tolerance_makes_needless(make):
    # A hundred samples and ten million sweeps: more than any machine has.
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(100, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(100) % 10
    found = []
    for n_iters in (10_000_000, 3000):
        leaf = z.clone().requires_grad_()
        loss = make(sharpness=5, n_iters=n_iters, tol=1e-13)(leaf, labels)
        found.append((loss.item(), *torch.autograd.grad(loss, leaf)))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_sweeps_that_go_on_in_more_room_are_those_of_one_go(make, monkeypatch):
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(40, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(40) % 10

    def result() -> tuple[float, torch.Tensor]:
        leaf = z.clone().requires_grad_()
        loss = make(sharpness=10, n_iters=300, tol=1e-12)(leaf, labels)
        return loss.item(), torch.autograd.grad(loss, leaf)[0]

    found = result()
    monkeypatch.setattr(native, "_rooms", lambda n_iters, tol: iter([n_iters]))
    wanted = result()
    assert found[0] == wanted[0]
    assert torch.equal(found[1], wanted[1])
