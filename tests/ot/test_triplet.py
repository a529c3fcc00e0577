"""`ot.triplet_sinkhorn` against the dense N³ algorithm: plan, marginals, potentials, gradients."""

import dataclasses
import math

import pytest
import torch

import tricouple as tc
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


def similarities(within: bool, seed=0):
    generator = torch.Generator().manual_seed(seed)
    anchors = torch.randn(7, 4, generator=generator, dtype=torch.float64)
    if within:
        return cosine(anchors)
    return cosine(anchors, torch.randn(9, 4, generator=generator, dtype=torch.float64))


def masses(n, seed):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, generator=generator, dtype=torch.float64).softmax(0)


def three_masses(shape):
    n, m = shape
    return masses(n, 1), masses(m, 2), masses(m, 3)


WITHIN = pytest.mark.parametrize("within", [True, False], ids=["within", "across"])


@pytest.mark.usefixtures("sweeps")
@WITHIN
@pytest.mark.parametrize("sharpness", [0.1, 5.0, 100.0, 1000.0])
@pytest.mark.parametrize("n_iters", [1, 2, 15])
@pytest.mark.parametrize("uniform", [True, False], ids=["uniform", "given"])
def test_triplet_plan_equals_dense_plan(within, sharpness, n_iters, uniform):
    s = similarities(within)
    options = {
        "n_iters": n_iters,
        "within": within,
        "marginals": None if uniform else three_masses(s.shape),
    }
    plan = tc.ot.triplet_sinkhorn(s, 0.2, 5 / sharpness, **options)
    wanted = dense_triplet_plan(s, 0.2, 5 / sharpness, **options)
    assert relative_error(plan.dense(), wanted) <= 1e-12
    assert plan.n_iters == n_iters


@WITHIN
def test_excluded_triplets_have_no_mass(within):
    s = similarities(within)
    dense = tc.ot.triplet_sinkhorn(s, 0.1, 0.1, within=within).dense()
    excluded = triplet_cost(s, 0.1, within).isinf()
    assert (dense[excluded] == 0).all()
    assert (dense[~excluded] >= 0).all()


@WITHIN
@pytest.mark.parametrize("pair", [(0, 1), (0, 2), (1, 2)])
def test_pair_marginals_are_sums_of_the_plan(within, pair):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(s, 0.3, 0.3, n_iters=4, within=within)
    wanted = dense_triplet_plan(s, 0.3, 0.3, n_iters=4, within=within)
    (left_out,) = {0, 1, 2} - set(pair)
    assert relative_error(plan.pair_marginal(*pair), wanted.sum(left_out)) <= 1e-12


@WITHIN
def test_marginals_and_their_error_are_those_of_the_plan(within):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(s, 0.2, 0.2, n_iters=3, within=within)
    wanted = dense_triplet_plan(s, 0.2, 0.2, n_iters=3, within=within)
    for axis, marginal in enumerate(plan.marginals()):
        others = tuple({0, 1, 2} - {axis})
        assert relative_error(marginal, wanted.sum(others)) <= 1e-12
    error = marginal_error(wanted, uniform_marginals(wanted.shape))
    assert isinstance(plan.marginal_error, float)
    assert plan.marginal_error == pytest.approx(error, rel=1e-10)


@WITHIN
def test_potentials_rebuild_the_plan(within):
    s = similarities(within)
    anchors, positives, negatives = tc.ot.triplet_sinkhorn(
        s, 0.2, 0.3, n_iters=4, within=within
    ).potentials
    total = anchors[:, None, None] + positives[None, :, None] + negatives[None, None, :]
    rebuilt = ((total - triplet_cost(s, 0.2, within)) / 0.3).exp()
    wanted = dense_triplet_plan(s, 0.2, 0.3, n_iters=4, within=within)
    assert relative_error(rebuilt, wanted) <= 1e-12


