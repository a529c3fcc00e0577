"""The hinge, by sorting, is the dense algorithm: any sharpness, dtype, device of sums and batch."""

import math

import pytest
import torch

import tricouple as tc
from conftest import LOSSES, UNCONVERGED, Batch, classes, draw
from reference import relative_error, with_gradients
from tricouple.ot import engine
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.hinge import HingeTriplet
from tricouple.shaping import Hinge

LOSS = LOSSES["neg_mmiot"]
HINGES = [Hinge(margin=0.2), Hinge(margin=1.0, slope=0.01), Hinge(margin=0.0)]
SHARPNESS = [0.1, 10.0, 100.0, 10_000.0]


def dense_hinge(hinge):
    return lambda t: torch.clamp(hinge.margin - t, min=0.0) - hinge.slope * t


def at(sharpness, hinge, **options):
    epsilon = 10 / sharpness if sharpness > 10 else 1.0
    return {
        "temperature": 1 / (sharpness * epsilon),
        "epsilon": epsilon,
        "shaping": hinge,
    } | options


def errors(batch, options, **how):
    """Relative errors of value and gradient against the dense oracle."""
    ours = with_gradients(batch.loss(LOSS.criterion(**options, **how)), batch.leaves)
    wanted = options | {"shaping": dense_hinge(options["shaping"])}
    dense = with_gradients(LOSS.dense(batch, **wanted), batch.leaves)
    # Forces of size c, which may balance: all triplets of three samples can be satisfied.
    size = dense[1].norm().clamp_min(1e-2 / (options["temperature"] * options["epsilon"]))
    gradient = (ours[1].double() - dense[1].double()).norm() / size
    return relative_error(ours[0], dense[0]), float(gradient)


@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_hinge_equals_the_dense_loss(batch, sharpness):
    for hinge, marginals in zip(HINGES, ("uniform", "target", "uniform"), strict=True):
        options = at(sharpness, hinge, marginals=marginals, n_iters=4)
        assert max(errors(batch, options)) <= 1e-10


@pytest.mark.usefixtures("float32")
@pytest.mark.parametrize("sharpness", SHARPNESS)
def test_hinge_in_float32_equals_the_dense_loss(batch, sharpness):
    for hinge in HINGES:
        options = at(sharpness, hinge, n_iters=4)
        assert max(errors(batch.to(torch.float32), options)) <= 1e-5


