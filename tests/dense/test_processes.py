"""A loss of several processes is the dense reference's of all rows: value and own gradients."""

import pytest
import torch

import tricouple as tc
from batches import DENSE, all_pairs, assert_right, batch, bent, exact, settings_of
from processes import shares, together
from tricouple.shaping import Hinge

SHAPINGS = ("linear", "log_sigmoid", Hinge(0.3), "squared_hinge", "exponential", bent)
SPLITS = {"one": (12,), "two": (7, 5), "uneven": (2, 9, 1), "a rank without rows": (8, 0, 4)}
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
    name, kind, c = case["name"], case["kind"], case["c"]
    shared, own, least = settings_of(case | {"epsilon": 0.5, "epsilon_neg": None}, 3, 60)
    wanted = exact(name, kind, 12, tuple(shared.items()), case["gradient"])
    parts = shares(batch(kind, 12), SPLITS[case["sizes"]])
    values, gradients = together(pools, getattr(tc, name), shared | own, parts)
    gradient = torch.cat([part.flatten() for part in gradients])
    for value in values:
        assert_right((float(value), gradient), wanted, c, 12, least=least)


def test_every_shaping_meets_every_split():
    found = {(case["shaping"], case["sizes"]) for case in CASES}
    assert len(found) == len(SHAPINGS) * len(SPLITS)
