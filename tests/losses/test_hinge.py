"""The hinge: flat parts, kinks, margins; accuracy is in tests/dense."""

import math

import pytest
import torch

import tricouple as tc
from conftest import UNCONVERGED, Batch, classes, draw
from reference import relative_error, with_gradients
from tricouple.shaping import Hinge

HINGES = [Hinge(margin=0.2), Hinge(margin=1.0, slope=0.01), Hinge(margin=0.0)]


def dense_hinge(hinge):
    return lambda t: torch.clamp(hinge.margin - t, min=0.0) - hinge.slope * t


@pytest.mark.parametrize("sharpness", [0.1, 10.0, 100.0, 10_000.0])
@pytest.mark.parametrize("n", [3, 30])
def test_equal_scores_at_the_kink_are_exact(n, sharpness):
    rows = torch.cat([draw(n // 2, 1), draw(n - n // 2, 2)])
    labels = torch.arange(n) % max(2, n // 5)
    if n > 3:
        rows[: n // 3] = rows[n // 3 : 2 * (n // 3)]
        labels[0] = -1
    batch = Batch(rows, labels).to(torch.float64)
    epsilon = 10 / sharpness if sharpness > 10 else 1.0
    options = {"temperature": 1 / (sharpness * epsilon), "epsilon": epsilon, "n_iters": 2}
    for hinge in HINGES:
        found = with_gradients(batch.loss(tc.NegMMIOT(**options, shaping=hinge)), batch.leaves)
        dense = batch.dense(tc.ot.dense.neg_mmiot, **options, shaping=dense_hinge(hinge))
        wanted = with_gradients(dense, batch.leaves)
        assert relative_error(found[0], wanted[0]) <= 1e-10
        # Forces of size c, which may balance: all triplets of three samples can be satisfied.
        size = max(float(wanted[1].norm()), 1e-2 * sharpness)
        assert float((found[1] - wanted[1]).norm()) <= 1e-10 * size


@UNCONVERGED
@pytest.mark.parametrize("rule", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("setting", ["singleton", "across_repeated", "triplets_within"])
def test_streamed_hinge_is_the_stored_one(settings, setting, rule):
    batch = settings[setting]
    options = {"temperature": 0.1, "epsilon": 0.5, "gradient": rule, "shaping": HINGES[0]}
    stored, streamed = (
        with_gradients(batch.loss(tc.NegMMIOT(**options, **how)), batch.leaves)
        for how in ({}, {"memory": "streamed", "memory_budget": 1000})
    )
    assert relative_error(streamed[0], stored[0]) <= 1e-13
    assert relative_error(streamed[1], stored[1]) <= 1e-12


def test_margin_is_that_of_a_hinge():
    assert tc.NegMMIOT(shaping="hinge", margin=2.0).shaping == Hinge(margin=2.0)
    with pytest.raises(ValueError, match=r'margin=2.0 is that of shaping="hinge", got'):
        tc.NegMMIOT(margin=2.0)
    with pytest.raises(ValueError, match="margin must be a number that is 0 or more, got -1"):
        tc.NegMMIOT(shaping="hinge", margin=-1.0)


def test_satisfied_triplets_exert_no_force():
    """A reference beyond the margin of all positives is a negative that nobody moves."""
    centre = torch.eye(6, dtype=torch.float64)[0]
    anchors, near = (centre + 0.1 * draw(8, seed, dim=6) for seed in (3, 4))
    far = 0.1 * draw(1, 5, dim=6) - centre
    references = torch.cat([near, far]).requires_grad_()

    def forces(shaping):
        criterion = tc.NegMMIOT(0.1, 0.1, shaping=shaping, marginals="target")
        ids = torch.arange(9)
        loss = criterion(anchors, ids[:8], ref_emb=references, ref_labels=ids)
        return torch.autograd.grad(loss, references)[0].norm(dim=1)

    for shaping in ("linear", Hinge(margin=2.0, slope=0.01)):
        assert forces(shaping)[-1] > 1e-4
    assert forces(Hinge(margin=2.0))[-1] < 1e-30
    assert (forces(Hinge(margin=2.0))[:-1] > 1e-4).all()  # those within the margin do move


@pytest.mark.parametrize("psi", [Hinge(margin=0.2), Hinge(margin=0.0), "hinge"])
def test_batch_on_which_the_hinge_is_constant_has_no_gradient(psi):
    rows = torch.ones(6, 3, dtype=torch.float64, requires_grad=True)
    loss = tc.NegMMIOT(0.1, 0.1, shaping=psi)(rows, torch.arange(6) // 2)
    loss.backward()
    assert loss.isfinite()
    assert rows.grad.abs().max() <= 1e-12


@pytest.mark.parametrize("marginals", ["uniform", "classes"])
def test_flat_functions_are_allowed_and_are_hinges(settings, marginals):
    batch = settings["unbalanced"]
    hinge, function = (
        with_gradients(
            batch.loss(tc.NegMMIOT(0.5, 0.4, shaping=psi, marginals=marginals)), batch.leaves
        )
        for psi in (Hinge(margin=0.2), dense_hinge(Hinge(margin=0.2)))
    )
    assert relative_error(function[0], hinge[0]) <= 1e-12
    assert relative_error(function[1], hinge[1]) <= 1e-11
    pairs = tc.PushPull(0.5, 0.4, shaping=Hinge(margin=0.2))
    assert batch.loss(pairs).isfinite()


@pytest.mark.parametrize("margin", [-0.1, math.nan, math.inf, "0.2", None])
def test_bad_margins_are_named(margin):
    with pytest.raises(ValueError, match="margin must be a number that is 0 or more, got"):
        Hinge(margin=margin)
    with pytest.raises(ValueError, match="slope"):
        Hinge(slope=-1.0)


def test_name_is_the_hinge_of_before(settings):
    batch = settings["unbalanced"]
    named, given = (
        batch.loss(tc.NegMMIOT(shaping=psi)) for psi in ("hinge", Hinge(margin=1.0, slope=0.01))
    )
    assert torch.equal(named, given)


def test_unbalanced_classes_of_a_hundred_are_exact():
    z, labels = draw(100, 8, dim=8).requires_grad_(), classes(45, 30, 20, 4, 1)
    options = {"temperature": 0.2, "epsilon": 0.1, "n_iters": 2}
    fast = tc.NegMMIOT(**options, shaping=Hinge(margin=0.5))
    general = tc.NegMMIOT(**options, shaping=dense_hinge(Hinge(margin=0.5)))
    value, gradient = with_gradients(fast(z, labels), [z])
    wanted, wanted_gradient = with_gradients(general(z, labels), [z])
    assert relative_error(value, wanted) <= 1e-12
    assert relative_error(gradient, wanted_gradient) <= 1e-11