@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize("sharpness", SHARPNESS)
@pytest.mark.parametrize("n", [3, 60])
def test_duplicates_and_singletons_are_exact(n, sharpness):
    rows = torch.cat([draw(n // 2, 1), draw(n - n // 2, 2)])
    labels = torch.arange(n) % max(2, n // 5)
    if n > 3:
        rows[: n // 3] = rows[n // 3 : 2 * (n // 3)]  # equal scores: the kink of a margin of 0
        labels[0] = -1
    batch = Batch(rows, labels).to(torch.float64)
    for hinge in HINGES:
        assert max(errors(batch, at(sharpness, hinge, n_iters=2))) <= 1e-10


@UNCONVERGED
@pytest.mark.usefixtures("sweeps")
@pytest.mark.parametrize("rule", ["unrolled", "implicit", "envelope"])
@pytest.mark.parametrize("setting", ["singleton", "across_repeated", "triplets_within"])
def test_streamed_hinge_is_the_stored_one(settings, setting, rule):
    batch = settings[setting]
    options = at(20.0, HINGES[0], gradient=rule)
    stored, streamed = (
        with_gradients(batch.loss(LOSS.criterion(**options, **how)), batch.leaves)
        for how in ({}, {"memory": "streamed", "memory_budget": 1000})
    )
    assert relative_error(streamed[0], stored[0]) <= 1e-13
    assert relative_error(streamed[1], stored[1]) <= 1e-12


@pytest.mark.parametrize("rule", ["implicit", "envelope"])
@pytest.mark.parametrize("memory", ["matrices", "streamed"])
def test_gradients_at_convergence_are_those_of_the_dense_loss(settings, rule, memory):
    batch = settings["balanced" if rule == "envelope" else "unbalanced"]
    options = at(2.0, HINGES[1], n_iters=300)
    assert max(errors(batch, options, gradient=rule, memory=memory)) <= 1e-8


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
def test_temperature_receives_its_gradient(settings, memory):
    batch = settings["across_repeated"]
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    options = {"temperature": tau, "epsilon": 0.2, "n_iters": 3}
    ours = batch.loss(tc.NegMMIOT(**options, shaping=HINGES[0], memory=memory))
    wanted = LOSS.dense(batch, **options, shaping=dense_hinge(HINGES[0]))
    gradients = (torch.autograd.grad(value, tau)[0] for value in (ours, wanted))
    assert relative_error(*gradients) <= 1e-11


def test_hinge_passes_gradcheck(settings):
    batch = settings["unbalanced"]
    criterion = tc.NegMMIOT(0.5, 0.4, n_iters=3, shaping=Hinge(margin=0.3))
    assert torch.autograd.gradcheck(
        lambda z: criterion(z, batch.labels), [batch.embeddings.detach().requires_grad_()]
    )


def hard_batches(n):
    """One sample opposite to all others; nearly one direction; duplicates; two clusters."""
    rows, one = draw(n, 5, dim=16).float(), torch.eye(16)[0]
    outlier = one + 0.3 * rows / rows.norm(dim=1, keepdim=True)
    outlier[0] = -one
    clusters = one * torch.where(torch.arange(n) % 2 == 0, 1.0, -1.0)[:, None] + 0.02 * rows
    return {
        "random": rows,
        "outlier": outlier,
        "collapsed": one + 0.03 * rows,
        "duplicated": rows[: n // 4].repeat(4, 1),
        "clusters": clusters,
    }


@pytest.mark.parametrize("sharpness", [10.0, 100.0])
@pytest.mark.parametrize("scene", hard_batches(4))
def test_no_batch_is_slow_and_all_are_right(monkeypatch, scene, sharpness):
    batch = Batch(hard_batches(100)[scene], torch.arange(100) % 25).to(torch.float32)
    careful_ones = []
    solve = HingeTriplet.solve
    monkeypatch.setattr(
        HingeTriplet, "solve", lambda *given: careful_ones.append(1) or solve(*given)
    )

    def result():
        criterion = tc.NegMMIOT(**at(sharpness, Hinge(margin=0.2), n_iters=5))
        return with_gradients(batch.loss(criterion), batch.leaves)

    fast = result()
    assert not careful_ones or native.compiled is None  # no need for logarithms
    monkeypatch.setattr(native, "compiled", None)
    careful = result()
    assert relative_error(fast[0], careful[0]) <= 1e-6
    assert relative_error(fast[1], careful[1]) <= 1e-5


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


def test_more_references_than_indices_count_go_through_pytorch(monkeypatch, settings):
    batch = settings["across_repeated"]
    options = at(10.0, HINGES[0])
    wanted = batch.loss(tc.NegMMIOT(**options))
    monkeypatch.setattr(engine, "COLUMNS", 8)
    assert relative_error(batch.loss(tc.NegMMIOT(**options)), wanted) <= 1e-12


@pytest.mark.parametrize("sharpness", [30.0, 10_000.0])
def test_plan_of_a_hinge_knows_its_marginals(sharpness):
    similarity = torch.nn.functional.normalize(draw(12, 7), dim=1)
    similarity = similarity @ similarity.T
    plan = tc.ot.triplet_sinkhorn(similarity, 0.1, 10 / sharpness, shaping=Hinge(margin=0.5))
    dense = plan.dense()
    for axis, marginal in enumerate(plan.marginals()):
        assert relative_error(marginal, dense.sum(tuple({0, 1, 2} - {axis}))) <= 1e-10
    assert relative_error(plan.pair_marginal(1, 2), dense.sum(0)) <= 1e-10


def test_unbalanced_classes_of_two_hundred_are_exact():
    z, labels = draw(200, 8, dim=8).requires_grad_(), classes(90, 60, 40, 9, 1)
    options = {"temperature": 0.2, "epsilon": 0.1, "n_iters": 2}
    fast = tc.NegMMIOT(**options, shaping=Hinge(margin=0.5))
    general = tc.NegMMIOT(**options, shaping=dense_hinge(Hinge(margin=0.5)))
    value, gradient = with_gradients(fast(z, labels), [z])
    wanted, wanted_gradient = with_gradients(general(z, labels), [z])
    assert relative_error(value, wanted) <= 1e-12
    assert relative_error(gradient, wanted_gradient) <= 1e-11
