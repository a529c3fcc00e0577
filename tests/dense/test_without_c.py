"""The same tests pass without the compiled module, in PyTorch alone."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tricouple as tc

HALVES = [("test_every_pair", 355), ("not test_every_pair", 345)]  # for two workers


@pytest.mark.slow
@pytest.mark.skipif(not tc.ot.compiled(), reason="built without a C compiler: nothing else to run")
@pytest.mark.parametrize(("words", "least"), HALVES)
def test_pytorch_alone_agrees_as_well(words, least):
    chosen = ["-m", "without_c", "-k", words, str(Path(__file__).parent)]
    found = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen],
        env=os.environ | {"TRICOUPLE_NATIVE": "0"},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert found.returncode == 0, found.stdout[-4000:]
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) >= least
