"""``ot.sinkhorn``, ``ot.triplet_sinkhorn``; tests/dense has plans, potentials and gradients."""

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


def drawn_cost(forbidden=7):
    """Costs of 6 samples and 8, some of them infinite."""
    generator = torch.Generator().manual_seed(0)
    cost = torch.rand(6, 8, generator=generator, dtype=torch.float64)
    for entry in range(forbidden):
        cost[entry % 6, (3 * entry + 1) % 8] = math.inf
    return cost


def similarities(within=True):
    return cosine(draw(7, 0, 4)) if within else cosine(draw(7, 1, 4), draw(9, 2, 4))


def pair(epsilon=0.1, **options):
    """A plan of two axes, and the dense one after as many sweeps."""
    plan = tc.ot.sinkhorn(drawn_cost(), epsilon, **options)
    return plan, dense_plan(drawn_cost(), epsilon, plan.n_iters)


def triplet(epsilon=0.5, psi="linear", within=True, **options):
    """A plan of three axes, likewise."""
    options = {"shaping": psi, "within": within, "kernel_tol": 1e-10} | options
    plan = tc.ot.triplet_sinkhorn(similarities(within), 0.5, epsilon, **options)
    cost = triplet_cost(similarities(within), 0.5, within, psi)
    return plan, dense_plan(cost, epsilon, plan.n_iters)


KINDS = {
    "pairs": pair,
    **{
        f"{getattr(psi, '__name__', psi)}-{'within' if within else 'across'}": (
            lambda psi=psi, within=within, **more: triplet(psi=psi, within=within, **more)
        )
        for psi in ("linear", "log_sigmoid", "hinge", bump)
        for within in (True, False)
    },
}
every_kind = pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)


@every_kind
def test_tolerance_stops_at_the_marginal_error(make):
    plan, wanted = make(n_iters=1000, tol=1e-6)
    assert plan.converged is True
    assert plan.marginal_error <= 1e-6
    assert 1 < plan.n_iters < 1000
    assert relative_error(plan.dense(), wanted) <= 1e-8
    assert torch.equal(plan.dense() == 0, wanted == 0)  # forbidden entries, and no other


@every_kind
def test_too_few_sweeps_are_reported(make):
    plan, wanted = make(epsilon=0.05, n_iters=2, tol=1e-9)
    assert plan.converged is False
    assert plan.n_iters == 2
    error = marginal_error(wanted, uniform_marginals(wanted.shape))
    assert isinstance(plan.marginal_error, float)
    assert plan.marginal_error == pytest.approx(error, rel=1e-8)


@pytest.mark.parametrize("make", [pair, triplet])
def test_plan_is_immutable(make):
    with pytest.raises(dataclasses.FrozenInstanceError):
        make()[0].potentials = ()


def test_temperature_receives_its_gradient():
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)

    def value(tau):
        potentials = tc.ot.triplet_sinkhorn(similarities(), tau, 0.4, n_iters=5).potentials
        return sum((part * torch.arange(7.0)).sum() for part in potentials)

    assert torch.autograd.gradcheck(value, [tau])


def test_gradient_of_a_similarity_leaf_can_be_changed_in_place():
    similarity = similarities().requires_grad_()
    tc.ot.triplet_sinkhorn(similarity, 1.0, 0.5).potentials[0].square().sum().backward()
    assert similarity.grad.norm() > 0
    assert float(similarity.grad.zero_().norm()) == 0.0


THIRD, HALF = torch.ones(3) / 3, torch.ones(2) / 2


@pytest.mark.parametrize(
    ("words", "changes"),
    [
        ("cost", {"cost": torch.zeros(3)}),
        ("cost", {"cost": torch.zeros(3, 3, dtype=torch.int64)}),
        ("cost", {"cost": torch.full((3, 3), math.nan)}),
        ("cost", {"cost": torch.full((3, 3), -math.inf)}),
        ("cost", {"cost": torch.full((3, 3), math.inf)}),  # rows without an allowed entry
        ("epsilon", {"epsilon": 0.0}),
        ("epsilon", {"epsilon": math.nan}),
        ("n_iters", {"n_iters": 0}),
        ("row_marginal", {"row_marginal": HALF}),
        ("column_marginal", {"column_marginal": torch.tensor([1.5, -0.5, 0.0])}),
        ("gradient", {"gradient": "exact"}),
    ],
)
def test_bad_input_of_pairs_is_named(words, changes):
    with pytest.raises((ValueError, TypeError), match=words):
        tc.ot.sinkhorn(**{"cost": torch.zeros(3, 3), "epsilon": 0.1} | changes)


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
        ("n_iters", {"n_iters": 2.5}),
        ("gradient", {"gradient": "exact"}),
        ("marginals", {"marginals": (THIRD, THIRD)}),
        ("marginals", {"marginals": (THIRD, THIRD, HALF)}),
        ("shaping must be one of", {"shaping": "cubic"}),
        ("strictly decreasing", {"shaping": lambda t: t}),
        ("one value for each margin", {"shaping": lambda t: -t.sum()}),
        ("kernel_tol", {"shaping": "log_sigmoid", "kernel_tol": 1e-20}),
        ("memory_budget=100 .* take 576", {"shaping": "squared_hinge", "memory_budget": 100}),
        ("memory_budget", {"shaping": "squared_hinge", "memory_budget": -1}),
    ],
)
def test_bad_input_of_triplets_is_named(words, changes):
    arguments = {"similarity": torch.zeros(3, 3), "temperature": 0.1, "epsilon": 0.1} | changes
    with pytest.raises((ValueError, TypeError), match=words):
        tc.ot.triplet_sinkhorn(**arguments)
