"""Log-sigmoid and hinge over several processes: each has its own anchors."""

from __future__ import annotations

from contextlib import contextmanager
from functools import partial
from unittest import mock

import pytest
import torch
import torch.distributed as dist

import tricouple as tc
from processes import Pool
from test_group import SIZES, batch, compare, shares
from tricouple.ot import engine
from tricouple.ot.sweeps import native
from tricouple.shaping import Hinge

LOSSES = {
    "log-sigmoid": partial(tc.NegMMIOT, shaping="log_sigmoid", epsilon=0.5),
    "hinge": partial(tc.NegMMIOT, shaping=Hinge(margin=0.3, slope=0.05), epsilon=0.5),
}
both_losses = pytest.mark.parametrize("make", LOSSES.values(), ids=LOSSES)
both_kinds = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])


@pytest.fixture(scope="module", params=[True, False], ids=["C", "PyTorch"])
def pools(request, tmp_path_factory):
    """Processes with or without the compiled module, by their number."""
    found: dict[int, Pool] = {}

    def of(world: int) -> Pool:
        if world not in found:
            found[world] = Pool(world, tmp_path_factory.mktemp(f"world{world}"))
        return found[world]

    with mock.patch.object(native, "compiled", native.compiled if request.param else None):
        yield of
    for pool in found.values():
        pool.close()


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@both_kinds
@both_losses
def test_a_coupling_of_several_processes_is_that_of_one(pools, make, within, memory):
    settings = {"memory": memory, "n_iters": 3}
    for sizes in SIZES.values():
        assert compare(pools, make, settings, sizes, within, temperature=0.5) < 1e-12, sizes


@pytest.mark.parametrize("gradient", ["implicit", "envelope"])
@both_kinds
@both_losses
def test_so_are_its_other_gradients(pools, make, within, gradient):
    settings = {"gradient": gradient, "n_iters": 20, "tol": 1e-9}
    assert compare(pools, make, settings, [9, 0, 7], within, temperature=2.0) < 1e-12


@both_kinds
@both_losses
def test_in_single_precision_too(pools, make, within):
    more = {"dtype": torch.float32, "n": 48, "temperature": 0.5}
    assert compare(pools, make, {"n_iters": 3}, [20, 11, 17], within, **more) < 1e-5


@both_kinds
@both_losses
def test_a_batch_of_one_process_and_idle_others(pools, make, within):
    assert compare(pools, make, {"n_iters": 3}, [16, 0, 0], within, temperature=0.5) < 1e-12


@both_losses
def test_hard_batches_end_in_the_same_way_on_all_processes(pools, make):
    assert compare(pools, make, {"n_iters": 2}, [5, 3], True, n=8, temperature=5e-3) < 1e-9


@contextmanager
def messages():
    """A list of the sizes of what is summed or gathered meanwhile."""
    found = []

    def noted(collective):
        def call(values, *rest):
            parts = values if isinstance(values, list) else [values]
            found.append(sum(part.numel() for part in parts))
            return collective(values, *rest)

        return call

    real = {name: noted(getattr(dist, name)) for name in ("all_reduce", "all_gather")}
    with mock.patch.multiple(dist, **real):
        yield found


def counted(rank, make, settings, parts):
    """Sizes of the messages of a forward and a backward pass."""
    (embeddings, labels) = parts[rank]
    with mock.patch.object(engine, "LARGEST", 0):
        criterion = make(**settings, temperature=0.5, group="world")
        embeddings = embeddings.clone().requires_grad_()
        with messages() as forward:
            value = criterion(embeddings, labels)
        with messages() as backward:
            value.backward()
    return forward, backward


@both_losses
def test_messages_are_a_few_for_each_sweep(pools, make):
    n, d = 32, 64
    parts = shares(batch(True, n=n, d=d)[0], [16, 16])
    few, more = (pools(2).run(counted, make, {"n_iters": n_iters}, parts)[0] for n_iters in (2, 4))
    forward, backward = (
        (len(after) - len(before)) / 2 for before, after in zip(few, more, strict=True)
    )
    assert forward <= (4 if native.compiled else 5)  # logarithms are summed in two messages
    assert backward <= 4
    assert [size for size in more[1] if size >= n * d] == [n * d]  # of the embeddings, once
