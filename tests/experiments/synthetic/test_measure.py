"""The words for outcomes follow measured thresholds."""

import math

import pytest

from tricouple.experiments.synthetic.measure import MEANINGS, judge

FALLING = [2.0, 1.0]


@pytest.mark.parametrize(
    ("losses", "deviation", "spectrum", "dim", "word"),
    [
        (FALLING, 0.001, [1.0, 0.99, 0.96], 8, "etf"),
        (FALLING, 0.02, [1.0, 0.99, 0.96], 8, "rich"),
        (FALLING, 0.001, [1.0, 0.99, 0.90], 8, "rich"),
        (FALLING, 0.3, [1.0, 0.5, 0.02], 8, "rich"),
        (FALLING, 0.3, [1.0, 0.5, 0.005], 8, "reduced"),
        (FALLING, 0.3, [1.0, 0.5, 0.0], 2, "rich"),  # two dimensions have no third direction
        (FALLING, 0.3, [1.0, 0.03, 0.01], 8, "collapsed"),
        (FALLING, 0.0, [1e-3, 1e-3, 1e-3], 8, "collapsed"),
        (FALLING, 0.0, [0.0, 0.0, 0.0], 8, "collapsed"),
        (FALLING, 0.0, [2.0], 8, "etf"),  # two classes: one direction is all there is
        ([1.0, 1.2], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        ([1.0, 1.02], 0.0, [1.0, 1.0, 1.0], 8, "etf"),  # the noise of a batch
        ([-0.5, -0.4], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        ([1.0, math.nan], 0.0, [1.0, 1.0, 1.0], 8, "diverged"),
        (FALLING, math.nan, [math.nan], 8, "diverged"),
    ],
)
def test_verdict(losses, deviation, spectrum, dim, word):
    assert judge(losses, deviation, spectrum, dim) == word
    assert word in MEANINGS
