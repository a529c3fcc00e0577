"""Losses with any ψ: names, functions, hinges, quadrature; accuracy is in tests/dense."""

import math
from dataclasses import replace

import pytest
import torch
from torch import nn

import tricouple as tc
from batches import Batch, batch
from conftest import UNCONVERGED, draw
from reference import relative_error, with_gradients
from tricouple.shaping import Hinge, log_sigmoid

# --- Losses with any ψ ---------------------------------------------------------------------------


SOFT = {"temperature": 0.5, "epsilon": 0.4}
FUNCTIONS = {
    "hinge": lambda t: torch.clamp(1 - t, min=0.0) - t / 100,
    "squared_hinge": lambda t: torch.clamp(1 - t, min=0.0) ** 2 - t / 100,
    "exponential": lambda t: torch.exp(-t),
    "log_sigmoid": lambda t: torch.logaddexp(-t, torch.zeros_like(t)),
    "linear": lambda t: -t,
}


def result(batch, **options):
    return with_gradients(batch.loss(tc.NegMMIOT(**SOFT, **options)), batch.leaves)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_are_their_functions(name):
    assert set(tc.shaping.SHAPINGS) == set(FUNCTIONS)
    t = torch.linspace(-9, 9, 37, dtype=torch.float64)
    torch.testing.assert_close(tc.shaping.SHAPINGS[name](t), FUNCTIONS[name](t))


@UNCONVERGED
@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated", "triplets_across"])
@pytest.mark.parametrize("rule", ["unrolled", "implicit", "envelope"])
def test_blocks_of_any_size_give_the_same(settings, setting, rule):
    batch = settings[setting]
    references = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
    options = {"shaping": "squared_hinge", "gradient": rule, "n_iters": 30}
    value, gradient = result(batch, **options)
    for anchors in (1, 2, 3, 4):
        budget = anchors * 64 * references**2
        streamed, streamed_gradient = result(batch, **options, memory_budget=budget)
        assert relative_error(streamed, value) <= 1e-14
        assert relative_error(streamed_gradient, gradient) <= 1e-12


def test_smallest_budget_is_named_and_suffices(settings):
    batch = settings["unbalanced"]
    needed = 64 * len(batch.embeddings) ** 2
    triplet = tuple(torch.tensor([index]) for index in range(3))
    for setting in (batch, replace(batch, labels=None, triplets=triplet)):
        with pytest.raises(ValueError, match=rf"memory_budget={needed - 1} .* take {needed}$"):
            setting.loss(tc.NegMMIOT(shaping="squared_hinge", memory_budget=needed - 1))
        assert setting.loss(tc.NegMMIOT(shaping="squared_hinge", memory_budget=needed)).isfinite()


def test_infinite_slopes_where_no_triplet_is_do_no_harm(settings):
    # Every j = k has the margin 0, where this one is vertical.
    options = {"shaping": lambda t: -torch.sign(t) * t.abs().sqrt()}
    _, gradient = result(settings["unbalanced"], **options)
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


class Slope(nn.Module):
    """ψ(t) = −a·t with a learnable a."""

    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.tensor(2.0, dtype=torch.float64))

    def forward(self, t):
        return -self.a * t


def test_frozen_module_serves_as_shaping(settings):
    batch = settings["unbalanced"]
    twice = tc.NegMMIOT(1.0, 0.4, shaping=Slope().requires_grad_(False))
    assert relative_error(batch.loss(twice), batch.loss(tc.NegMMIOT(0.5, 0.4))) <= 1e-12


BAD = [
    (lambda t: t, "strictly decreasing"),
    (lambda t: 0 * t, "strictly decreasing"),
    (lambda t: torch.log(t), "finite"),
    (lambda t: -t.sum(), "one value for each margin"),
    ("cosine", "shaping must be one of"),
]
BAD_FOR_TRIPLETS = [
    (lambda t: -t.clamp(max=1.0) + t.relu() / 50, "strictly decreasing"),
    (lambda t: -t.detach(), "differentiable"),
    (Slope(), "parameters of its own"),
]


@pytest.mark.parametrize(
    ("module", "psi", "words"),
    [(tc.NegMMIOT, *case) for case in BAD + BAD_FOR_TRIPLETS]
    + [(tc.PushPull, *bad) for bad in BAD],
)
def test_bad_shapings_are_named(settings, module, psi, words):
    for setting in ("balanced", "triplets_within"):
        with pytest.raises(ValueError, match=words):
            settings[setting].loss(module(shaping=psi))
    with pytest.raises(ValueError, match="memory="):
        settings["balanced"].loss(tc.NegMMIOT(shaping="squared_hinge", memory="streamed"))


