"""The same tests pass without the compiled module, in PyTorch alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple as tc


@pytest.mark.slow
@pytest.mark.skipif(not tc.ot.compiled(), reason="built without a C compiler: nothing else to run")
def test_pytorch_alone_agrees_as_well():
    tests = [sys.executable, "-m", "pytest", "-q", "-m", "without_c", "-p", "no:cacheprovider"]
    found = subprocess.run(
        [*tests, str(Path(__file__).parent)],
        env=os.environ | {"TRICOUPLE_NATIVE": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) > 700
