"""Three notions of a gradient, each against what defines it.

`unrolled` is autograd through the dense truncated algorithm, `implicit` through the dense algorithm
at convergence (both in tests/dense), `envelope` is ∂g/∂C = (P̃ − P)/ε at the final plan.
"""

import math

import pytest
import torch
from torch import nn

from reference import (
    relative_error,
    with_gradients,
)

AT_CONVERGENCE = {"n_iters": 1000, "tol": 1e-13}


def gradient_of(loss, batch, **options):
    criterion = loss.criterion(**loss.soft, **AT_CONVERGENCE, **options)
    return with_gradients(batch.loss(criterion), batch.leaves)[1]


@pytest.mark.parametrize("setting", ["balanced", "two_views", "three_views", "across_unique"])
def test_envelope_is_exact_for_equal_class_sizes(tempered_loss, settings, setting):
    batch = settings[setting]
    envelope = gradient_of(tempered_loss, batch, gradient="envelope")
    implicit = gradient_of(tempered_loss, batch, gradient="implicit")
    assert relative_error(envelope, implicit) <= 1e-10


@pytest.mark.parametrize("setting", ["unbalanced", "singleton", "triplets_within"])
def test_envelope_is_exact_for_unequal_class_sizes_with_target_marginals_alone(
    tempered_loss, settings, setting
):
    batch = settings[setting]
    for marginals in ("uniform", "target"):
        envelope, implicit = (
            gradient_of(tempered_loss, batch, gradient=gradient, marginals=marginals)
            for gradient in ("envelope", "implicit")
        )
        error = relative_error(envelope, implicit)
        assert error > 0.01 if marginals == "uniform" else error <= 1e-10


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


@pytest.mark.parametrize("mode", ["unrolled", "envelope"])
def test_temperature_gradient_is_the_slope_of_the_value(tempered_loss, settings, mode):
    batch = settings["balanced"]  # where the envelope is exact
    options = tempered_loss.soft | AT_CONVERGENCE | {"gradient": mode}
    tau = torch.tensor(0.5, dtype=torch.float64, requires_grad=True)
    criterion = tempered_loss.criterion(**options)
    with torch.no_grad():
        ends = [
            float(criterion(batch.embeddings, batch.labels, temperature=0.5 + step))
            for step in (1e-5, -1e-5)
        ]
    value = criterion(batch.embeddings, batch.labels, temperature=tau)
    (slope,) = torch.autograd.grad(value, tau)
    assert math.isclose(float(slope), (ends[0] - ends[1]) / 2e-5, rel_tol=1e-6)
