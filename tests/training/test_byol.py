"""BYOL as a method: what learns, what follows, and by how much."""

import copy
import math

import pytest
import torch
from torch import nn

from reference import relative_error
from tricouple_lab.training.byol import BYOL, momentum_at, negative_cosine, predictor_head


def method() -> BYOL:
    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4))
    return BYOL(network, predictor_head(4, hidden=8))


def views(n: int = 20) -> list[torch.Tensor]:
    source, *noise = torch.randn(3, n, 6, generator=torch.Generator().manual_seed(1))
    return [source + 0.3 * part for part in noise]


def test_loss_is_the_mean_of_both_directions():
    byol, (view0, view1) = method().eval(), views()
    cosines = [
        nn.functional.normalize(byol.predictor(byol.online(one)))
        * nn.functional.normalize(byol.target(other))
        for one, other in ((view0, view1), (view1, view0))
    ]
    wanted = -torch.cat(cosines).sum(1).mean()
    assert relative_error(byol.loss(view0, view1), wanted) <= 1e-6
    assert relative_error(byol.loss(view1, view0), wanted) <= 1e-6


def test_target_starts_as_a_copy_and_receives_no_gradient():
    byol, (view0, view1) = method(), views()
    for target, online in zip(byol.target.parameters(), byol.online.parameters(), strict=True):
        assert torch.equal(target, online)
        assert target.data_ptr() != online.data_ptr()
    byol.loss(view0, view1).backward()
    assert all(parameter.grad is None for parameter in byol.target.parameters())
    assert all(parameter.grad is not None for parameter in byol.trainable_parameters())
    learning = [*byol.online.parameters(), *byol.predictor.parameters()]
    assert {id(parameter) for parameter in byol.trainable_parameters()} == set(map(id, learning))


@pytest.mark.parametrize("momentum", [0.0, 0.9, 1.0])
def test_target_follows_as_a_moving_average(momentum):
    byol = method()
    with torch.no_grad():
        for parameter in byol.online.parameters():
            parameter.add_(torch.randn_like(parameter))
    before = copy.deepcopy(byol)
    byol.update_target(momentum)
    for target, old, online in zip(
        byol.target.parameters(),
        before.target.parameters(),
        before.online.parameters(),
        strict=True,
    ):
        assert torch.allclose(target, momentum * old + (1 - momentum) * online, atol=1e-7)
        assert not target.requires_grad
    for online, old in zip(byol.online.parameters(), before.online.parameters(), strict=True):
        assert torch.equal(online, old)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_method_learns_in_both_precisions(precision):
    byol, (view0, view1) = method(), views()
    optimiser = torch.optim.Adam(byol.trainable_parameters(), lr=1e-2)
    values = []
    for step in range(30):
        optimiser.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bfloat16"):
            loss = byol.loss(view0, view1)
        loss.backward()
        optimiser.step()
        byol.update_target(momentum_at(step, 30, start=0.9))
        values.append(float(loss.detach()))
    assert loss.dtype == torch.float32
    assert all(map(math.isfinite, values))
    assert values[-1] < values[0] - 0.1
    assert byol(view0).shape == (20, 4)


def test_momentum_rises_from_its_start_to_one():
    path = [momentum_at(step, 10) for step in range(11)]
    assert path[0] == pytest.approx(0.996)
    assert path[-1] == 1.0
    assert path == sorted(path)


@pytest.mark.parametrize("momentum", [-0.1, 1.5, math.nan])
def test_bad_momentum_is_named(momentum):
    with pytest.raises(ValueError, match=f"momentum.*{momentum}"):
        method().update_target(momentum)


def test_views_of_different_batches_are_refused():
    with pytest.raises(ValueError, match=r"view0 has 8 samples, view1 6"):
        method().loss(torch.randn(8, 6), torch.randn(6, 6))


def test_targets_receive_no_gradient():
    predictions, targets = (torch.randn(5, 3, requires_grad=True) for _ in range(2))
    negative_cosine(predictions, targets).backward()
    assert predictions.grad is not None
    assert targets.grad is None