@pytest.mark.usefixtures("sweeps")
@WITHIN
def test_samples_of_zero_mass_get_no_plan(within):
    s = similarities(within)
    first, second, third = three_masses(s.shape)
    second = torch.where(torch.arange(len(second)) == 2, 0.0, second)
    third = torch.where(torch.arange(len(third)) < 2, 0.0, third)
    imposed = first, second / second.sum(), third / third.sum()
    options = {"n_iters": 500, "within": within, "marginals": imposed}
    plan = tc.ot.triplet_sinkhorn(s, 0.5, 0.5, **options)
    dense = plan.dense()
    assert (dense[:, 2] == 0).all()
    assert (dense[:, :, :2] == 0).all()
    assert relative_error(dense, dense_triplet_plan(s, 0.5, 0.5, **options)) <= 1e-12
    for actual, wanted in zip(plan.marginals(), imposed, strict=True):
        assert relative_error(actual, wanted) <= 1e-10


@pytest.mark.usefixtures("sweeps")
@WITHIN
def test_tolerance_stops_at_the_marginal_error(within):
    s = similarities(within)
    plan = tc.ot.triplet_sinkhorn(s, 0.5, 0.5, n_iters=1000, tol=1e-7, within=within)
    assert plan.converged is True
    assert plan.marginal_error <= 1e-7
    assert 1 < plan.n_iters < 1000
    wanted = dense_triplet_plan(s, 0.5, 0.5, n_iters=plan.n_iters, within=within)
    assert relative_error(plan.dense(), wanted) <= 1e-12


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
@WITHIN
@pytest.mark.parametrize(
    ("mode", "sweeps", "dense_sweeps", "tolerance"),
    [
        ("unrolled", {"n_iters": 5}, 5, 1e-12),
        ("implicit", {"n_iters": 5000, "tol": 1e-13}, CONVERGED, 1e-8),
    ],
)
def test_potentials_are_differentiable(within, mode, sweeps, dense_sweeps, tolerance):
    s = similarities(within).requires_grad_()
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    n, m = s.shape
    weights = masses(n * m * m, 4).reshape(n, m, m)  # any function of the plan
    plan = tc.ot.triplet_sinkhorn(s, tau, 0.4, within=within, gradient=mode, **sweeps)
    first, second, third = plan.potentials
    total = first[:, None, None] + second[None, :, None] + third[None, None, :]
    rebuilt = ((total - triplet_cost(s, tau, within)) / 0.4).exp()
    ours = with_gradients((weights * rebuilt).sum(), [s, tau])
    dense = dense_triplet_plan(s, tau, 0.4, n_iters=dense_sweeps, within=within)
    wanted = with_gradients((weights * dense).sum(), [s, tau])
    assert relative_error(ours[0], wanted[0]) <= tolerance
    assert relative_error(ours[1], wanted[1]) <= tolerance


@WITHIN
@pytest.mark.parametrize("sharpness", [5.0, 100.0])
def test_float32_plan_is_accurate(within, sharpness):
    s = similarities(within).float()
    plan = tc.ot.triplet_sinkhorn(s, 0.2, 5 / sharpness, within=within).dense()
    wanted = dense_triplet_plan(s.double(), 0.2, 5 / sharpness, n_iters=10, within=within)
    assert plan.dtype == torch.float32
    assert relative_error(plan, wanted) <= 1e-5


@pytest.mark.parametrize(
    ("name", "changes"),
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
        ("shaping", {"shaping": "cubic"}),
        ("gradient", {"gradient": "exact"}),
        ("marginals", {"marginals": (torch.ones(3) / 3, torch.ones(3) / 3)}),
        ("marginals", {"marginals": (torch.ones(3) / 3, torch.ones(3) / 3, torch.ones(2) / 2)}),
    ],
)
def test_bad_input_is_named(name, changes):
    arguments = {"similarity": torch.zeros(3, 3), "temperature": 0.1, "epsilon": 0.1} | changes
    with pytest.raises((ValueError, TypeError), match=name):
        tc.ot.triplet_sinkhorn(**arguments)
