"""``make hostile``: what must hold under pressure, too long for the tests. Under five minutes.

========  ==========================================================================================
address   the C code under the address and undefined-behaviour sanitizers of gcc, through tests/ot
memory    3000 steps of every loss with a coupling leave the process as large as 300 do
========  ==========================================================================================

Prints a table; the exit code is 1 if anything does not hold. ``hostile.py memory`` runs one part.
"""

import contextlib
import gc
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import warnings
from pathlib import Path

import torch

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

from conftest import LOSSES  # noqa: E402
from processes import python  # noqa: E402

# --- sanitizers ----------------------------------------------------------------------------------

FLAGS = "-O1 -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared"
SEE = "from tricouple.ot import _native; print(_native.__file__)"


def address() -> str:
    """The tests of plans and losses on a module that reports every access out of bounds."""
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(TESTS.parent / "src", root / "src", ignore=ignored)
        ot, include = root / "src/tricouple/ot", f"-I{sysconfig.get_paths()['include']}"
        source, module = str(ot / "c/module.c"), str(ot / "_native.abi3.so")
        subprocess.run(["gcc", *FLAGS.split(), include, source, "-o", module], check=True)
        environment = {
            "PYTHONPATH": str(root / "src"),
            "LD_PRELOAD": f"{library('libasan.so')} {library('libubsan.so')}",
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory to its end
        }
        seen = python("-c", SEE, **environment).stdout
        assert seen.startswith(str(root)), f"another module is imported: {seen}"
        tests = ["tests/ot", "tests/dense/test_plans.py", "tests/dense/test_losses.py"]
        how = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow"]
        done = python(*how, *tests, cwd=TESTS.parent, **environment)
    errors = done.stderr.splitlines()
    reports = [line for line in errors if "Sanitizer" in line or "runtime" in line]
    assert not reports, reports[-1]
    return done.stdout.splitlines()[-1].strip("= ")


def library(name: str) -> str:
    """Where gcc has a library."""
    asked = ["gcc", f"-print-file-name={name}"]
    found = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    assert Path(found).is_absolute(), "gcc has no sanitizers here"
    return found


# --- memory --------------------------------------------------------------------------------------


def memory() -> str:
    """Steps of all losses with a coupling, on batches of changing sizes, some with an error."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    criteria = [make() for make in LOSSES.values()]
    before = 0.0
    for step in range(3000):
        rows = torch.randn((96, 112, 128)[step % 3], 16, requires_grad=True)
        labels = torch.arange(len(rows)) % 8
        criteria[step % len(criteria)](rows, labels).backward()
        if step % 50 == 0:
            with contextlib.suppress(ValueError):
                criteria[0](rows, labels[:-1])
        if step == 300:
            before = resident()
    grown = resident() - before
    assert grown < 4, f"{before:.1f} MB after 300 steps, {grown:+.1f} MB after 3000"
    return f"{before:.1f} MB after 300 steps, {grown:+.1f} MB after 3000"


def resident() -> float:
    """Memory of this process, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


PARTS = {"address": address, "memory": memory}


def main(names: list[str]) -> int:
    """Run the parts, print the table."""
    warnings.simplefilter("ignore")
    failed = 0
    for name in names or PARTS:
        began = time.monotonic()
        try:
            holds, text = True, PARTS[name]()
        except (AssertionError, subprocess.CalledProcessError) as error:
            holds, text = False, str(error)[-300:]
        seconds = time.monotonic() - began
        print(f"{name:8} {'holds' if holds else 'FAILS':6} {seconds:4.0f} s  {text}", flush=True)
        failed += not holds
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
