"""`ot.triplet_sinkhorn` with other ψ than the linear one, against the dense N³ algorithm."""

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import (
    CONVERGED,
    cosine,
    dense_triplet_plan,
    marginal_error,
    relative_error,
    triplet_cost,
    uniform_marginals,
    with_gradients,
)
from tricouple import shaping
from tricouple.shaping import anchor_bytes


def bump(t):
    """No name, no convexity."""
    return -t - 0.8 * torch.sin(t)


ORACLES = {"hinge": shaping.hinge, "exponential": shaping.exponential}  # names the oracle lacks
SHAPINGS = pytest.mark.parametrize(
    ("psi", "tolerance"),
    [("log_sigmoid", 1e-8), ("hinge", 1e-12), ("exponential", 1e-12), (bump, 1e-12)],
)
WITHIN = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])


def similarities(within: bool):
    return cosine(draw(7, 0, 4)) if within else cosine(draw(7, 1, 4), draw(9, 2, 4))


def masses(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator, dtype=torch.float64).softmax(0)


def both(within, psi, temperature=0.5, epsilon=0.3, **options):
    """Our plan, in blocks of two anchors, and the dense one."""
    s = similarities(within)
    budget = 2 * anchor_bytes(s)
    plan = tc.ot.triplet_sinkhorn(
        s, temperature, epsilon, shaping=psi, within=within, kernel_tol=1e-10,
        memory_budget=budget, **options,
    )  # fmt: skip
    options.setdefault("n_iters", 10)
    oracle = ORACLES.get(psi, psi)
    return plan, dense_triplet_plan(
        s, temperature, epsilon, shaping=oracle, within=within, **options
    )


@SHAPINGS
@WITHIN
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "given"])
def test_plan_equals_dense_plan(within, psi, tolerance, uniform):
    n, m = similarities(within).shape
    imposed = None if uniform else (masses(n, 1), masses(m, 2), masses(m, 3))
    plan, wanted = both(within, psi, n_iters=4, marginals=imposed)
    assert relative_error(plan.dense(), wanted) <= tolerance
    assert plan.n_iters == 4


@SHAPINGS
@WITHIN
def test_marginals_are_sums_of_the_plan(within, psi, tolerance):
    plan, wanted = both(within, psi, n_iters=3)
    for axis, marginal in enumerate(plan.marginals()):
        assert relative_error(marginal, wanted.sum(tuple({0, 1, 2} - {axis}))) <= tolerance
    for pair in ((0, 1), (0, 2), (1, 2)):
        (left_out,) = {0, 1, 2} - set(pair)
        assert relative_error(plan.pair_marginal(*pair), wanted.sum(left_out)) <= tolerance
        assert relative_error(plan.pair_marginal(*pair[::-1]), wanted.sum(left_out).T) <= tolerance
    error = marginal_error(wanted, uniform_marginals(wanted.shape))
    assert plan.marginal_error == pytest.approx(error, rel=1e-7)


@SHAPINGS
@WITHIN
def test_samples_of_zero_mass_get_no_plan(within, psi, tolerance):
    n, m = similarities(within).shape
    second = torch.where(torch.arange(m) == 2, 0.0, masses(m, 2))
    third = torch.where(torch.arange(m) < 2, 0.0, masses(m, 3))
    imposed = masses(n, 1), second / second.sum(), third / third.sum()
    plan, wanted = both(within, psi, 1.0, 0.7, n_iters=200, marginals=imposed)
    dense = plan.dense()
    assert (dense[:, 2] == 0).all()
    assert (dense[:, :, :2] == 0).all()
    assert relative_error(dense, wanted) <= 10 * tolerance
    for actual, mass in zip(plan.marginals(), imposed, strict=True):
        assert relative_error(actual, mass) <= 1e-7


