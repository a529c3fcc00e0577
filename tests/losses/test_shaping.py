"""Losses with any ψ: names, functions, budgets and errors; accuracy is in tests/dense."""

from dataclasses import replace

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import LOSSES, UNCONVERGED, draw
from reference import relative_error, with_gradients

LOSS, PAIRS = LOSSES["neg_mmiot"], LOSSES["push_pull"]
FUNCTIONS = {
    "hinge": lambda t: torch.clamp(1 - t, min=0.0) - t / 100,
    "squared_hinge": lambda t: torch.clamp(1 - t, min=0.0) ** 2 - t / 100,
    "exponential": lambda t: torch.exp(-t),
    "log_sigmoid": lambda t: torch.logaddexp(-t, torch.zeros_like(t)),
    "linear": lambda t: -t,
}


def arctangent(t):
    """A ψ that has no name."""
    return -torch.atan(t) - 0.2 * t


def result(loss, batch, **options):
    return with_gradients(batch.loss(loss.criterion(**options)), batch.leaves)


@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated", "triplets_within"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_names_are_their_functions(settings, setting, name):
    batch = settings[setting]
    assert set(tc.shaping.SHAPINGS) == set(FUNCTIONS)
    own = {"kernel_tol": 1e-9} if name == "log_sigmoid" else {}  # a quadrature
    for loss, more in ((LOSS, own), (PAIRS, {})):
        named = result(loss, batch, **loss.soft, **more, n_iters=3, shaping=name)
        called = result(loss, batch, **loss.soft, n_iters=3, shaping=FUNCTIONS[name])
        for one, other in zip(named, called, strict=True):
            assert relative_error(one, other) <= (1e-7 if more else 1e-11)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_input_is_computed_in_float32(settings, dtype):
    half = settings["unbalanced"].to(dtype)
    single = half.to(torch.float32)
    value, gradient = result(LOSS, half, **LOSS.soft, shaping="hinge")
    wanted, wanted_gradient = result(LOSS, single, **LOSS.soft, shaping="hinge")
    assert torch.equal(value, wanted)
    assert gradient.dtype == dtype
    assert relative_error(gradient, wanted_gradient) <= torch.finfo(dtype).eps


@pytest.mark.parametrize("name", ["linear", "log_sigmoid", "hinge"])
def test_fast_kernels_are_right_where_the_dense_tensor_is_large(name):
    n = 150
    z, labels = draw(n, 40, dim=16).requires_grad_(), torch.arange(n) % 23
    options = {"temperature": 0.2, "epsilon": 0.2, "n_iters": 1}
    seen = []

    def psi(margins):
        seen.append(margins.numel())
        return tc.shaping.SHAPINGS[name](margins)

    fast = tc.NegMMIOT(**options, shaping=name, kernel_tol=1e-6)
    exact = tc.NegMMIOT(**options, shaping=psi, memory_budget=8 * n**3 / 2)  # half of the costs
    value, gradient = with_gradients(fast(z, labels), [z])
    wanted, wanted_gradient = with_gradients(exact(z, labels), [z])
    assert max(seen) <= n**3 / 2
    tolerance = 1e-6 if name == "log_sigmoid" else 1e-12  # by quadrature
    assert relative_error(value, wanted) <= tolerance
    assert relative_error(gradient, wanted_gradient) <= tolerance


@UNCONVERGED
@pytest.mark.parametrize("setting", ["unbalanced", "across_repeated", "triplets_across"])
@pytest.mark.parametrize("rule", ["unrolled", "implicit", "envelope"])
def test_blocks_of_any_size_give_the_same(settings, setting, rule):
    batch = settings[setting]
    references = len(batch.embeddings if batch.ref_emb is None else batch.ref_emb)
    options = LOSS.soft | {"shaping": "squared_hinge", "gradient": rule, "n_iters": 30}
    value, gradient = result(LOSS, batch, **options)
    for anchors in (1, 2, 3, 4):
        budget = anchors * 64 * references**2
        streamed, streamed_gradient = result(LOSS, batch, **options, memory_budget=budget)
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


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("psi", ["linear", "log_sigmoid", "hinge", arctangent])
def test_value_needs_no_gradient(settings, guard, psi):
    batch = settings["unbalanced"]
    criterion = LOSS.criterion(**LOSS.soft, shaping=psi)
    with guard():
        value = batch.loss(criterion)
    assert not value.requires_grad
    assert torch.equal(value.clone(), batch.loss(criterion).detach())


def test_passes_gradcheck(settings):
    batch = settings["across_repeated"]
    criterion = LOSS.criterion(**LOSS.soft, shaping=arctangent, n_iters=3)

    def value(embeddings, ref_emb):
        return replace(batch, embeddings=embeddings, ref_emb=ref_emb).loss(criterion)

    assert torch.autograd.gradcheck(value, batch.leaves, fast_mode=True)


def test_infinite_slopes_where_no_triplet_is_do_no_harm(settings):
    # Every j = k has the margin 0, where this one is vertical.
    options = LOSS.soft | {"shaping": lambda t: -torch.sign(t) * t.abs().sqrt()}
    _, gradient = result(LOSS, settings["unbalanced"], **options)
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
