"""Losses with any ψ are the dense algorithm: by quadrature, anchor by anchor, and for pairs."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import LOSSES, UNCONVERGED, draw
from reference import CONVERGED, relative_error, with_gradients
from tricouple import shaping
from tricouple.ot.sweeps.log_sigmoid import log_sigmoid_terms
from tricouple.shaping import Margins, anchor_bytes

LOSS, PAIRS = LOSSES["neg_mmiot"], LOSSES["push_pull"]
SHAPINGS = {
    "hinge": lambda t: torch.clamp(1 - t, min=0.0) - t / 100,
    "squared_hinge": lambda t: torch.clamp(1 - t, min=0.0) ** 2 - t / 100,
    "exponential": lambda t: torch.exp(-t),
    "log_sigmoid": lambda t: torch.logaddexp(-t, torch.zeros_like(t)),
    "linear": lambda t: -t,
    "arctangent": lambda t: -torch.atan(t) - 0.2 * t,
}
NAMED = ["hinge", "squared_hinge", "exponential"]
EVERY_SHAPING = pytest.mark.parametrize("psi", SHAPINGS.values(), ids=SHAPINGS)
MARGINALS = pytest.mark.parametrize("marginals", ["uniform", "target"])


def budget_of(batch, anchors: int) -> int:
    """A budget in bytes for so many anchors at a time, too small to keep all costs."""
    references = batch.embeddings if batch.ref_emb is None else batch.ref_emb
    return anchors * anchor_bytes(torch.empty(1, len(references), dtype=torch.float64))


def error(batch, options, *, leaves=None, oracle=None, loss=LOSS):
    """The larger relative error, of value or gradient, against the dense oracle."""
    leaves = batch.leaves if leaves is None else leaves
    value, gradient = with_gradients(batch.loss(loss.criterion(**options)), leaves)
    wanted = {key: options[key] for key in options.keys() - {"memory_budget", "tol", "kernel_tol"}}
    dense = with_gradients(loss.dense(batch, **wanted | (oracle or {})), leaves)
    return max(relative_error(value, dense[0]), relative_error(gradient, dense[1]))


@EVERY_SHAPING
@MARGINALS
def test_loss_equals_dense_loss(batch, psi, marginals):
    options = LOSS.soft | {"shaping": psi, "marginals": marginals, "n_iters": 5}
    assert error(batch, options | {"memory_budget": budget_of(batch, 2)}) <= 1e-12


@pytest.mark.parametrize("name", NAMED)
def test_names_are_their_functions(batch, name):
    options = LOSS.soft | {"shaping": name, "n_iters": 3}
    assert error(batch, options, oracle={"shaping": SHAPINGS[name]}) <= 1e-12


@pytest.mark.parametrize("psi", ["hinge", "exponential", "log_sigmoid"])
def test_float32_loss_is_accurate(batch, psi):
    options = {"temperature": 0.5, "epsilon": 0.1, "shaping": SHAPINGS[psi]}
    assert error(batch.to(torch.float32), options) <= 1e-5


@pytest.mark.parametrize("psi", ["linear", "log_sigmoid", "hinge", "squared_hinge"])
def test_sharp_plans_are_accurate(batch, psi):
    options = {"temperature": 0.05, "epsilon": 0.05, "shaping": SHAPINGS[psi]}
    assert error(batch, options) <= 1e-10


@EVERY_SHAPING
@MARGINALS
@pytest.mark.parametrize("setting", ["singleton", "across_repeated", "triplets_within"])
def test_implicit_gradient_is_exact_at_convergence(settings, setting, psi, marginals):
    batch = settings[setting]
    tau = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    options = {"temperature": tau, "epsilon": 0.6, "shaping": psi, "marginals": marginals}
    options |= {"n_iters": 5000, "tol": 1e-13}
    value, gradient = with_gradients(
        batch.loss(LOSS.criterion(**options, gradient="implicit")), [*batch.leaves, tau]
    )
    del options["tol"]
    dense = LOSS.dense(batch, **options | {"n_iters": CONVERGED})
    wanted, wanted_gradient = with_gradients(dense, [*batch.leaves, tau])
    assert relative_error(value, wanted) <= 1e-11
    assert relative_error(gradient, wanted_gradient) <= 1e-8
    assert relative_error(gradient[-1], wanted_gradient[-1]) <= 1e-8


@pytest.mark.parametrize("psi", ["hinge", "exponential", "arctangent"])
@pytest.mark.parametrize("rule", ["unrolled", "envelope"])
def test_temperature_receives_its_exact_gradient(batch, psi, rule):
    tau = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    options = {"temperature": tau, "epsilon": 0.4, "n_iters": 4, "gradient": rule}
    options["shaping"] = SHAPINGS[psi]
    for leaves in ([tau], [*batch.leaves, tau]):
        assert error(batch, options, leaves=leaves) <= 1e-12


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_is_computed_in_float32(settings, dtype):
    half = settings["unbalanced"].to(dtype)
    single = half.to(torch.float32)
    criterion = LOSS.criterion(**LOSS.soft, shaping="hinge")
    value, gradient = with_gradients(half.loss(criterion), half.leaves)
    wanted, wanted_gradient = with_gradients(single.loss(criterion), single.leaves)
    assert torch.equal(value, wanted)
    assert gradient.dtype == dtype
    assert relative_error(gradient, wanted_gradient) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("sharpness", [LOSS.sharp, LOSS.soft], ids=["sharp", "soft"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_linear_function_is_the_linear_shaping(batch, sharpness, dtype, tolerance):
    batch = batch.to(dtype)
    named, called = (
        with_gradients(batch.loss(LOSS.criterion(**sharpness, shaping=psi)), batch.leaves)
        for psi in ("linear", shaping.linear)
    )
    assert relative_error(called[0], named[0]) <= tolerance
    assert relative_error(called[1], named[1]) <= tolerance


@pytest.mark.parametrize("name", ["linear", "log_sigmoid", "hinge"])
def test_fast_kernels_are_right_where_the_dense_tensor_is_large(name):
    z, labels = draw(300, 40, dim=16).requires_grad_(), torch.arange(300) % 23
    options = {"temperature": 0.2, "epsilon": 0.2, "n_iters": 1}
    seen = []

    def psi(margins):
        seen.append(margins.numel())
        return shaping.SHAPINGS[name](margins)

    fast = tc.NegMMIOT(**options, shaping=name, kernel_tol=1e-6)
    exact = tc.NegMMIOT(**options, shaping=psi, memory_budget=2**27)  # all costs: 2**27.7 bytes
    value, gradient = with_gradients(fast(z, labels), [z])
    wanted, wanted_gradient = with_gradients(exact(z, labels), [z])
    assert max(seen) < 300**3 / 50
    tolerance = 1e-6 if name == "log_sigmoid" else 1e-12  # by quadrature
    assert relative_error(value, wanted) <= tolerance
    assert relative_error(gradient, wanted_gradient) <= tolerance


@UNCONVERGED
@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated", "triplets_across"])
@pytest.mark.parametrize("rule", ["unrolled", "implicit", "envelope"])
def test_blocks_of_any_size_give_the_same(settings, setting, rule):
    batch = settings[setting]
    options = LOSS.soft | {"shaping": "squared_hinge", "gradient": rule, "n_iters": 30}

    def result(**memory):
        return with_gradients(batch.loss(LOSS.criterion(**options, **memory)), batch.leaves)

    value, gradient = result()
    for anchors in (1, 2, 3, 4):
        streamed, streamed_gradient = result(memory_budget=budget_of(batch, anchors))
        assert relative_error(streamed, value) <= 1e-14
        assert relative_error(streamed_gradient, gradient) <= 1e-12


def test_budget_is_turned_into_blocks():
    scores = torch.zeros(10, 7, dtype=torch.float64)
    one = anchor_bytes(scores)
    margins = Margins(scores, torch.neg, memory_budget=4.5 * one)
    assert margins.blocks == [slice(0, 4), slice(4, 8), slice(8, 10)]
    assert Margins(scores, torch.neg, memory_budget=100 * one).blocks == [slice(0, 10)]


def test_smallest_budget_is_named_and_suffices(settings):
    batch = settings["unbalanced"]
    needed = budget_of(batch, 1)
    triplet = tuple(torch.tensor([index]) for index in range(3))
    for setting in (batch, replace(batch, labels=None, triplets=triplet)):
        with pytest.raises(ValueError, match=rf"memory_budget={needed - 1} .* take {needed}$"):
            setting.loss(tc.NegMMIOT(shaping="squared_hinge", memory_budget=needed - 1))
        assert setting.loss(tc.NegMMIOT(shaping="squared_hinge", memory_budget=needed)).isfinite()


@pytest.mark.parametrize("scene", ["identical", "antipodal", "duplicates"])
@pytest.mark.parametrize("psi", ["linear", "hinge", "log_sigmoid"])
def test_collapsed_batches_stay_finite_and_right(scene, psi):
    direction, sign = draw(1, 50), torch.tensor([1.0, -1.0]).repeat(4)[:, None]
    rows = {
        "identical": direction.repeat(8, 1),
        "antipodal": direction * sign,
        "duplicates": draw(2, 51).repeat(4, 1),
    }[scene].requires_grad_()
    labels = torch.tensor([0, 0, 1, 1]).repeat(2)
    options = {"temperature": 0.05, "epsilon": 0.01, "shaping": SHAPINGS[psi]}
    value, gradient = with_gradients(tc.NegMMIOT(**options)(rows, labels), [rows])
    wanted, wanted_gradient = with_gradients(LOSS.oracle(rows, labels, **options), [rows])
    assert relative_error(value, wanted) <= 1e-10
    # Forces of size 1/(τε) balance, and what is left of them is small.
    assert (gradient - wanted_gradient).norm() <= 1e-10 * 2000


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_value_needs_no_gradient(settings, guard):
    batch = settings["unbalanced"]
    criterion = LOSS.criterion(**LOSS.soft, shaping="hinge")
    with guard():
        value = batch.loss(criterion)
    assert not value.requires_grad
    assert torch.equal(value.clone(), batch.loss(criterion).detach())


def test_passes_gradcheck(settings):
    batch = settings["across_repeated"]
    criterion = LOSS.criterion(**LOSS.soft, shaping=SHAPINGS["arctangent"], n_iters=3)

    def value(embeddings, ref_emb):
        return replace(batch, embeddings=embeddings, ref_emb=ref_emb).loss(criterion)

    assert torch.autograd.gradcheck(value, batch.leaves)


def test_infinite_slopes_where_no_triplet_is_do_no_harm(settings):
    # Every j = k has the margin 0, where this one is vertical.
    batch = settings["unbalanced"]
    options = LOSS.soft | {"shaping": lambda t: -torch.sign(t) * t.abs().sqrt()}
    _, gradient = with_gradients(batch.loss(LOSS.criterion(**options)), batch.leaves)
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


@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull])
@pytest.mark.parametrize(
    ("psi", "words"),
    [
        (lambda t: t, "strictly decreasing"),
        (lambda t: 0 * t, "strictly decreasing"),
        (lambda t: torch.log(t), "finite"),
        (lambda t: -t.sum(), "one value for each margin"),
        ("cosine", "shaping must be one of"),
    ],
)
def test_bad_shapings_are_named(settings, module, psi, words):
    for setting in ("balanced", "triplets_within"):
        with pytest.raises(ValueError, match=words):
            settings[setting].loss(module(shaping=psi))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"shaping": lambda t: -t.clamp(max=1.0) + t.relu() / 50}, "strictly decreasing"),
        ({"shaping": lambda t: -t.detach()}, "differentiable"),
        ({"shaping": Slope()}, "parameters of its own"),
        ({"shaping": "squared_hinge", "memory": "streamed"}, "memory="),
    ],
)
def test_shapings_that_triplets_cannot_use_are_named(settings, options, words):
    for setting in ("balanced", "triplets_within"):
        with pytest.raises(ValueError, match=words):
            settings[setting].loss(tc.NegMMIOT(**options))


def test_shaping_must_be_callable():
    with pytest.raises(TypeError, match="shaping must be a name or a callable"):
        tc.NegMMIOT(shaping=3)


# --- log-sigmoid, by quadrature ------------------------------------------------------------------


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
        assert torch.expm1(torch.logsumexp(logs, 0) - wanted).abs().max() <= tolerance
        assert len(terms.nodes) < 400


@pytest.mark.parametrize("epsilon", [2.0, 0.1, 0.01])
def test_tightest_tolerance_of_the_kernel_needs_few_terms(epsilon):
    loosest, tightest = (log_sigmoid_terms(1 / epsilon, -10.0, 10.0, tol) for tol in (0.1, 1e-15))
    assert len(loosest.nodes) < len(tightest.nodes) < 500


QUICK = {"shaping": "log_sigmoid", "kernel_tol": 1e-6}


@MARGINALS
@pytest.mark.parametrize("temperature", [1.0, 0.1, 0.05])
@pytest.mark.parametrize("epsilon", [1.0, 0.5, 0.1, 0.05])
def test_log_sigmoid_loss_equals_the_dense_loss(batch, temperature, epsilon, marginals):
    options = QUICK | {"temperature": temperature, "epsilon": epsilon, "n_iters": 5}
    assert error(batch, options | {"marginals": marginals}) <= 1e-5


def test_sharp_log_sigmoid_goes_through_logarithms_and_stays_right(settings):
    options = QUICK | {"temperature": 0.02, "epsilon": 0.02, "n_iters": 3}
    assert error(settings["unbalanced"], options) <= 1e-5


@pytest.mark.parametrize("rule", ["unrolled", "implicit"])
def test_log_sigmoid_temperature_receives_its_gradient(settings, rule):
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    options = QUICK | {"temperature": tau, "epsilon": 0.4, "n_iters": 400}
    unrolled = {"gradient": "unrolled"}
    batch = settings["unbalanced"]
    assert error(batch, options | {"gradient": rule}, leaves=[tau], oracle=unrolled) <= 1e-5


def test_log_sigmoid_envelope_is_exact_for_balanced_classes(settings):
    batch = settings["balanced"]
    options = QUICK | {"temperature": 0.5, "epsilon": 0.4, "n_iters": 400}
    envelope, implicit = (
        with_gradients(batch.loss(LOSS.criterion(**options, gradient=rule)), batch.leaves)[1]
        for rule in ("envelope", "implicit")
    )
    assert relative_error(envelope, implicit) <= 1e-5


def test_larger_log_sigmoid_batch_in_float32():
    labels = torch.arange(90) % 7
    z = torch.randn(90, 16, generator=torch.Generator().manual_seed(0))
    criterion = tc.NegMMIOT(0.1, 0.5, shaping="log_sigmoid", kernel_tol=1e-5)
    single = with_gradients(criterion(z.requires_grad_(), labels), [z])
    double_z = z.detach().double().requires_grad_()
    double = with_gradients(criterion(double_z, labels), [double_z])
    assert relative_error(single[0], double[0]) <= 1e-5
    assert relative_error(single[1], double[1]) <= 1e-4


def test_tolerance_that_the_dtype_cannot_reach_is_named():
    labels = torch.arange(90) % 3
    with pytest.raises(ValueError, match=r"kernel_tol .* got 1e-09"):
        tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-9)(torch.randn(90, 4), labels)


# --- pairwise plans ------------------------------------------------------------------------------


@pytest.mark.parametrize("psi", ["log_sigmoid", "linear"])
def test_pairwise_shaping_equals_the_dense_loss(batch, psi):
    assert error(batch, PAIRS.soft | {"shaping": psi}, loss=PAIRS) <= 1e-11


def test_linear_callable_is_the_linear_shaping_of_pairs(settings):
    batch = settings["unbalanced"]
    named = batch.loss(tc.PushPull(0.5, 0.4, 0.3))
    called = batch.loss(tc.PushPull(0.5, 0.4, 0.3, shaping=lambda t: -t))
    assert relative_error(called, named) <= 1e-12


@pytest.mark.parametrize("name", NAMED)
def test_named_shapings_of_pairs_are_their_functions(settings, name):
    options = {"temperature": 1.0, "epsilon_pos": 0.5, "epsilon_neg": 0.5, "shaping": name}
    oracle = {"shaping": SHAPINGS[name]}
    assert error(settings["unbalanced"], options, oracle=oracle, loss=PAIRS) <= 1e-11
