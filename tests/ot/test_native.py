"""The compiled module: used where it was built from these sources, and left alone where asked."""

import os
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
import torch

import tricouple as tc
from processes import python

SOURCES = Path(tc.__file__).parent / "ot"
COMPILER = os.environ.get("CC") or (sysconfig.get_config_var("CC") or "cc").split()[0]
COMPILED = pytest.mark.skipif(shutil.which(COMPILER) is None, reason="there is no C compiler")


LOADED = """
import importlib, os, sys, types
name = "tricouple.ot._native"
other = types.ModuleType(name)
other.__file__, other.CALLS = "/somewhere/_native.so", -1
sys.modules[name] = other
from tricouple.ot import native
found = [native.compiled()]  # of other sources
sys.modules[name] = None
found.append(importlib.reload(native).compiled())  # none
del sys.modules[name]
os.environ["TRICOUPLE_NATIVE"] = "0"
found.append(importlib.reload(native).compiled())  # left alone
del os.environ["TRICOUPLE_NATIVE"]
print(found, importlib.reload(native).compiled())
"""


def test_a_module_is_used_if_it_is_of_these_sources_and_not_left_alone():
    done = python("-c", LOADED)
    assert done.stdout.strip() == f"[False, False, False] {tc.ot.compiled()}", done.stderr
    assert done.stderr.count("/somewhere/_native.so was built from another version") == 1


@COMPILED
def test_it_keeps_to_the_limited_api_so_that_one_build_serves_every_python():
    assert tc.ot.compiled(), "there is a compiler, but nothing was built"
    (module,) = [*SOURCES.glob("_native.abi3.so"), *SOURCES.glob("_native.pyd")]
    python("-m", "abi3audit", "--strict", "--assume-minimum-abi3", "3.11", module)


@COMPILED
def test_a_free_threaded_python_goes_without_it():
    preprocess = [COMPILER, "-E", "-DPy_GIL_DISABLED", f"-I{sysconfig.get_path('include')}"]
    source = str(SOURCES / "c/module.c")
    done = subprocess.run([*preprocess, source], capture_output=True, text=True)
    assert done.returncode != 0
    assert "PyTorch" in done.stderr


FORKED = """
import os, torch, tricouple as tc
torch.manual_seed(0)
torch.set_num_threads(2)
rows, labels = torch.randn(600, 8), torch.arange(600) % 9

def step():
    leaf = rows.clone().requires_grad_()
    loss = tc.NegMMIOT(n_iters=3)(leaf, labels)
    loss.backward()
    return torch.cat([loss.detach()[None], leaf.grad.flatten()])

wanted = step()
child = os.fork()
if child == 0:
    torch.set_num_threads(1)  # PyTorch's own products hang in a fork as well
    os._exit(0 if torch.allclose(step(), wanted, rtol=1e-4, atol=1e-6) else 1)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_forked_process_works_alone():
    done = python("-c", FORKED, OMP_NUM_THREADS="2")
    assert done.stdout.strip() == "0", done.stderr


@pytest.mark.parametrize("n", [40, 600])
def test_results_repeat_to_the_last_bit(n):
    rows = torch.randn(n, 8, generator=torch.Generator().manual_seed(0))
    found = []
    for _ in range(2):
        leaf = rows.clone().requires_grad_()
        loss = tc.NegMMIOT(n_iters=3)(leaf, torch.arange(n) % 9)
        found.append((loss, *torch.autograd.grad(loss, leaf)))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("make", [tc.NegMMIOT, tc.PushPull, tc.IOT])
def test_there_is_no_room_in_advance_for_sweeps_that_a_tolerance_makes_needless(make):
    # A hundred samples and ten million sweeps: more than any machine has.
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(100, 4, generator=generator, dtype=torch.float64)
    labels = torch.arange(100) % 10
    found = []
    for n_iters in (10_000_000, 1000):
        leaf = z.clone().requires_grad_()
        loss = make(sharpness=5, n_iters=n_iters, tol=1e-13)(leaf, labels)
        found.append((loss.detach(), *torch.autograd.grad(loss, leaf)))
    for one, other in zip(*found, strict=True):
        assert float((one - other).norm() / other.norm()) < 1e-11
