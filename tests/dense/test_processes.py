"""A loss of several processes is the dense reference's of all rows: value and own gradients."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import tricouple as tc
from batches import (
    DENSE,
    Batch,
    all_pairs,
    batch,
    bent,
    errors,
    exact,
    limits,
    scales,
    with_gradient,
)
from tricouple.shaping import Hinge

LOSSES = {
    "InfoNCE": (tc.InfoNCE, {}),
    "IOT": (tc.IOT, {"n_iters": 3}),
    "PushPull": (tc.PushPull, {"n_iters": 3}),
    "linear": (tc.NegMMIOT, {"n_iters": 3}),
    "log-sigmoid": (tc.NegMMIOT, {"n_iters": 2, "shaping": "log_sigmoid", "epsilon": 0.5}),
    "hinge": (tc.NegMMIOT, {"n_iters": 2, "shaping": "hinge", "epsilon": 0.5}),
}
SHAPINGS = ("linear", "log_sigmoid", Hinge(0.3), "squared_hinge", "exponential", bent)
SPLITS = {"one": (12,), "two": (7, 5), "uneven": (2, 9, 1), "a rank without rows": (8, 0, 4)}


def shares(whole: Batch, sizes: tuple[int, ...]) -> list[Batch]:
    """A batch of each process; references are dealt out likewise, the rest of them to the last."""
    parts = [
        {"embeddings": z, "labels": y}
        for z, y in zip(whole.embeddings.split(sizes), whole.labels.split(sizes), strict=True)
    ]
    if whole.ref_emb is not None:
        others = [*sizes[:-1], len(whole.ref_emb) - sum(sizes[:-1])]
        for k, part in enumerate(parts):
            part["ref_emb"] = whole.ref_emb.split(others)[k]
            part["ref_labels"] = whole.ref_labels.split(others)[k]
    return [Batch(**part) for part in parts]


def together(rank, make, settings, parts):
    """Value and gradients of one process, as it is in a mean over processes."""
    there = parts[rank].to(torch.float64)
    value = there.loss(make(**settings, group="world"))
    gradients = torch.autograd.grad(value, there.leaves)
    return float(value.detach()), [gradient / len(parts) for gradient in gradients]


def assert_equal(pools, make, settings, whole, sizes, wanted, c, allowed):
    """All processes have the value, and their gradients together are the gradient."""
    answers = pools(len(sizes)).run(together, make, settings, shares(whole, sizes))
    sides = zip(*(gradients for _, gradients in answers), strict=True)
    gradient = torch.cat([torch.cat(side).flatten() for side in sides])
    for value, _ in answers:
        found = errors((value, gradient), wanted, c, len(whole.embeddings))
        assert found[0] <= allowed[0]
        assert found[1] <= allowed[1]


def assert_same(pools, name, settings, whole, sizes, limit=1e-12, c=10.0):
    make, own = LOSSES[name]
    alone = whole.to(torch.float64)
    wanted = with_gradient(alone.loss(make(**own, **settings)), alone.leaves)
    assert_equal(pools, make, own | settings, whole, sizes, wanted, c, (limit, limit))


OPTIONS = {
    "name": list(DENSE),
    "shaping": SHAPINGS,
    "marginals": ("uniform", "target", "classes"),
    "memory": ("matrices", "streamed"),
    "gradient": ("unrolled", "envelope", "implicit"),
    "kind": ("random", "outlier", "duplicates", "singletons", "two sets"),
    "c": (1, 10, 300, 3000),
    "negatives": ("projected", "all"),
    "sizes": SPLITS,
}


def meaningful(name, shaping, marginals, memory, gradient, kind, c, negatives, sizes):
    """Whether a loss has these options."""
    if name != "PushPull" and negatives != "projected":
        return False
    if name == "InfoNCE" and (marginals, gradient) != ("uniform", "unrolled"):
        return False
    if shaping != "linear" and (
        name in ("InfoNCE", "IOT") or (name == "PushPull" and memory == "streamed")
    ):
        return False
    if shaping in SHAPINGS[3:] and (memory == "streamed" or c > 10):  # N³, and few digits
        return False
    if shaping != "linear" and c > 300:  # as in test_options
        return False
    return gradient != "implicit" or c == 1  # where 60 sweeps converge


CASES = all_pairs(OPTIONS | {"sizes": list(SPLITS)}, meaningful)


@pytest.mark.without_c
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(getattr(v, "__name__", v)) for v in case.values())
)
def test_every_pair_of_options(pools, case):
    name, c, rule, shaping = (case[key] for key in ("name", "c", "gradient", "shaping"))
    shared, own, least = scales(name, c, 0.5), {"memory": case["memory"]}, (0.0, 0.0)
    if name != "InfoNCE":
        shared |= {"n_iters": 60 if rule == "implicit" else 3, "marginals": case["marginals"]}
        own["gradient"] = rule
    if name in ("PushPull", "NegMMIOT"):
        shared["shaping"] = shaping
    if name == "PushPull":
        shared["negatives"] = case["negatives"]
    if (name, shaping) == ("NegMMIOT", "log_sigmoid"):
        own["kernel_tol"], least = 1e-9, (1e-8, 1e-7)
    wanted = exact(name, case["kind"], 12, tuple(shared.items()), rule)
    allowed = [max(pair) for pair in zip(limits(torch.float64, c), least, strict=True)]
    whole, settings = batch(case["kind"], 12), shared | own
    assert_equal(
        pools, getattr(tc, name), settings, whole, SPLITS[case["sizes"]], wanted, c, allowed
    )


def test_every_shaping_meets_every_split():
    found = {(case["shaping"], case["sizes"]) for case in CASES}
    assert len(found) == len(SHAPINGS) * len(SPLITS)


def large(n: int, across: bool) -> Batch:
    generator = torch.Generator().manual_seed(n)
    z = torch.randn(2, n, 6, generator=generator, dtype=torch.float64)
    labels = torch.arange(n) // 3
    both = {"ref_emb": z[1], "ref_labels": labels} if across else {}
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