# --- The hinge -----------------------------------------------------------------------------------


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


def test_margin_is_that_of_a_hinge():
    assert tc.NegMMIOT(shaping="hinge", margin=2.0).shaping == Hinge(margin=2.0)


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


# --- Log-sigmoid by quadrature -------------------------------------------------------------------


TOLERANCE = 1e-3
# τ and ε for c = 1/(τε) from 0.1 to 10 000.
SHARPNESS = [(1.0, 10.0), (1.0, 1.0), (0.1, 1.0), (0.1, 0.1), (0.02, 0.05), (0.01, 0.01)]


@pytest.mark.parametrize(("tau", "epsilon"), SHARPNESS)
@pytest.mark.parametrize(("kind", "n"), [("two sets", 10), ("random", 3), ("outlier", 10)])
def test_default_loss_is_the_dense_one_within_a_thousandth(kind, n, tau, epsilon):
    there = batch(kind, n).to(torch.float64)
    options = {"temperature": tau, "epsilon": epsilon, "shaping": "log_sigmoid", "n_iters": 4}
    value, gradient = with_gradients(there.loss(tc.NegMMIOT(**options)), there.leaves)
    wanted, slope = with_gradients(there.dense(tc.ot.dense.neg_mmiot, **options), there.leaves)
    assert float((value - wanted).abs()) <= TOLERANCE
    # Forces of size c balance in part, and with three samples altogether.
    assert float((gradient - slope).norm()) <= TOLERANCE * max(float(slope.norm()), 1 / tau)


@pytest.mark.parametrize("tolerance", [1e-2, 1e-4, 1e-6, 1e-9])
@pytest.mark.parametrize(("tau", "epsilon"), [(1.0, 1.0), (0.1, 0.1), (0.05, 0.5)])
def test_kernel_keeps_its_tolerance(tau, epsilon, tolerance):
    """After one sweep over anchors alone: potentials are sums of the kernel."""
    similarity = torch.nn.functional.normalize(draw(9, 3))
    similarity = similarity @ similarity.T
    plans = [
        tc.ot.triplet_sinkhorn(
            similarity, tau, epsilon, n_iters=1, shaping=psi, kernel_tol=tolerance
        )
        for psi in ("log_sigmoid", log_sigmoid)
    ]
    for found, wanted in zip(*(plan.potentials for plan in plans), strict=True):
        assert float((found - wanted).abs().max()) <= 3 * tolerance * epsilon


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
@pytest.mark.parametrize(("tau", "epsilon"), [(0.1, 0.005), (0.2, 0.003)])
def test_small_epsilon_keeps_all_weights(tau, epsilon, memory):
    # e^{m(v_q − v)} and B = e^{−m} are both near the end of float64's range: if the first nodes
    # were lost, the loss would be 0.02 off and pass every other check.
    z, labels = draw(40, 3, dim=8).requires_grad_(), torch.arange(40) % 8
    options = {"temperature": tau, "epsilon": epsilon, "n_iters": 2}
    exact = tc.NegMMIOT(**options, shaping=log_sigmoid)
    wanted, slope = with_gradients(exact(z, labels), [z])
    criterion = tc.NegMMIOT(**options, shaping="log_sigmoid", memory=memory)
    value, gradient = with_gradients(criterion(z, labels), [z])
    assert float((value - wanted).detach().abs()) <= TOLERANCE
    assert relative_error(gradient, slope) <= TOLERANCE


@pytest.mark.parametrize("epsilon", [10.0, 1000.0])
def test_large_epsilon_leaves_the_mean_cost(epsilon):
    z, labels = draw(12, 5).requires_grad_(), torch.arange(12) % 4
    options = {"temperature": 1 / 30, "epsilon": epsilon, "n_iters": 1, "shaping": "log_sigmoid"}
    found = with_gradients(tc.NegMMIOT(**options, kernel_tol=1e-9)(z, labels), [z])
    wanted = with_gradients(tc.ot.dense.neg_mmiot(z, labels, **options), [z])
    assert relative_error(found[0], wanted[0]) <= 1e-9
    assert relative_error(found[1], wanted[1]) <= 1e-5
