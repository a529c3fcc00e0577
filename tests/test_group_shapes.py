"""Log-sigmoid and hinge over several processes: each has its own anchors."""

from __future__ import annotations

from functools import partial
from unittest import mock

import pytest

import tricouple as tc
from processes import Pool
from test_group import SIZES, compare
from tricouple.ot.sweeps import native
from tricouple.shaping import Hinge

LOSSES = {
    "log-sigmoid": partial(tc.NegMMIOT, shaping="log_sigmoid"),
    "hinge": partial(tc.NegMMIOT, shaping=Hinge(margin=0.3, slope=0.05)),
}


@pytest.fixture(scope="module", params=[True, False], ids=["C", "PyTorch"])
def pools(request, tmp_path_factory):
    """Processes with or without the compiled module, by their number."""
    found: dict[int, Pool] = {}
    compiled = native.compiled if request.param else None

    def of(world: int) -> Pool:
        if world not in found:
            with mock.patch.object(native, "compiled", compiled):
                found[world] = Pool(world, tmp_path_factory.mktemp(f"world{world}"))
        return found[world]

    yield of
    for pool in found.values():
        pool.close()


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@pytest.mark.parametrize("gradient", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
@pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
def test_a_coupling_of_several_processes_is_that_of_one(pools, make, within, gradient, memory):
    settings = {"gradient": gradient, "memory": memory, "n_iters": 4, "epsilon": 0.5}
    temperature = 0.5
    if gradient == "implicit":
        settings["n_iters"], temperature = 30, 2.0
    for sizes in SIZES.values():
        error = compare(pools, make, settings, sizes, within, temperature=temperature)
        assert error < 1e-12, sizes
