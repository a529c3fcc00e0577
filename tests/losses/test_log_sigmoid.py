"""Log-sigmoid by quadrature: within ``kernel_tol``, and the gradient of the value it gives."""

import inspect

import pytest
import torch
from torch import Tensor

import tricouple as tc
from conftest import classes, draw
from reference import relative_error, with_gradients
from tricouple.shaping import log_sigmoid

TOLERANCE = 1e-3
# τ and ε for c = 1/(τε) from 0.1 to 10 000.
SHARPNESS = [(1.0, 10.0), (1.0, 1.0), (0.1, 1.0), (0.1, 0.1), (0.02, 0.05), (0.01, 0.01)]


def scene(name: str) -> tuple[Tensor, ...]:
    """A batch: embeddings and labels, and those of references."""
    unbalanced, z = classes(5, 3, 1, 1), draw(10, 0)
    if name == "across":  # captions: identities repeat, one reference has none
        return z, unbalanced, draw(7, 1), torch.tensor([0, 0, 1, 2, 3, 3, 4])
    if name == "three":
        return z[:3], torch.tensor([0, 0, 1])
    if name == "outlier":
        z = torch.cat([-z.new_ones(1, 5), 1 + 0.2 * z[1:]])
    return z, unbalanced


def call(criterion, embeddings, labels, references=None, ref_labels=None):
    return criterion(embeddings, labels, ref_emb=references, ref_labels=ref_labels)


@pytest.mark.parametrize(("tau", "epsilon"), SHARPNESS)
@pytest.mark.parametrize("name", ["across", "three", "outlier"])
def test_default_loss_is_the_dense_one_within_a_thousandth(name, tau, epsilon):
    batch = scene(name)
    leaves = [part.requires_grad_() for part in batch if part.is_floating_point()]
    options = {"temperature": tau, "epsilon": epsilon, "shaping": "log_sigmoid", "n_iters": 4}
    value, gradient = with_gradients(call(tc.NegMMIOT(**options), *batch), leaves)
    wanted, slope = with_gradients(tc.ot.dense.neg_mmiot(*batch, **options), leaves)
    assert float((value - wanted).detach().abs()) <= TOLERANCE
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


def test_gradient_is_that_of_the_value_far_below_the_tolerance():
    z, labels, references, ref_labels = scene("across")
    z, references = z[:, :3].clone().requires_grad_(), references[:, :3]
    tau = torch.tensor(0.2, dtype=torch.float64, requires_grad=True)

    def loss(z: Tensor, tau: Tensor) -> Tensor:
        criterion = tc.NegMMIOT(tau, 0.3, n_iters=3, shaping="log_sigmoid", kernel_tol=1e-2)
        return call(criterion, z, labels, references, ref_labels)

    assert torch.autograd.gradcheck(loss, (z, tau), rtol=1e-5, atol=1e-6, fast_mode=True)


def test_defaults_are_a_thousandth_for_losses_and_a_millionth_for_plans():
    assert tc.NegMMIOT().kernel_tol == 1e-3
    assert inspect.signature(tc.ot.triplet_sinkhorn).parameters["kernel_tol"].default == 1e-6


def test_tolerance_that_the_dtype_cannot_reach_is_named():
    labels = torch.arange(90) % 3
    with pytest.raises(ValueError, match=r"kernel_tol .* got 1e-09"):
        tc.NegMMIOT(shaping="log_sigmoid", kernel_tol=1e-9)(torch.randn(90, 4), labels)


@pytest.mark.parametrize("epsilon", [10.0, 1000.0])
def test_large_epsilon_leaves_the_mean_cost(epsilon):
    z, labels = draw(12, 5).requires_grad_(), torch.arange(12) % 4
    options = {"temperature": 1 / 30, "epsilon": epsilon, "n_iters": 1, "shaping": "log_sigmoid"}
    found = with_gradients(tc.NegMMIOT(**options, kernel_tol=1e-9)(z, labels), [z])
    wanted = with_gradients(tc.ot.dense.neg_mmiot(z, labels, **options), [z])
    assert relative_error(found[0], wanted[0]) <= 1e-9
    assert relative_error(found[1], wanted[1]) <= 1e-5
