"""Cost shapings: log-sigmoid triplets against the dense tensor, and any ψ for pairwise plans."""

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import LOSSES
from reference import relative_error, with_gradients
from tricouple.ot.sweeps.log_sigmoid import log_sigmoid_terms

TRIPLETS, PAIRS = LOSSES["neg_mmiot"], LOSSES["push_pull"]


@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("epsilon", [1.0, 0.5, 0.1, 0.05])
def test_quadrature_of_the_kernel_keeps_its_tolerance(temperature, epsilon):
    reach = 1 / temperature
    grid = torch.linspace(-reach, reach, 41, dtype=torch.float64)
    x, y = grid[:, None], grid[None, :]
    wanted = nn.functional.logsigmoid(x - y) / epsilon
    for tolerance in (1e-4, 1e-6, 1e-10):
        terms = log_sigmoid_terms(1 / epsilon, -reach, reach, tolerance)
        logs = torch.stack([terms.attract(x, v) + terms.repel(y, v) for v in terms.nodes])
        error = torch.expm1(torch.logsumexp(logs, 0) - wanted).abs().max()
        assert error <= tolerance
        assert len(terms.nodes) < 400


@pytest.mark.parametrize("epsilon", [2.0, 0.1, 0.01])
def test_tightest_tolerance_of_the_kernel_needs_few_terms(epsilon):
    loosest, tightest = (log_sigmoid_terms(1 / epsilon, -10.0, 10.0, tol) for tol in (0.1, 1e-15))
    assert len(loosest.nodes) < len(tightest.nodes) < 500


@pytest.mark.parametrize("marginals", ["uniform", "target"])
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("epsilon", [1.0, 0.5, 0.1, 0.05])
def test_log_sigmoid_loss_equals_the_dense_loss(batch, temperature, epsilon, marginals):
    options = {"temperature": temperature, "epsilon": epsilon, "shaping": "log_sigmoid"}
    options |= {"marginals": marginals, "n_iters": 5}
    value, gradient = with_gradients(batch.loss(TRIPLETS.criterion(**options)), batch.leaves)
    wanted, wanted_gradient = with_gradients(TRIPLETS.dense(batch, **options), batch.leaves)
    assert relative_error(value, wanted) <= 1e-5
    assert relative_error(gradient, wanted_gradient) <= 1e-5


@pytest.mark.parametrize("gradient", ["unrolled", "implicit"])
def test_log_sigmoid_temperature_receives_its_gradient(settings, gradient):
    batch = settings["unbalanced"]
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    options = {"temperature": tau, "epsilon": 0.4, "shaping": "log_sigmoid", "n_iters": 400}
    ours = with_gradients(batch.loss(TRIPLETS.criterion(**options, gradient=gradient)), [tau])
    dense = with_gradients(TRIPLETS.dense(batch, **options), [tau])
    assert relative_error(ours[1], dense[1]) <= 1e-5


def test_log_sigmoid_envelope_is_exact_for_balanced_classes(settings):
    batch = settings["balanced"]
    options = {"temperature": 0.5, "epsilon": 0.4, "shaping": "log_sigmoid", "n_iters": 400}
    envelope, implicit = (
        with_gradients(batch.loss(TRIPLETS.criterion(**options, gradient=rule)), batch.leaves)[1]
        for rule in ("envelope", "implicit")
    )
    assert relative_error(envelope, implicit) <= 1e-5


def test_sharp_log_sigmoid_goes_through_logarithms_and_stays_right(settings):
    batch = settings["unbalanced"]
    options = {"temperature": 0.02, "epsilon": 0.02, "shaping": "log_sigmoid", "n_iters": 3}
    value, gradient = with_gradients(batch.loss(TRIPLETS.criterion(**options)), batch.leaves)
    wanted, wanted_gradient = with_gradients(TRIPLETS.dense(batch, **options), batch.leaves)
    assert relative_error(value, wanted) <= 1e-5
    assert relative_error(gradient, wanted_gradient) <= 1e-5


def test_larger_log_sigmoid_batch_in_float32():
    generator = torch.Generator().manual_seed(0)
    labels = torch.arange(90) % 7
    z = torch.randn(90, 16, generator=generator)
    criterion = tc.NegMMIOT(0.1, 0.5, shaping="log_sigmoid", kernel_tol=1e-5)
    single = with_gradients(criterion(z.requires_grad_(), labels), [z])
    double_z = z.detach().double().requires_grad_()
    double = with_gradients(criterion(double_z, labels), [double_z])
    assert relative_error(single[0].double(), double[0]) <= 1e-5
    assert relative_error(single[1].double(), double[1]) <= 1e-4


@pytest.mark.parametrize("shaping", ["log_sigmoid", "linear"])
def test_pairwise_shaping_equals_the_dense_loss(batch, shaping):
    options = PAIRS.soft | {"shaping": shaping}
    value, gradient = with_gradients(batch.loss(PAIRS.criterion(**options)), batch.leaves)
    wanted, wanted_gradient = with_gradients(PAIRS.dense(batch, **options), batch.leaves)
    assert relative_error(value, wanted) <= 1e-11
    assert relative_error(gradient, wanted_gradient) <= 1e-11


def test_linear_callable_is_the_linear_shaping(settings):
    batch = settings["unbalanced"]
    named = batch.loss(tc.PushPull(0.5, 0.4, 0.3))
    called = batch.loss(tc.PushPull(0.5, 0.4, 0.3, shaping=lambda t: -t))
    assert relative_error(called, named) <= 1e-12


@pytest.mark.parametrize("shaping", ["exponential", "hinge", "squared_hinge"])
def test_named_shapings_train_pairwise_plans(settings, shaping):
    batch = settings["unbalanced"]
    value, gradient = with_gradients(
        batch.loss(tc.PushPull(1.0, 0.5, 0.5, shaping=shaping)), batch.leaves
    )
    assert value > 0
    assert gradient.isfinite().all()
    assert gradient.norm() > 0


@pytest.mark.parametrize(
    ("shaping", "words"),
    [
        (lambda t: t, "strictly decreasing"),
        (lambda t: 0 * t, "strictly decreasing"),
        (lambda t: torch.log(t), "finite"),
        (lambda t: t.sum(), "one value for each margin"),
        ("cosine", "shaping must be one of"),
    ],
)
def test_bad_shapings_are_named(settings, shaping, words):
    with pytest.raises(ValueError, match=words):
        settings["balanced"].loss(tc.PushPull(shaping=shaping))


def test_tolerance_that_the_dtype_cannot_reach_is_named():
    labels = torch.arange(90) % 3
    with pytest.raises(ValueError, match=r"kernel_tol .* got 1e-09"):
        tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-9)(torch.randn(90, 4), labels)
