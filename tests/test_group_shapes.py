"""Log-sigmoid and hinge over several processes: each has its own anchors."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from unittest import mock

import pytest
import torch

import tricouple as tc
from processes import messages
from test_group import FEW, SIZES, batch, both_kinds, both_storages, compare, shares
from tricouple.ot import engine
from tricouple.ot.sweeps import native
from tricouple.shaping import Hinge

LOSSES = {
    "log-sigmoid": partial(tc.NegMMIOT, shaping="log_sigmoid", epsilon=0.5),
    "hinge": partial(tc.NegMMIOT, shaping=Hinge(margin=0.3, slope=0.05), epsilon=0.5),
}
both_losses = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)


@pytest.fixture(params=[True, False], ids=["C", "PyTorch"])
def change(request, pools):
    """Nothing, or no compiled module, here and in all processes."""
    for world in (2, 3, 4):
        pools(world)  # processes that began later would never have it
    if request.param:
        yield None
        return
    with mock.patch.object(native, "compiled", None):
        yield "tricouple.ot.sweeps.native.compiled", None


@pytest.fixture
def compared(pools, change):
    """The largest errors of a loss over several processes."""
    return partial(compare, pools, change=change)


@both_storages
@both_kinds
@both_losses
def test_a_coupling_of_several_processes_is_that_of_one(compared, make, within, memory):
    settings = {"memory": memory, "n_iters": 2}
    for sizes in SIZES.values() if native.compiled else FEW.values():
        assert compared(make, settings, sizes, within, temperature=0.5) < 1e-12, sizes


@both_storages
@pytest.mark.parametrize("gradient", ["implicit", "envelope"])
@both_kinds
@both_losses
def test_so_are_its_other_gradients(compared, make, within, gradient, memory):
    settings = {"gradient": gradient, "memory": memory, "n_iters": 6}
    assert compared(make, settings, [9, 0, 7], within, temperature=20.0) < 1e-12


@both_kinds
@both_losses
def test_in_single_precision_too(compared, make, within):
    more = {"dtype": torch.float32, "n": 48, "temperature": 0.5}
    assert compared(make, {"n_iters": 3}, [20, 11, 17], within, **more) < 1e-5


@both_kinds
@both_losses
def test_a_batch_of_one_process_and_idle_others(compared, make, within):
    assert compared(make, {"n_iters": 2}, [16, 0, 0], within, temperature=0.5) < 1e-12


@both_losses
def test_hard_batches_end_in_the_same_way_on_all_processes(compared, make):
    assert compared(make, {"n_iters": 2}, [5, 3], True, n=8, temperature=5e-3) < 1e-9


def counted(rank, make, settings, parts, change):
    """Sizes of the messages of a forward and a backward pass."""
    (embeddings, labels) = parts[rank]
    changed = mock.patch(*change) if change else nullcontext()
    with mock.patch.object(engine, "LARGEST", 0), changed:
        criterion = make(**settings, temperature=0.5, group="world")
        embeddings = embeddings.clone().requires_grad_()
        with messages() as forward:
            value = criterion(embeddings, labels)
        with messages() as backward:
            value.backward()
    return forward, backward


@both_losses
def test_messages_are_a_few_for_each_sweep(pools, make, change):
    n, d = 32, 64
    parts = shares(batch(True, n=n, d=d)[0], [16, 16])
    few, more = (
        pools(2).run(counted, make, {"n_iters": sweeps}, parts, change)[0] for sweeps in (2, 4)
    )
    forward, backward = (
        (len(after) - len(before)) / 2 for before, after in zip(few, more, strict=True)
    )
    assert forward <= (4 if native.compiled else 5)  # logarithms are summed in two messages
    assert backward <= 4
    assert [size for size in more[1] if size >= n * d] == [n * d]  # of the embeddings, once
