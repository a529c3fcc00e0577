"""Log-sigmoid by squaring: the dense loss within `kernel_tol`, and the gradient of that value."""

import inspect
import math

import pytest
import torch
from torch import Tensor

import tricouple as tc
from conftest import UNCONVERGED, classes, draw
from reference import dense_neg_mmiot, relative_error, with_gradients
from tricouple.numeric import uniform
from tricouple.ot.engine import LogSigmoidTriplets, Sweeps
from tricouple.ot.gradients import envelope, unrolled
from tricouple.ot.sweeps import native
from tricouple.ot.sweeps.contract import Masses
from tricouple.ot.sweeps.kernels import Matrix
from tricouple.ot.sweeps.log_sigmoid import Blocks, rule_of
from tricouple.ot.sweeps.log_sigmoid_apart import ApartTriplet
from tricouple.ot.sweeps.triplet_any import AnchorTriplet
from tricouple.shaping import log_sigmoid

TOLERANCE = 1e-3
# τ and ε for c = 1/(τε) from 0.1 to 10 000.
SHARPNESS = [(1.0, 10.0), (1.0, 1.0), (0.1, 1.0), (0.1, 0.1), (0.02, 0.05), (0.01, 0.01)]


@pytest.fixture(params=["compiled", "pytorch"])
def language(request, monkeypatch) -> str:
    if request.param == "pytorch":
        monkeypatch.setattr(native, "compiled", None)
    elif native.compiled is None:
        pytest.fail("the compiled module was not built: pip install -e .")
    return request.param


def scene(name: str) -> dict[str, Tensor]:
    """A batch, as the arguments of a loss."""
    unbalanced = classes(5, 3, 1, 1)
    z = draw(10, 0)
    if name == "across":  # captions: identities repeat, one reference has none
        ids = torch.tensor([0, 0, 1, 2, 3, 3, 4])
        return {"ref_emb": draw(7, 1), "ref_labels": ids, "embeddings": z, "labels": unbalanced}
    if name == "three":
        return {"embeddings": z[:3], "labels": torch.tensor([0, 0, 1])}
    if name == "duplicates":
        z = z[torch.tensor([0, 0, 1, 1, 2, 3, 4, 4, 5, 6])]
    if name == "outlier":
        z = torch.cat([-z.new_ones(1, 5), 1 + 0.2 * z[1:]])
    return {"embeddings": z, "labels": unbalanced}


@pytest.mark.parametrize(("tau", "epsilon"), SHARPNESS)
@pytest.mark.parametrize("name", ["unbalanced", "across", "three", "duplicates", "outlier"])
def test_loss_is_the_dense_one_within_its_tolerance(name, tau, epsilon, language):
    batch = scene(name)
    leaves = [batch[key].requires_grad_() for key in ("embeddings", "ref_emb") if key in batch]
    options = {"temperature": tau, "epsilon": epsilon, "shaping": "log_sigmoid", "n_iters": 4}
    value, gradient = with_gradients(tc.NegMMIOT(**options)(**batch), leaves)
    wanted, slope = with_gradients(dense_neg_mmiot(**batch, **options), leaves)
    assert float((value - wanted).detach().abs()) <= TOLERANCE
    # Forces of size c balance in part, and with three samples altogether.
    assert float((gradient - slope).norm()) <= TOLERANCE * max(float(slope.norm()), 1 / tau)


@pytest.mark.parametrize(
    ("rule", "size", "dtype"),
    [
        ("unrolled", 200, torch.float32),
        ("unrolled", 80, torch.float64),
        ("implicit", 80, torch.float32),
        ("envelope", 80, torch.float32),
    ],
)
@UNCONVERGED
def test_larger_batches_in_any_language_and_storage(rule, size, dtype, language):
    z, labels = draw(size, 2, dim=16), torch.arange(size) % 30
    options = {"temperature": 0.1, "epsilon": 0.2, "n_iters": 2, "gradient": rule}
    exact = tc.NegMMIOT(**options, shaping=log_sigmoid)
    wanted, slope = with_gradients(exact(z.requires_grad_(), labels), [z])
    z = z.detach().to(dtype).requires_grad_()
    for memory in ("matrices", "streamed"):
        criterion = tc.NegMMIOT(**options, shaping="log_sigmoid", memory=memory)
        value, gradient = with_gradients(criterion(z, labels), [z])
        assert float((value - wanted).detach().abs()) <= TOLERANCE
        assert relative_error(gradient, slope) <= TOLERANCE


