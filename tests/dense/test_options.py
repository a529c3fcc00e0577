"""Every option of a loss, beside every other, agrees with the dense reference."""

from dataclasses import replace

import pytest
import torch

import tricouple as tc
from batches import (
    DENSE,
    KINDS,
    all_pairs,
    assert_agrees,
    assert_right,
    batch,
    bent,
    errors,
    limits,
    listed,
    scales,
    settings_of,
    with_gradient,
)
from tricouple.shaping import Hinge

DTYPES = (torch.float64, torch.float32)
WITHOUT_C = pytest.mark.without_c
either_dtype = pytest.mark.parametrize(
    "dtype",
    [pytest.param(torch.float64, marks=WITHOUT_C), torch.float32],
    ids=["float64", "float32"],
)


FAST = ("linear", "log_sigmoid", "hinge", Hinge(0.0), Hinge(0.3))
OPTIONS = {
    "name": list(DENSE),
    "shaping": (*FAST, "squared_hinge", "exponential", bent),
    "marginals": ("uniform", "target", "classes"),
    "memory": ("matrices", "streamed"),
    "gradient": ("unrolled", "envelope", "implicit"),
    "dtype": DTYPES,
    "n": (3, 6, 16, 48),
    "kind": KINDS,
    "c": (0.05, 1, 10, 50, 100, 150, 300, 1000),
    "epsilon": (0.1, 0.5),
    "negatives": ("projected", "all"),
    "epsilon_neg": (None, 0.23),
}


def meaningful(
    name, shaping, marginals, memory, gradient, n, kind, c, negatives, epsilon_neg, epsilon, **rest
):
    """Whether a loss has these options, and digits enough."""
    if gradient == "implicit":  # the reference is unrolled until it has converged
        converges = c <= 1 and (n == 6 or (n == 3 and marginals == "uniform"))
        if not converges:
            return False
    if (name != "PushPull") and (negatives, epsilon_neg) != ("projected", None):
        return False
    if name in ("InfoNCE", "IOT"):
        plain = shaping == "linear" and epsilon == 0.1
        return plain and (name == "IOT" or (marginals, gradient) == ("uniform", "unrolled"))
    if shaping not in FAST and (n > 16 or c > 10):  # N³ time; e^{−t} has no digits left beyond
        return False
    if shaping != "linear" and memory == "streamed" and (name == "PushPull" or shaping not in FAST):
        return False
    if shaping == "log_sigmoid" and c > 300:  # the quadrature has 1/τ nodes
        return False
    # On a kink the gradient is one of many.
    return not (shaping == Hinge(0.0) and kind == "duplicates")


SETTLED = 60  # sweeps that leave nothing to do up to c = 2

CASES = all_pairs(OPTIONS | {"name": ["PushPull"]}, meaningful)
for other in ("InfoNCE", "IOT", "NegMMIOT"):
    alone = {"name": [other], "negatives": ["projected"], "epsilon_neg": [None]}
    CASES += all_pairs(OPTIONS | alone, meaningful)


@WITHOUT_C
@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(getattr(v, "__name__", v)) for v in case.values())
)
def test_every_pair_of_options(case):
    shared, own, least = settings_of(case, 4, SETTLED)
    options = {"shared": shared, "least": least, "rule": case["gradient"]}
    assert_agrees(*(case[key] for key in ("name", "kind", "n", "c", "dtype")), **options, **own)


def test_every_shaping_occurs_with_every_kind_of_batch():
    found = {(case["shaping"], case["kind"]) for case in CASES if case["name"] == "NegMMIOT"}
    assert len(found) == len(OPTIONS["shaping"]) * len(KINDS) - 1  # the kinks


@pytest.mark.parametrize("marginals", ["target", "classes"])
@pytest.mark.parametrize("kind", ["outlier", "singletons"])
@pytest.mark.parametrize("shaping", ["linear", "log_sigmoid", "hinge"])
def test_kernels_of_seventy_samples_in_float32(shaping, kind, marginals):
    shared = {"n_iters": 2, "marginals": marginals, "shaping": shaping}
    own = {"kernel_tol": 1e-6} if shaping == "log_sigmoid" else {}
    assert_agrees("NegMMIOT", kind, 70, 60, torch.float32, shared=shared, **own)


@pytest.mark.parametrize("shaping", ["linear", "log_sigmoid", "hinge"])
def test_kernels_of_a_hundred_and_fifty_samples(shaping):
    shared = {"n_iters": 1, "shaping": shaping}
    own, least = ({"kernel_tol": 1e-6}, 1e-5) if shaping == "log_sigmoid" else ({}, 0.0)
    assert_agrees("NegMMIOT", "random", 150, 25, shared=shared, least=(least, least), **own)


# --- gradients ------------------------------------------------------------------------------------

COUPLINGS = [
    *(("IOT", {}), ("PushPull", {}), ("PushPull", {"shaping": "log_sigmoid"})),
    *(("NegMMIOT", {"shaping": psi}) for psi in ("linear", "log_sigmoid", Hinge(0.3), bent)),
]


