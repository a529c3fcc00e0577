"""``ot.sinkhorn``: transport and anti-transport; tests/dense has plans, potentials, gradients."""

import dataclasses
import math

import pytest
import torch

import tricouple as tc
from reference import dense_plan, marginal_error, relative_error, uniform_marginals


def random_cost(n=6, m=8, seed=0, forbidden=0):
    generator = torch.Generator().manual_seed(seed)
    cost = torch.rand(n, m, generator=generator, dtype=torch.float64)
    for entry in range(forbidden):
        cost[entry % n, (3 * entry + 1) % m] = math.inf
    return cost


def masses(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator, dtype=torch.float64).add(0.1).softmax(0)


@pytest.mark.parametrize("anti", [False, True])
def test_given_marginals_are_imposed(anti):
    cost = random_cost(forbidden=5)
    imposed = {"row_marginal": masses(6, 1), "column_marginal": masses(8, 2)}
    converged = tc.ot.sinkhorn(cost, 0.2, n_iters=2000, tol=1e-13, anti=anti, **imposed)
    rows, columns = converged.marginals()
    assert relative_error(rows, imposed["row_marginal"]) <= 1e-12
    assert relative_error(columns, imposed["column_marginal"]) <= 1e-12
    assert (converged.dense()[cost.isinf()] == 0).all()


def test_samples_of_zero_mass_get_no_plan():
    rows = torch.tensor([0.5, 0.0, 0.25, 0.25], dtype=torch.float64)
    columns = torch.tensor([0.0, 0.4, 0.6], dtype=torch.float64)
    cost = random_cost(4, 3)
    plan = tc.ot.sinkhorn(cost, 0.2, row_marginal=rows, column_marginal=columns, n_iters=300)
    dense = plan.dense()
    assert (dense[1] == 0).all()
    assert (dense[:, 0] == 0).all()
    kept = dense_plan(cost[[0, 2, 3]][:, 1:], 0.2, 300, (rows[rows > 0], columns[1:]))
    assert relative_error(dense[[0, 2, 3]][:, 1:], kept) <= 1e-12


def test_marginals_and_their_error_are_those_of_the_plan():
    cost = random_cost(forbidden=7)
    plan = tc.ot.sinkhorn(cost, 0.05, n_iters=3)
    wanted = dense_plan(cost, 0.05, 3)
    rows, columns = plan.marginals()
    assert relative_error(rows, wanted.sum(1)) <= 1e-12
    assert relative_error(columns, wanted.sum(0)) <= 1e-12
    error = marginal_error(wanted, uniform_marginals(cost.shape))
    assert isinstance(plan.marginal_error, float)
    assert plan.marginal_error == pytest.approx(error, rel=1e-10)


def test_tolerance_stops_at_the_marginal_error():
    cost = random_cost()
    plan = tc.ot.sinkhorn(cost, 0.1, n_iters=1000, tol=1e-6)
    assert plan.converged is True
    assert plan.marginal_error <= 1e-6
    assert 1 < plan.n_iters < 1000
    wanted = dense_plan(cost, 0.1, plan.n_iters)
    assert relative_error(plan.dense(), wanted) <= 1e-12


def test_too_few_sweeps_are_reported():
    plan = tc.ot.sinkhorn(random_cost(), 0.01, n_iters=2, tol=1e-9)
    assert plan.converged is False
    assert plan.n_iters == 2
    assert plan.marginal_error > 1e-9


def test_anti_transport_maximises_the_cost():
    cost = random_cost(6, 6)
    dear = (tc.ot.sinkhorn(cost, 0.01, n_iters=500, anti=True).dense() * cost).sum()
    fair = cost.mean()
    cheap = (tc.ot.sinkhorn(cost, 0.01, n_iters=500).dense() * cost).sum()
    assert cheap < fair - 0.1 < fair + 0.1 < dear


def test_plan_is_immutable():
    plan = tc.ot.sinkhorn(random_cost(), 0.1, n_iters=2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.potentials = ()


def test_forbidden_entries_receive_no_gradient():
    cost = random_cost(forbidden=7).requires_grad_()
    rows, columns = tc.ot.sinkhorn(cost, 0.3, n_iters=5).potentials
    weights = torch.linspace(-1, 1, len(rows), dtype=torch.float64)
    (gradient,) = torch.autograd.grad((rows * weights).sum() + columns.square().sum(), cost)
    assert gradient.isfinite().all()
    assert (gradient[cost.isinf()] == 0).all()
    assert gradient.norm() > 0


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("cost", lambda: tc.ot.sinkhorn(torch.zeros(3), 0.1)),
        ("cost", lambda: tc.ot.sinkhorn(torch.zeros(3, 3, dtype=torch.int64), 0.1)),
        ("cost", lambda: tc.ot.sinkhorn(torch.full((3, 3), math.nan), 0.1)),
        ("cost", lambda: tc.ot.sinkhorn(torch.full((3, 3), -math.inf), 0.1)),
        ("epsilon", lambda: tc.ot.sinkhorn(torch.zeros(3, 3), 0.0)),
        ("epsilon", lambda: tc.ot.sinkhorn(torch.zeros(3, 3), math.nan)),
        ("n_iters", lambda: tc.ot.sinkhorn(torch.zeros(3, 3), 0.1, n_iters=0)),
        ("row_marginal", lambda: tc.ot.sinkhorn(torch.zeros(3, 2), 0.1, row_marginal=masses(2, 0))),
        ("column_marginal", lambda: tc.ot.sinkhorn(
            torch.zeros(3, 2), 0.1, column_marginal=torch.tensor([1.5, -0.5]))),
        ("gradient", lambda: tc.ot.sinkhorn(torch.zeros(3, 3), 0.1, gradient="exact")),
    ],
)  # fmt: skip
def test_bad_input_is_named(name, call):
    with pytest.raises((ValueError, TypeError), match=name):
        call()


def test_row_without_an_allowed_entry_is_an_error():
    cost = random_cost()
    cost[2] = math.inf
    with pytest.raises(ValueError, match="cost"):
        tc.ot.sinkhorn(cost, 0.1)