@pytest.mark.parametrize(("tau", "epsilon"), [(0.1, 0.005), (0.2, 0.003)])
def test_no_weight_of_a_block_underflows_at_small_epsilon(tau, epsilon, language):
    # e^{m(v_q − v)} and B = e^{−m} are both near the end of float64's range: of blocks that are too
    # long the first nodes are lost, and a loss that is 0.02 off passes every other check.
    z, labels = draw(40, 3, dim=8).requires_grad_(), torch.arange(40) % 8
    options = {"temperature": tau, "epsilon": epsilon, "n_iters": 3}
    exact = tc.NegMMIOT(**options, shaping=log_sigmoid)
    wanted, slope = with_gradients(exact(z, labels), [z])
    value, gradient = with_gradients(tc.NegMMIOT(**options, shaping="log_sigmoid")(z, labels), [z])
    assert float((value - wanted).detach().abs()) <= TOLERANCE
    assert relative_error(gradient, slope) <= TOLERANCE


@pytest.mark.parametrize("power", [0.1, 1.0, 10.0, 33.0, 100.0, 300.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_of_a_block_are_within_the_range_of_their_dtype(power, dtype):
    rule = rule_of(power, TOLERANCE)
    blocks, tiny = Blocks.of(rule, TOLERANCE, dtype, 512), torch.finfo(dtype).tiny
    if blocks is None:  # not even B is
        assert -math.exp(rule.right) < math.log(tiny)
        return
    spread = math.log(blocks.scales[-1]) - math.log(blocks.scales[0])
    assert spread + math.exp(rule.right) <= -math.log(tiny) + 1e-9


def test_gradient_is_that_of_the_value_far_below_the_tolerance(language):
    batch = scene("unbalanced" if language == "pytorch" else "across")
    z = batch.pop("embeddings")[:, :3].clone().requires_grad_()
    if "ref_emb" in batch:
        batch["ref_emb"] = batch["ref_emb"][:, :3]
    tau = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)

    def loss(z: Tensor, tau: Tensor) -> Tensor:
        return tc.NegMMIOT(tau, 0.3, n_iters=3, shaping="log_sigmoid", kernel_tol=1e-2)(z, **batch)

    assert torch.autograd.gradcheck(loss, (z, tau), rtol=1e-5, atol=1e-6)


def test_defaults_are_a_thousandth_for_losses_and_a_millionth_for_plans():
    assert tc.NegMMIOT().kernel_tol == 1e-3
    assert inspect.signature(tc.ot.triplet_sinkhorn).parameters["kernel_tol"].default == 1e-6


@pytest.mark.parametrize("memory", ["matrices", "streamed"])
def test_a_batch_beyond_float32_is_solved_in_float64_and_none_is_refused(memory):
    # One sample opposite to all others, at c = 100: its scaling is beyond float32, and "j ≠ k"
    # leaves next to nothing.
    z = torch.cat([-torch.ones(1, 16), 1 + 0.3 * draw(99, 3, dim=16).float()]).requires_grad_()
    labels = torch.arange(100) % 20
    criterion = tc.NegMMIOT(0.1, 0.1, n_iters=2, shaping="log_sigmoid", memory=memory)
    value, gradient = with_gradients(criterion(z, labels), [z])
    exact = tc.NegMMIOT(0.1, 0.1, n_iters=2, shaping=log_sigmoid)
    wide = z.detach().double().requires_grad_()
    wanted, slope = with_gradients(exact(wide, labels), [wide])
    assert float((value - wanted).detach().abs()) <= TOLERANCE
    assert relative_error(gradient, slope) <= TOLERANCE


@pytest.mark.skipif(native.compiled is None, reason="built without a compiler")
@pytest.mark.parametrize("within", [True, False])
def test_sums_with_the_largest_term_apart_are_the_exact_ones(within):
    # All sums of Apart, with one reference that all anchors are far from.
    x = (
        10
        * torch.nn.functional.normalize(draw(12, 6))
        @ torch.nn.functional.normalize(draw(9, 7)).T
    )
    x = torch.cat([x, x.new_full((12, 1), -30.0)], 1)
    x = x[:10] if within else x
    problem, n = LogSigmoidTriplets(within, 0.2, 1e-8), len(x)
    how = Sweeps(3, None, "unrolled")
    masses = Masses(uniform([n, 10, 10], x), (n, 10, 10), x.dtype)
    *_, apart, exact = problem.couplings(Matrix(x), 1.0, how)
    assert isinstance(apart, ApartTriplet)
    assert isinstance(exact, AnchorTriplet)
    found, wanted = apart.solve(masses, 3, None), exact.solve(masses, 3, None)
    torch.testing.assert_close(found.potentials, wanted.potentials, rtol=1e-7, atol=1e-7)
    cotangents = draw(n + 20, 8, dim=1)[:, 0].split((n, 10, 10))
    for rule in (unrolled, envelope):
        slopes, exact_slopes = (
            torch.cat([patch.values.clone() for patch in rule(solution, cotangents)])
            for solution in (found, wanted)
        )
        assert relative_error(slopes, exact_slopes) <= 1e-6


def test_terms_come_by_squaring_and_are_few():
    rule = rule_of(10.0, 1e-3)
    assert 2 ** (1 / rule.splits) == pytest.approx(torch.exp(torch.tensor(rule.step)).item())
    blocks = Blocks.of(rule, 1e-3, torch.float32, 512)
    assert blocks is not None
    assert len(blocks.scales) == 18  # of which two are exponentials
    ends = torch.tensor([-10.0, 10.0], dtype=torch.float64)
    assert int(rule.nodes(*ends)[1]) <= 70
    assert Blocks.of(rule_of(1000.0, 1e-3), 1e-3, torch.float64, 512) is None  # e^{−m} underflows


def test_factors_are_never_stored(monkeypatch):
    largest = 0
    make = torch.Tensor.new_empty

    def new_empty(self, *shape, **options):
        nonlocal largest
        made = make(self, *shape, **options)
        largest = max(largest, made.numel())
        return made

    monkeypatch.setattr(torch.Tensor, "new_empty", new_empty)
    z = draw(150, 4, dim=16).float().requires_grad_()
    tc.NegMMIOT(shaping="log_sigmoid", n_iters=1)(z, torch.arange(150) % 9).backward()
    assert 0 < largest <= 150 * 150 * 2


def test_mean_cost_counts_every_triplet_once(language):
    problem = LogSigmoidTriplets(True, 1.0, 1e-8)
    z = torch.nn.functional.normalize(draw(12, 5))
    positives, negatives = torch.rand(2, 12, 12, dtype=torch.float64).round_()
    weights = lambda _: (positives, negatives)  # noqa: E731
    ((sums, patch),) = problem.costs(z, z, 30.0, weights, slice(0, 12))
    x = (30 * z @ z.T).requires_grad_()
    costs = log_sigmoid(x[:, :, None] - x[:, None, :])
    exact = (costs * positives[:, :, None] * negatives[:, None, :]).sum((1, 2))
    torch.testing.assert_close(sums, exact.detach(), rtol=1e-9, atol=1e-9)
    (slopes,) = torch.autograd.grad(exact.sum(), x)
    torch.testing.assert_close(patch.values, slopes, rtol=1e-7, atol=1e-7)
