"""Losses agree with the dense reference, value and gradient."""

import pytest
import torch

from batches import DENSE, KINDS, assert_agrees

DTYPES = (torch.float64, torch.float32)
SHARPNESSES = (0.05, 1, 10, 50, 60, 74, 100, 150, 300, 600, 1000, 10000)

every_loss = pytest.mark.parametrize("name", DENSE)
every_kind = pytest.mark.parametrize("kind", KINDS)
both_dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["float64", "float32"])


@pytest.mark.parametrize("c", SHARPNESSES)
@pytest.mark.parametrize("n", [3, 6, 16])
@every_kind
@every_loss
def test_small_batches_of_every_kind_at_every_sharpness(name, kind, n, c):
    assert_agrees(name, kind, n, c)


@pytest.mark.without_c
@both_dtypes
@pytest.mark.parametrize("c", [50, 60, 74, 100, 150, 300, 600])
@pytest.mark.parametrize("kind", ["outlier", "two clusters"])
@every_loss
def test_scalings_of_seventy_samples_that_leave_the_range_of_float32(name, kind, c, dtype):
    shared = {"n_iters": 5} if name == "NegMMIOT" else {}
    assert_agrees(name, kind, 70, c, dtype, shared=shared)


@both_dtypes
@pytest.mark.parametrize("c", [10, 1000])
@every_kind
@every_loss
def test_seventy_samples_are_more_than_a_tiny_batch(name, kind, c, dtype):
    shared = {} if name == "InfoNCE" else {"n_iters": 4}
    assert_agrees(name, kind, 70, c, dtype, shared=shared)


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@pytest.mark.parametrize(
    ("name", "kind", "c"),
    [(name, kind, c) for name in DENSE if name != "NegMMIOT" for kind in KINDS for c in (10, 150)]
    + [("NegMMIOT", "outlier", 100)],
)
def test_two_hundred_samples(name, kind, c, memory):
    shared = {"n_iters": 2} if name == "NegMMIOT" else {}
    for dtype in DTYPES:
        assert_agrees(name, kind, 200, c, dtype, shared=shared, memory=memory)