@pytest.mark.parametrize("psi", ["log_sigmoid", "hinge", bump])
def test_tolerance_stops_at_the_marginal_error(psi):
    plan = tc.ot.triplet_sinkhorn(
        similarities(True), 1.0, 0.5, shaping=psi, n_iters=1000, tol=1e-6, kernel_tol=1e-10
    )
    assert plan.converged is True
    assert plan.marginal_error <= 1e-6
    assert 1 < plan.n_iters < 1000


@SHAPINGS
@WITHIN
@pytest.mark.parametrize("mode", ["unrolled", "implicit"])
def test_potentials_are_differentiable(within, psi, tolerance, mode):
    s = similarities(within).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    n, m = s.shape
    weights = masses(n * m * m, 4).reshape(n, m, m)  # any function of the plan
    sweeps = {"n_iters": 5} if mode == "unrolled" else {"n_iters": 3000, "tol": 1e-13}
    options = {"shaping": psi, "within": within, "gradient": mode, "kernel_tol": 1e-10}
    plan = tc.ot.triplet_sinkhorn(s, tau, 0.4, **options, **sweeps)
    first, second, third = plan.potentials
    total = first[:, None, None] + second[None, :, None] + third[None, None, :]
    oracle = ORACLES.get(psi, psi)
    rebuilt = ((total - triplet_cost(s, tau, within, oracle)) / 0.4).exp()
    ours = with_gradients((weights * rebuilt).sum(), [s, tau])
    dense = dense_triplet_plan(
        s, tau, 0.4, n_iters=5 if mode == "unrolled" else CONVERGED, within=within, shaping=oracle
    )
    wanted = with_gradients((weights * dense).sum(), [s, tau])
    accuracy = max(tolerance, 1e-12 if mode == "unrolled" else 1e-8)
    assert relative_error(ours[0], wanted[0]) <= accuracy
    assert relative_error(ours[1], wanted[1]) <= accuracy


@WITHIN
@pytest.mark.parametrize("psi", ["log_sigmoid", "hinge", bump])
def test_float32_plan_is_accurate(within, psi):
    s = similarities(within).float()
    plan = tc.ot.triplet_sinkhorn(s, 0.3, 0.1, shaping=psi, within=within)
    oracle = ORACLES.get(psi, psi)
    wanted = dense_triplet_plan(s.double(), 0.3, 0.1, n_iters=10, within=within, shaping=oracle)
    assert plan.dense().dtype == plan.pair_marginal(1, 2).dtype == torch.float32
    assert relative_error(plan.dense(), wanted) <= 1e-5
    assert relative_error(plan.pair_marginal(1, 2), wanted.sum(0)) <= 1e-5


@WITHIN
@pytest.mark.parametrize("sharpness", [100.0, 10_000.0])
@pytest.mark.parametrize("psi", ["linear", "log_sigmoid", "hinge"])
def test_pairs_of_sharp_plans_are_sums_of_the_plan(within, sharpness, psi):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(
        s, 0.1, 10 / sharpness, shaping=psi, within=within, kernel_tol=1e-9
    )
    wanted = dense_triplet_plan(
        s, 0.1, 10 / sharpness, n_iters=10, within=within, shaping=ORACLES.get(psi, psi)
    )
    assert relative_error(plan.pair_marginal(1, 2), wanted.sum(0)) <= 1e-6


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shaping": lambda t: t}, "strictly decreasing"),
        ({"shaping": lambda t: -t.sum()}, "one value for each margin"),
        ({"shaping": "cubic"}, "shaping must be one of"),
        ({"shaping": "log_sigmoid", "kernel_tol": 1e-20}, "kernel_tol"),
        ({"shaping": "hinge", "memory_budget": 100}, "memory_budget=100 .* take 3136"),
        ({"shaping": "hinge", "memory_budget": -1}, "memory_budget"),
    ],
)
def test_bad_shapings_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        tc.ot.triplet_sinkhorn(similarities(True), 0.1, 0.1, **options)
