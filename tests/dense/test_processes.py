"""A loss of several processes is that of one process with all rows: value and own gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tricouple as tc
from batches import Batch, batch, errors, with_gradient

LOSSES = {
    "InfoNCE": (tc.InfoNCE, {}),
    "IOT": (tc.IOT, {"n_iters": 3}),
    "PushPull": (tc.PushPull, {"n_iters": 3}),
    "linear": (tc.NegMMIOT, {"n_iters": 3}),
    "log-sigmoid": (tc.NegMMIOT, {"n_iters": 2, "shaping": "log_sigmoid", "epsilon": 0.5}),
    "hinge": (tc.NegMMIOT, {"n_iters": 2, "shaping": "hinge", "epsilon": 0.5}),
}
SPLITS = {"one": (12,), "two": (7, 5), "uneven": (2, 9, 1), "a rank without rows": (8, 0, 4)}


def shares(whole: Batch, sizes: tuple[int, ...]) -> list[Batch]:
    """A batch of each process; references are dealt out likewise, the rest of them to the last."""
    parts = [
        {"embeddings": z, "labels": y}
        for z, y in zip(whole.embeddings.split(sizes), whole.labels.split(sizes), strict=True)
    ]
    if whole.references is not None:
        others = [*sizes[:-1], len(whole.references) - sum(sizes[:-1])]
        for k, part in enumerate(parts):
            part["references"] = whole.references.split(others)[k]
            part["ref_labels"] = whole.ref_labels.split(others)[k]
    return [Batch(**part) for part in parts]


def together(rank, name, settings, parts):
    """Value and gradients of one process, as it is in a mean over processes."""
    make, own = LOSSES[name]
    there = parts[rank].to(torch.float64)
    value = there.loss(make(**own, **settings, group="world"))
    gradients = torch.autograd.grad(value, there.leaves)
    return float(value.detach()), [gradient / len(parts) for gradient in gradients]


def assert_same(pools, name, settings, whole, sizes, limit=1e-12, c=10.0):
    make, own = LOSSES[name]
    alone = whole.to(torch.float64)
    wanted = with_gradient(alone.loss(make(**own, **settings)), alone.leaves)
    answers = pools(len(sizes)).run(together, name, settings, shares(whole, sizes))
    sides = zip(*(gradients for _, gradients in answers), strict=True)
    gradient = torch.cat([torch.cat(side).flatten() for side in sides])
    for value, _ in answers:
        assert max(errors((value, gradient), wanted, c, len(whole.embeddings))) < limit


@pytest.mark.parametrize("sizes", SPLITS.values(), ids=SPLITS)
@pytest.mark.parametrize("name", LOSSES)
def test_small_batches(pools, name, sizes):
    for kind in ("outlier", "singletons", "two sets"):
        assert_same(pools, name, {}, batch(kind, 12), sizes)


@pytest.mark.parametrize("sizes", [(5, 7), (8, 0, 4)], ids=["two", "three"])
@pytest.mark.parametrize("marginals", ["target", "classes"])
@pytest.mark.parametrize("name", list(LOSSES)[1:])
def test_marginals_and_gradients(pools, name, marginals, sizes):
    for more in ({}, {"gradient": "envelope"}, {"memory": "streamed"}):
        assert_same(pools, name, {"marginals": marginals} | more, batch("singletons", 12), sizes)


def large(n: int, across: bool) -> Batch:
    generator = torch.Generator().manual_seed(n)
    z = torch.randn(2, n, 6, generator=generator, dtype=torch.float64)
    labels = torch.arange(n) // 3
    both = {"references": z[1], "ref_labels": labels} if across else {}
    return Batch(z[0], labels, **both)


# From so many pairs on each process has kernels of its own rows.
SIZES = {"linear": 1040, "PushPull": 1040, "IOT": 1040, "InfoNCE": 1040}


@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize("name", LOSSES)
def test_batches_whose_kernels_are_shared(pools, name, across):
    n = SIZES.get(name, 264)
    sizes = (n // 2 - 31, 0, n - n // 2 + 31) if name == "linear" else (n // 2 - 31, n // 2 + 31)
    assert_same(pools, name, {}, large(n, across), sizes)


@pytest.mark.parametrize("name", ["linear", "PushPull", "InfoNCE"])
def test_a_shared_batch_with_an_outlier_that_is_sharp(pools, name):
    whole = large(1040, across=False)
    tight = whole.embeddings[:1] + 0.03 * whole.embeddings
    tight[5] = -tight[0]
    whole = replace(whole, embeddings=tight)
    assert_same(pools, name, {"sharpness": 60.0}, whole, (500, 540), 1e-11, 60.0)


def both_ways(rank, name, parts):
    make, own = LOSSES[name]
    there = parts[rank].to(torch.float64)
    criterion = tc.BothDirections(make(**own, group="world"))
    value = criterion(*there.leaves, there.labels)
    return with_gradient(value, there.leaves)[0]


@pytest.mark.parametrize("name", ["linear", "InfoNCE"])
def test_both_directions(pools, name):
    whole = large(12, across=True)
    make, own = LOSSES[name]
    wanted = tc.BothDirections(make(**own))(*whole.leaves, whole.labels)
    for found in pools(2).run(both_ways, name, shares(whole, (4, 8))):
        assert found == pytest.approx(float(wanted), rel=1e-12)
