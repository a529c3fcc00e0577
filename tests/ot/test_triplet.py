"""``ot.triplet_sinkhorn``; tests/dense has plans, marginals, potentials and gradients."""

import dataclasses
import math

import pytest
import torch

import tricouple as tc
from conftest import draw
from reference import (
    cosine,
    dense_plan,
    marginal_error,
    relative_error,
    triplet_cost,
    uniform_marginals,
)


def bump(t):
    """No name, no convexity."""
    return -t - 0.8 * torch.sin(t)


def similarities(within: bool):
    return cosine(draw(7, 0, 4)) if within else cosine(draw(7, 1, 4), draw(9, 2, 4))


def dense(s, temperature, epsilon, psi="linear", n_iters=10, within=True, marginals=None):
    return dense_plan(triplet_cost(s, temperature, within, psi), epsilon, n_iters, marginals)


WITHIN = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])
# The log-sigmoid kernel is a quadrature.
SHAPINGS = pytest.mark.parametrize(
    ("psi", "tolerance"),
    [("linear", 1e-12), ("log_sigmoid", 1e-8), ("hinge", 1e-12), (bump, 1e-12)],
)


@SHAPINGS
@WITHIN
def test_excluded_triplets_have_no_mass(within, psi, tolerance):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(s, 0.1, 0.1, shaping=psi, within=within).dense()
    excluded = triplet_cost(s, 0.1, within).isinf()
    assert (plan[excluded] == 0).all()
    assert (plan[~excluded] >= 0).all()


@WITHIN
@pytest.mark.parametrize("sharpness", [100.0, 10_000.0])
@pytest.mark.parametrize("psi", ["linear", "log_sigmoid", "hinge"])
def test_pairs_of_sharp_plans_are_sums_of_the_plan(within, sharpness, psi):
    s = similarities(within)
    options = {"shaping": psi, "within": within, "kernel_tol": 1e-9, "n_iters": 10}
    plan = tc.ot.triplet_sinkhorn(s, 0.1, 10 / sharpness, **options)
    wanted = dense(s, 0.1, 10 / sharpness, psi, within=within)
    assert relative_error(plan.pair_marginal(1, 2), wanted.sum(0)) <= 1e-6


@SHAPINGS
def test_samples_of_zero_mass_get_no_plan(psi, tolerance):
    s = similarities(False)
    first, second, third = uniform_marginals((7, 9, 9))
    second = torch.where(torch.arange(9) == 2, 0.0, second)
    third = torch.where(torch.arange(9) < 2, 0.0, third)
    imposed = first, second / second.sum(), third / third.sum()
    options = {"n_iters": 200, "within": False, "marginals": imposed}
    plan = tc.ot.triplet_sinkhorn(s, 1.0, 0.7, shaping=psi, kernel_tol=1e-10, **options)
    entries = plan.dense()
    assert (entries[:, 2] == 0).all()
    assert (entries[:, :, :2] == 0).all()
    for actual, mass in zip(plan.marginals(), imposed, strict=True):
        assert relative_error(actual, mass) <= max(1e-10, 10 * tolerance)


@SHAPINGS
@WITHIN
def test_tolerance_stops_at_the_marginal_error(within, psi, tolerance):
    s = similarities(within)
    options = {"shaping": psi, "within": within, "kernel_tol": 1e-10}
    plan = tc.ot.triplet_sinkhorn(s, 0.5, 0.5, n_iters=1000, tol=1e-7, **options)
    assert plan.converged is True
    assert plan.marginal_error <= 1e-7
    assert 1 < plan.n_iters < 1000
    wanted = dense(s, 0.5, 0.5, psi, n_iters=plan.n_iters, within=within)
    assert relative_error(plan.dense(), wanted) <= tolerance


def test_too_few_sweeps_are_reported():
    s = similarities(True)
    plan = tc.ot.triplet_sinkhorn(s, 0.1, 0.1, n_iters=2, tol=1e-9)
    wanted = dense(s, 0.1, 0.1, n_iters=2)
    assert plan.converged is False
    assert plan.n_iters == 2
    assert isinstance(plan.marginal_error, float)
    error = marginal_error(wanted, uniform_marginals(wanted.shape))
    assert plan.marginal_error == pytest.approx(error, rel=1e-10)


def test_plan_is_immutable():
    plan = tc.ot.triplet_sinkhorn(similarities(True), 0.1, 0.1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.potentials = ()


def test_temperature_receives_its_gradient():
    s = similarities(True)
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def value(tau):
        potentials = tc.ot.triplet_sinkhorn(s, tau, 0.4, n_iters=5).potentials
        return sum((part * torch.arange(7.0)).sum() for part in potentials)

    assert torch.autograd.gradcheck(value, [tau])


def test_plans_of_float32_are_float32():
    plan = tc.ot.triplet_sinkhorn(similarities(True).float(), 0.2, 0.1)
    assert plan.dense().dtype == plan.pair_marginal(1, 2).dtype == torch.float32


def test_gradient_of_a_similarity_leaf_can_be_changed_in_place():
    similarity = similarities(True).requires_grad_()
    tc.ot.triplet_sinkhorn(similarity, 1.0, 0.5).potentials[0].square().sum().backward()
    assert similarity.grad.norm() > 0
    assert float(similarity.grad.zero_().norm()) == 0.0


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