@pytest.mark.parametrize(("n", "c", "n_iters"), [(6, 2, SETTLED), (4, 10, 200), (10, 4, 80)])
@pytest.mark.parametrize("marginals", ["uniform", "target", "classes"])
@pytest.mark.parametrize(("name", "options"), COUPLINGS)
def test_gradients_of_a_converged_plan(name, options, marginals, n, c, n_iters):
    """Implicit and, for a target with the plan's marginals, envelope: the unrolled one's limit."""
    kind = {"uniform": "two sets", "target": "singletons", "classes": "random"}[marginals]
    shaping = options.get("shaping", "linear")
    own = {"kernel_tol": 1e-10} if (name, shaping) == ("NegMMIOT", "log_sigmoid") else {}
    streams = shaping == "linear" or (name == "NegMMIOT" and shaping in FAST)
    shared = options | {"n_iters": n_iters, "marginals": marginals}
    for memory in ("matrices", "streamed") if streams else ("matrices",):
        for gradient in ("implicit",) if marginals == "uniform" else ("implicit", "envelope"):
            how = {"memory": memory, "gradient": gradient} | own
            assert_agrees(name, kind, n, c, shared=shared, least=(1e-9, 1e-8), **how)


@WITHOUT_C
@pytest.mark.parametrize("kind", ["random", "collapsed", "two sets"])
@pytest.mark.parametrize(("name", "options"), [case for case in COUPLINGS if case[0] != "PushPull"])
def test_sweeps_end_where_the_tolerance_says(name, options, kind):
    c, n = 10.0, 16
    there = batch(kind, n).to(torch.float64)
    shared = scales(name, c) | options
    own = {"kernel_tol": 1e-9} if options.get("shaping") == "log_sigmoid" else {}
    criterion = getattr(tc, name)(**shared, **own, n_iters=200, tol=1e-4)
    found = with_gradient(there.loss(criterion), there.leaves)
    sweeps = criterion.diagnostics()["sweeps"]
    assert 1 < sweeps < 200
    assert criterion.diagnostics()["marginal_error"] < 1e-4
    wanted = with_gradient(there.dense(DENSE[name], **shared, n_iters=sweeps), there.leaves)
    value, gradient = errors(found, wanted, c, n)
    assert value < (1e-8 if own else 1e-12)
    assert gradient < (1e-7 if own else 2e-12)


@either_dtype
@pytest.mark.parametrize("c", [1.0, 60.0, 300.0])
@pytest.mark.parametrize(("name", "options"), [("InfoNCE", {}), *COUPLINGS[:5], COUPLINGS[5]])
@pytest.mark.parametrize("kind", ["outlier", "two sets"])
def test_a_temperature_receives_its_gradient(name, options, kind, c, dtype):
    shared = scales(name, c) | options
    scale = "epsilon" if name == "IOT" else "temperature"
    tau = torch.tensor(shared[scale], dtype=torch.float64, requires_grad=True)
    value = batch(kind, 16).to(torch.float64).dense(DENSE[name], **shared | {scale: tau})
    (wanted,) = torch.autograd.grad(value, tau)
    limit, own = limits(dtype, c)[1], {}
    if (name, options) == ("NegMMIOT", {"shaping": "log_sigmoid"}):
        limit, own = max(limit, 1e-7), {"kernel_tol": 1e-9}
    streams = (name, options) != ("PushPull", {"shaping": "log_sigmoid"})
    for memory in ("matrices", "streamed") if streams else ("matrices",):
        criterion = getattr(tc, name)(**shared, **own, memory=memory)
        value = batch(kind, 16).to(dtype).loss(criterion, temperature=tau)
        (found,) = torch.autograd.grad(value, tau)
        error = abs(found - wanted) / wanted.abs().clamp_min(1e-3 * c / shared[scale])
        assert error <= limit


# --- other calls ----------------------------------------------------------------------------------


@either_dtype
@pytest.mark.parametrize("number", [3, 4], ids=["triplets", "pairs"])
@pytest.mark.parametrize("across", [False, True], ids=["within", "across"])
@pytest.mark.parametrize(
    ("name", "options", "marginals"),
    [("InfoNCE", {}, None)]
    + [
        (name, options, marginals)
        for name, options in [("PushPull", {"negatives": "all"}), *COUPLINGS]
        for marginals in ("uniform", "target")
    ],
)
def test_listed_triplets_and_pairs(name, options, marginals, across, number, dtype):
    c, n = 40.0, 10
    shared = scales(name, c) | options | ({"marginals": marginals} if marginals else {})
    whole = listed(n, number)
    if across:
        whole = replace(whole, ref_emb=batch("two sets", n).ref_emb)
    there = whole.to(torch.float64)
    wanted = with_gradient(there.dense(DENSE[name], **shared), there.leaves)
    there = whole.to(dtype)
    smooth = name == "NegMMIOT" and options.get("shaping") == "log_sigmoid"
    own, least = ({"kernel_tol": 1e-9}, 1e-8) if smooth else ({}, 0.0)
    found = with_gradient(there.loss(getattr(tc, name)(**shared, **own)), there.leaves)
    assert_right(found, wanted, c, n, dtype, (least, least))
