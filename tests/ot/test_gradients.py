"""Three notions of a gradient, each against what defines it, in every setting.

`unrolled` is autograd through the dense truncated algorithm, `implicit` is autograd through the
dense algorithm at convergence, `envelope` is ∂g/∂C = (P̃ − P)/ε at the final plan.
"""

import pytest
import torch
from torch import nn

from reference import CONVERGED, relative_error, with_gradients

MARGINALS = ["uniform", "target"]
AT_CONVERGENCE = {"n_iters": 5000, "tol": 1e-13}


@pytest.mark.parametrize("marginals", MARGINALS)
def test_implicit_gradient_is_exact_at_convergence(loss, batch, marginals):
    options, leaves = loss.soft | {"marginals": marginals}, batch.leaves
    if "temperature" in options:  # it receives its gradient as well
        options["temperature"] = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
        leaves = [*leaves, options["temperature"]]
    criterion = loss.criterion(**options, **AT_CONVERGENCE, gradient="implicit")
    value, gradient = with_gradients(batch.loss(criterion), leaves)
    wanted, wanted_gradient = with_gradients(
        loss.dense(batch, **options, n_iters=CONVERGED), leaves
    )
    assert relative_error(value, wanted) <= 1e-11
    assert relative_error(gradient, wanted_gradient) <= 1e-8
    if "temperature" in options:
        assert relative_error(gradient[-1], wanted_gradient[-1]) <= 1e-8


def test_oracle_has_converged_where_it_is_taken_for_converged(loss, batch):
    options = loss.soft | {"marginals": "target"}
    earlier = loss.dense(batch, **options, n_iters=CONVERGED * 2 // 3)
    assert relative_error(loss.dense(batch, **options, n_iters=CONVERGED), earlier) <= 1e-14


def test_envelope_gradient_is_the_papers_formula(plain_loss, batch):
    for marginals in MARGINALS:
        options = plain_loss.sharp | {"marginals": marginals, "gradient": "envelope", "n_iters": 6}
        ours = with_gradients(batch.loss(plain_loss.criterion(**options)), batch.leaves)
        wanted = with_gradients(plain_loss.dense(batch, **options), batch.leaves)
        assert relative_error(ours[0], wanted[0]) <= 1e-12
        assert relative_error(ours[1], wanted[1]) <= 1e-12


def gradient_of(loss, batch, **options):
    criterion = loss.criterion(**loss.soft, **AT_CONVERGENCE, **options)
    return with_gradients(batch.loss(criterion), batch.leaves)[1]


@pytest.mark.parametrize("setting", ["balanced", "two_views", "three_views", "across_unique"])
def test_envelope_is_exact_for_equal_class_sizes(tempered_loss, settings, setting):
    batch = settings[setting]
    envelope = gradient_of(tempered_loss, batch, gradient="envelope")
    implicit = gradient_of(tempered_loss, batch, gradient="implicit")
    assert relative_error(envelope, implicit) <= 1e-10


def test_envelope_is_exact_for_the_targets_own_marginals(tempered_loss, batch):
    envelope = gradient_of(tempered_loss, batch, gradient="envelope", marginals="target")
    implicit = gradient_of(tempered_loss, batch, gradient="implicit", marginals="target")
    assert relative_error(envelope, implicit) <= 1e-10


@pytest.mark.parametrize("setting", ["unbalanced", "singleton", "triplets_within"])
def test_envelope_is_wrong_for_unequal_class_sizes(tempered_loss, settings, setting):
    batch = settings[setting]
    envelope = gradient_of(tempered_loss, batch, gradient="envelope")
    implicit = gradient_of(tempered_loss, batch, gradient="implicit")
    assert relative_error(envelope, implicit) > 0.01


@pytest.mark.parametrize("marginals", MARGINALS)
def test_unrolled_gradient_becomes_the_implicit_one(loss, settings, marginals):
    batch = settings["singleton"]
    unrolled = gradient_of(loss, batch, gradient="unrolled", marginals=marginals)
    implicit = gradient_of(loss, batch, gradient="implicit", marginals=marginals)
    assert relative_error(unrolled, implicit) <= 1e-8


def temperature_gradients(loss, batch, options, temperature):
    """Gradients to embeddings and temperature, ours and the oracle's."""
    leaves = [*batch.leaves, temperature]
    ours = with_gradients(batch.loss(loss.criterion(**options)), leaves)[1]
    exact = temperature.detach().double().requires_grad_()
    dense = loss.dense(batch, **options | {"temperature": exact})
    return ours, with_gradients(dense, [*batch.leaves, exact])[1]


@pytest.mark.parametrize("marginals", MARGINALS)
@pytest.mark.parametrize("mode", ["unrolled", "envelope"])
def test_temperature_receives_its_exact_gradient(tempered_loss, batch, marginals, mode):
    temperature = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    options = tempered_loss.soft | {"marginals": marginals, "gradient": mode, "n_iters": 5}
    options["temperature"] = temperature
    ours, wanted = temperature_gradients(tempered_loss, batch, options, temperature)
    assert relative_error(ours[-1], wanted[-1]) <= 1e-12
    assert relative_error(ours, wanted) <= 1e-12


@pytest.mark.parametrize("shape", [(), (1,)])
def test_temperature_may_be_computed_from_a_learnable_scale(tempered_loss, settings, shape):
    # As in CLIP: τ = exp(−logit_scale).
    batch = settings["across_repeated"]
    scale = torch.full(shape, 1.0, dtype=torch.float64, requires_grad=True)
    options = tempered_loss.soft | {"n_iters": 5}
    ours = batch.loss(tempered_loss.criterion(**options | {"temperature": (-scale).exp()}))
    dense = tempered_loss.dense(batch, **options | {"temperature": (-scale).exp()})
    (gradient,) = torch.autograd.grad(ours, scale)
    assert ours.ndim == 0
    assert relative_error(gradient, torch.autograd.grad(dense.sum(), scale)[0]) <= 1e-12


def test_temperature_learns_alone_when_embeddings_are_frozen(tempered_loss, settings):
    batch = settings["singleton"]
    temperature = nn.Parameter(torch.tensor(0.5, dtype=torch.float64))
    criterion = tempered_loss.criterion(**tempered_loss.soft | {"temperature": temperature})
    (joint,) = torch.autograd.grad(batch.loss(criterion), temperature)
    (alone,) = torch.autograd.grad(criterion(batch.embeddings.detach(), batch.labels), temperature)
    assert relative_error(alone, joint) <= 1e-14


@pytest.mark.usefixtures("tiny_batches")
def test_float32_temperature_gradient_is_accurate(tempered_loss, batch):
    batch = batch.to(torch.float32)
    temperature = nn.Parameter(torch.tensor(0.1))
    options = tempered_loss.sharp | {"temperature": temperature}
    ours, wanted = temperature_gradients(tempered_loss, batch, options, temperature)
    assert relative_error(ours[-1], wanted[-1]) <= 1e-5
    assert relative_error(ours, wanted) <= 1e-5


def test_temperature_passes_gradcheck(tempered_loss, settings):
    batch = settings["across_repeated"]

    def value(temperature):
        options = tempered_loss.soft | {"temperature": temperature, "n_iters": 4}
        return batch.loss(tempered_loss.criterion(**options))

    temperature = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(value, [temperature])
