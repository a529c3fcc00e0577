"""`ot.triplet_sinkhorn` against the dense N³ algorithm: plan, marginals, potentials, gradients."""

import dataclasses
import math

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


def similarities(within: bool):
    return cosine(draw(7, 0, 4)) if within else cosine(draw(7, 1, 4), draw(9, 2, 4))


def masses(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator, dtype=torch.float64).softmax(0)


def three_masses(shape):
    n, m = shape
    return masses(n, 1), masses(m, 2), masses(m, 3)


def solved(s, temperature, epsilon, psi="linear", **options):
    """Our plan; the costs of any ψ in blocks of two anchors."""
    options = {"kernel_tol": 1e-10, "memory_budget": 2 * anchor_bytes(s)} | options
    return tc.ot.triplet_sinkhorn(s, temperature, epsilon, shaping=psi, **options)


ORACLES = {"hinge": shaping.hinge, "exponential": shaping.exponential}  # names the oracle lacks


def dense(s, temperature, epsilon, psi="linear", n_iters=10, **options):
    """The oracle's plan."""
    options |= {"shaping": ORACLES.get(psi, psi), "n_iters": n_iters}
    return dense_triplet_plan(s, temperature, epsilon, **options)


WITHIN = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
# The log-sigmoid kernel is a quadrature.
SHAPINGS = pytest.mark.parametrize(
    ("psi", "tolerance"),
    [
        ("linear", 1e-12),
        ("log_sigmoid", 1e-8),
        ("hinge", 1e-12),
        ("exponential", 1e-12),
        (bump, 1e-12),
    ],
)


@pytest.mark.usefixtures("sweeps")
@WITHIN
@pytest.mark.parametrize("sharpness", [0.1, 5.0, 100.0, 1000.0])
@pytest.mark.parametrize("n_iters", [1, 2, 15])
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "given"])
def test_triplet_plan_equals_dense_plan(within, sharpness, n_iters, uniform):
    s = similarities(within)
    imposed = None if uniform else three_masses(s.shape)
    options = {"n_iters": n_iters, "within": within, "marginals": imposed}
    plan = tc.ot.triplet_sinkhorn(s, 0.2, 5 / sharpness, **options)
    assert relative_error(plan.dense(), dense(s, 0.2, 5 / sharpness, **options)) <= 1e-12
    assert plan.n_iters == n_iters


@SHAPINGS
@WITHIN
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "given"])
def test_plan_of_every_shaping_equals_dense_plan(within, psi, tolerance, uniform):
    s = similarities(within)
    imposed = None if uniform else three_masses(s.shape)
    options = {"psi": psi, "n_iters": 4, "within": within, "marginals": imposed}
    plan = solved(s, 0.5, 0.3, **options)
    assert relative_error(plan.dense(), dense(s, 0.5, 0.3, **options)) <= tolerance
    assert plan.n_iters == 4


@WITHIN
def test_excluded_triplets_have_no_mass(within):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(s, 0.1, 0.1, within=within).dense()
    excluded = triplet_cost(s, 0.1, within).isinf()
    assert (plan[excluded] == 0).all()
    assert (plan[~excluded] >= 0).all()


@SHAPINGS
@WITHIN
def test_marginals_and_their_error_are_those_of_the_plan(within, psi, tolerance):
    s = similarities(within)
    options = {"psi": psi, "n_iters": 3, "within": within}
    plan, wanted = solved(s, 0.3, 0.3, **options), dense(s, 0.3, 0.3, **options)
    for axis, marginal in enumerate(plan.marginals()):
        assert relative_error(marginal, wanted.sum(tuple({0, 1, 2} - {axis}))) <= tolerance
    for pair in ((0, 1), (0, 2), (1, 2)):
        (left_out,) = {0, 1, 2} - set(pair)
        assert relative_error(plan.pair_marginal(*pair), wanted.sum(left_out)) <= tolerance
        assert relative_error(plan.pair_marginal(*pair[::-1]), wanted.sum(left_out).T) <= tolerance
    error = marginal_error(wanted, uniform_marginals(wanted.shape))
    assert isinstance(plan.marginal_error, float)
    assert plan.marginal_error == pytest.approx(error, rel=1e-10 if psi == "linear" else 1e-7)


@WITHIN
@pytest.mark.parametrize("sharpness", [100.0, 10_000.0])
@pytest.mark.parametrize("psi", ["linear", "log_sigmoid", "hinge"])
def test_pairs_of_sharp_plans_are_sums_of_the_plan(within, sharpness, psi):
    s = similarities(within)
    plan = solved(s, 0.1, 10 / sharpness, psi, within=within, kernel_tol=1e-9)
    wanted = dense(s, 0.1, 10 / sharpness, psi, within=within)
    assert relative_error(plan.pair_marginal(1, 2), wanted.sum(0)) <= 1e-6


@pytest.mark.usefixtures("sweeps")
@SHAPINGS
@WITHIN
def test_samples_of_zero_mass_get_no_plan(within, psi, tolerance):
    s = similarities(within)
    first, second, third = three_masses(s.shape)
    second = torch.where(torch.arange(len(second)) == 2, 0.0, second)
    third = torch.where(torch.arange(len(third)) < 2, 0.0, third)
    imposed = first, second / second.sum(), third / third.sum()
    options = {"psi": psi, "n_iters": 200, "within": within, "marginals": imposed}
    plan = solved(s, 1.0, 0.7, **options)
    entries = plan.dense()
    assert (entries[:, 2] == 0).all()
    assert (entries[:, :, :2] == 0).all()
    wanted = dense(s, 1.0, 0.7, **options)
    assert relative_error(entries, wanted) <= tolerance * (1 if psi == "linear" else 10)
    for actual, mass in zip(plan.marginals(), imposed, strict=True):
        assert relative_error(actual, mass) <= (1e-10 if psi == "linear" else 1e-7)


