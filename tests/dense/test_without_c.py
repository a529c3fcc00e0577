"""The same tests pass without the compiled module, in PyTorch alone."""

import re
from pathlib import Path

import pytest

import tricouple as tc
from processes import python

HALVES = [("test_every_pair", 355), ("not test_every_pair", 345)]  # for two workers


@pytest.mark.slow
@pytest.mark.skipif(not tc.ot.compiled(), reason="built without a C compiler: nothing else to run")
@pytest.mark.parametrize(("words", "least"), HALVES)
def test_pytorch_alone_agrees_as_well(words, least):
    chosen = ["-m", "without_c", "-k", words, str(Path(__file__).parent)]
    pytest_alone = ["-m", "pytest", "-q", "-p", "no:cacheprovider"]
    root = Path(__file__).parents[2]
    found = python(*pytest_alone, *chosen, cwd=root, TRICOUPLE_NATIVE="0")
    assert int(re.search(r"(\d+) passed", found.stdout)[1]) >= least
