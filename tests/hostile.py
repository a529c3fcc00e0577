"""``make hostile``: what must hold under pressure, too long for the tests. Under five minutes.

========  ==========================================================================================
address   the C code under the address and undefined-behaviour sanitizers of gcc, through tests/ot
memory    3000 steps of every loss with a coupling leave the process as large as 300 do
========  ==========================================================================================

Prints a table; the exit code is 1 if anything does not hold. ``hostile.py memory`` runs one part.
"""

from __future__ import annotations

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
from collections.abc import Callable
from pathlib import Path

import torch

TESTS = Path(__file__).parent
sys.path.insert(0, str(TESTS))

from conftest import LOSSES  # noqa: E402

ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1"}
Outcome = tuple[bool, str]

# --- sanitizers ----------------------------------------------------------------------------------

FLAGS = "-O1 -fopenmp -fsanitize=address,undefined -fno-sanitize-recover=all -fPIC -shared"
SEE = "from tricouple.ot import _native; print(_native.__file__)"


def address() -> Outcome:
    """The tests of plans and losses on a module that reports every access out of bounds."""
    libraries = [library(name) for name in ("libasan.so", "libubsan.so")]
    if None in libraries:
        return False, "gcc has no sanitizers here"
    with tempfile.TemporaryDirectory() as place:
        root = Path(place)
        ignored = shutil.ignore_patterns("*.so", "__pycache__", "*.egg-info")
        shutil.copytree(TESTS.parent / "src", root / "src", ignore=ignored)
        ot = root / "src/tricouple/ot"
        module = ot / "_native.abi3.so"
        include = f"-I{sysconfig.get_paths()['include']}"
        build = ["gcc", *FLAGS.split(), include, str(ot / "c/module.c"), "-o", str(module)]
        built = subprocess.run(build, capture_output=True, text=True, check=False)
        if built.returncode:
            return False, f"the build fails: {built.stderr[-300:]}"
        environment = ONE_THREAD | {
            "PYTHONPATH": str(root / "src"),
            "LD_PRELOAD": " ".join(map(str, libraries)),
            "ASAN_OPTIONS": "detect_leaks=0",  # Python itself keeps memory to its end
        }
        seen = subprocess.run(
            [sys.executable, "-c", SEE],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        if not seen.stdout.startswith(str(root)):
            return False, f"another module is imported: {seen.stdout}{seen.stderr[-300:]}"
        tests = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "tests/ot",
                 "tests/dense/test_plans.py", "tests/dense/test_losses.py", "-m",
                 "not slow"]  # fmt: skip
        done = subprocess.run(
            tests, cwd=TESTS.parent, env=environment, capture_output=True, text=True, check=False
        )
    lines = done.stdout.strip().splitlines() or [done.stderr[-300:]]
    reports = [
        line for line in done.stderr.splitlines() if "Sanitizer" in line or "runtime" in line
    ]
    return done.returncode == 0 and not reports, (reports or lines)[-1].strip("= ")


def library(name: str) -> Path | None:
    """Where gcc has a library; None if it has not."""
    if shutil.which("gcc") is None:
        return None
    asked = ["gcc", f"-print-file-name={name}"]
    found = Path(subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip())
    return found if found.is_absolute() else None


# --- memory --------------------------------------------------------------------------------------


def memory() -> Outcome:
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
    return grown < 4, f"{before:.1f} MB after 300 steps, {grown:+.1f} MB after 3000"


def resident() -> float:
    """Memory of this process, in MB."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


PARTS: dict[str, Callable[[], Outcome]] = {
    "address": address, "memory": memory,
}  # fmt: skip


def main(names: list[str]) -> int:
    """Run the parts, print the table."""
    warnings.simplefilter("ignore")
    failed = 0
    for name in names or PARTS:
        began = time.monotonic()
        holds, text = PARTS[name]()
        seconds = time.monotonic() - began
        print(f"{name:8} {'holds' if holds else 'FAILS':6} {seconds:4.0f} s  {text}", flush=True)
        failed += not holds
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