@pytest.mark.usefixtures("sweeps")
@SHAPINGS
@WITHIN
def test_tolerance_stops_at_the_marginal_error(within, psi, tolerance):
    s = similarities(within)
    plan = solved(s, 0.5, 0.5, psi, n_iters=1000, tol=1e-7, within=within)
    assert plan.converged is True
    assert plan.marginal_error <= 1e-7
    assert 1 < plan.n_iters < 1000
    wanted = dense(s, 0.5, 0.5, psi, n_iters=plan.n_iters, within=within)
    assert relative_error(plan.dense(), wanted) <= tolerance


def test_too_few_sweeps_are_reported():
    plan = tc.ot.triplet_sinkhorn(similarities(True), 0.1, 0.1, n_iters=2, tol=1e-9)
    assert plan.converged is False
    assert plan.n_iters == 2
    assert plan.marginal_error > 1e-9


def test_plan_is_immutable():
    plan = tc.ot.triplet_sinkhorn(similarities(True), 0.1, 0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.potentials = ()


@pytest.mark.usefixtures("sweeps")
@SHAPINGS
@WITHIN
@pytest.mark.parametrize(
    ("mode", "sweeps", "dense_sweeps", "accuracy"),
    [
        ("unrolled", {"n_iters": 5}, 5, 1e-12),
        ("implicit", {"n_iters": 5000, "tol": 1e-13}, CONVERGED, 1e-8),
    ],
)
def test_potentials_rebuild_the_plan_and_are_differentiable(
    within, psi, tolerance, mode, sweeps, dense_sweeps, accuracy
):
    s = similarities(within).requires_grad_()
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    n, m = s.shape
    weights = masses(n * m * m, 4).reshape(n, m, m)  # any function of the plan
    plan = solved(s, tau, 0.4, psi, within=within, gradient=mode, **sweeps)
    first, second, third = plan.potentials
    total = first[:, None, None] + second[None, :, None] + third[None, None, :]
    rebuilt = ((total - triplet_cost(s, tau, within, ORACLES.get(psi, psi))) / 0.4).exp()
    wanted = dense(s, tau, 0.4, psi, n_iters=dense_sweeps, within=within)
    accuracy = max(tolerance, accuracy)
    assert relative_error(rebuilt, wanted) <= accuracy
    ours = with_gradients((weights * rebuilt).sum(), [s, tau])
    theirs = with_gradients((weights * wanted).sum(), [s, tau])
    assert relative_error(ours[0], theirs[0]) <= accuracy
    assert relative_error(ours[1], theirs[1]) <= accuracy


@WITHIN
@pytest.mark.parametrize(
    ("psi", "sharpness"),
    [("linear", 5.0), ("linear", 100.0), ("log_sigmoid", 30.0), ("hinge", 30.0), (bump, 30.0)],
)
def test_float32_plan_is_accurate(within, psi, sharpness):
    s = similarities(within).float()
    plan = tc.ot.triplet_sinkhorn(s, 0.2, 5 / sharpness, shaping=psi, within=within)
    wanted = dense(s.double(), 0.2, 5 / sharpness, psi, within=within)
    assert plan.dense().dtype == plan.pair_marginal(1, 2).dtype == torch.float32
    assert relative_error(plan.dense(), wanted) <= 1e-5
    assert relative_error(plan.pair_marginal(1, 2), wanted.sum(0)) <= 1e-5


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("similarity", {"similarity": torch.zeros(3, 4)}),  # within, yet not square
        ("similarity", {"similarity": torch.zeros(3)}),
        ("similarity", {"similarity": torch.zeros(3, 3, dtype=torch.int64)}),
        ("similarity", {"similarity": torch.full((3, 3), math.nan)}),
        ("temperature", {"temperature": -1.0}),
        ("temperature", {"temperature": torch.tensor(math.inf)}),
        ("epsilon", {"epsilon": 0.0}),
        ("n_iters", {"n_iters": 0}),
        ("n_iters", {"n_iters": 2.5}),
        ("gradient", {"gradient": "exact"}),
        ("marginals", {"marginals": (torch.ones(3) / 3, torch.ones(3) / 3)}),
        ("marginals", {"marginals": (torch.ones(3) / 3, torch.ones(3) / 3, torch.ones(2) / 2)}),
        ("shaping must be one of", {"shaping": "cubic"}),
        ("strictly decreasing", {"shaping": lambda t: t}),
        ("one value for each margin", {"shaping": lambda t: -t.sum()}),
        ("kernel_tol", {"shaping": "log_sigmoid", "kernel_tol": 1e-20}),
        ("memory_budget=100 .* take 576", {"shaping": "squared_hinge", "memory_budget": 100}),
        ("memory_budget", {"shaping": "squared_hinge", "memory_budget": -1}),
    ],
)
def test_bad_input_is_named(words, changes):
    arguments = {"similarity": torch.zeros(3, 3), "temperature": 0.1, "epsilon": 0.1} | changes
    with pytest.raises((ValueError, TypeError), match=words):
        tc.ot.triplet_sinkhorn(**arguments)
