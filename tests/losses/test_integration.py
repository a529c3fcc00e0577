"""The losses inside training code: compiled models, autocast, copies, checkpoints, optimisers."""

import copy
import io

import pytest
import torch
from torch import nn

import tricouple as tc
from conftest import UNCONVERGED
from reference import relative_error, with_gradients


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.GELU(), nn.Linear(16, 4))


INPUTS = torch.randn(12, 6, generator=torch.Generator().manual_seed(1))
LABELS = torch.arange(12) % 3


def flat_gradient(network):
    return torch.cat([parameter.grad.flatten() for parameter in network.parameters()])


@UNCONVERGED
@pytest.mark.parametrize("mode", ["unrolled", "implicit", "envelope"])
def test_loss_used_twice_in_one_graph_adds_up(loss, mode, settings):
    if mode == "envelope" and "uniformity" in loss.keywords:
        return  # which needs the plan's own gradient
    first, second = settings["unbalanced"], settings["across_repeated"]
    criterion = loss(gradient=mode)
    total = first.loss(criterion) + 3 * second.loss(criterion) + first.loss(criterion)
    leaves = first.leaves + second.leaves
    _, joint = with_gradients(total, leaves)
    alone = with_gradients(first.loss(criterion), first.leaves)[1]
    other = with_gradients(second.loss(criterion), second.leaves)[1]
    tolerance = 1e-8 if mode == "implicit" else 1e-13  # conjugate gradients stop at a residual
    assert relative_error(joint, torch.cat([2 * alone, 3 * other])) <= tolerance


def test_graph_may_be_walked_twice(loss, settings):
    batch = settings["unbalanced"]
    value = batch.loss(loss())
    (once,) = torch.autograd.grad(value, batch.leaves, retain_graph=True)
    (twice,) = torch.autograd.grad(value, batch.leaves)
    assert torch.equal(once, twice)


def learnable(loss, start=0.5):
    return loss(temperature=nn.Parameter(torch.tensor(start, dtype=torch.float64)))


def test_learnable_temperature_is_a_parameter_of_the_module(tempered_loss):
    assert [name for name, _ in learnable(tempered_loss).named_parameters()] == ["temperature"]
    assert list(tempered_loss().parameters()) == []


def test_copy_is_equal_and_independent(tempered_loss, settings):
    batch = settings["unbalanced"]
    original = learnable(tempered_loss)
    twin = copy.deepcopy(original)
    value = batch.loss(original)
    assert torch.equal(batch.loss(twin), value)
    with torch.no_grad():
        next(twin.parameters()).fill_(0.9)
    assert torch.equal(batch.loss(original), value)
    assert relative_error(batch.loss(twin), value) > 1e-3


def test_checkpoint_restores_the_temperature(tempered_loss, settings):
    batch = settings["unbalanced"]
    trained, fresh = learnable(tempered_loss, 0.3), learnable(tempered_loss, 0.5)
    assert relative_error(batch.loss(fresh), batch.loss(trained)) > 1e-3
    file = io.BytesIO()
    torch.save(trained.state_dict(), file)
    file.seek(0)
    fresh.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(batch.loss(fresh), batch.loss(trained))
    module = tempered_loss()
    assert module.load_state_dict(module.state_dict()).missing_keys == []


def test_module_follows_to_double(tempered_loss, settings):
    batch = settings["unbalanced"].to(torch.float32)
    criterion = tempered_loss(temperature=nn.Parameter(torch.tensor(0.5)))
    single = batch.loss(criterion)
    double = batch.to(torch.float64).loss(criterion.double())
    assert double.dtype == torch.float64
    assert relative_error(single, double) <= 1e-5


@UNCONVERGED
@pytest.mark.parametrize("module", [tc.NegMMIOT, tc.PushPull])
@pytest.mark.parametrize("mode", ["unrolled", "implicit", "envelope"])
def test_descent_separates_the_classes(module, mode):
    rows = nn.Parameter(torch.randn(12, 3, generator=torch.Generator().manual_seed(0)))
    options = (
        {"epsilon": 0.5} if module is tc.NegMMIOT else {"epsilon_pos": 0.5, "epsilon_neg": 0.5}
    )
    criterion = module(temperature=1.0, gradient=mode, **options)
    optimiser = torch.optim.Adam([rows], lr=0.1)
    for _ in range(150):
        optimiser.zero_grad()
        criterion(rows, LABELS).backward()
        optimiser.step()
    unit = nn.functional.normalize(rows.detach())
    similarity = unit @ unit.T
    same = LABELS[:, None] == LABELS
    # Three balanced classes end at the vertices of a triangle: α = 1, β = −1/2.
    assert similarity[same].min() > 0.99
    assert (similarity[~same] + 0.5).abs().max() < 0.05
