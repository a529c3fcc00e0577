"""Convolutions of small maps are convolutions, whatever computes them."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from tricouple.models.encoders import LARGEST, SmallMapConv2d, adapt_to_small_maps


def both(stride: int = 1, bias: bool = False) -> tuple[nn.Conv2d, SmallMapConv2d]:
    torch.manual_seed(0)
    usual = nn.Conv2d(6, 5, 3, stride=stride, padding=1, bias=bias).double()
    ours = adapt_to_small_maps(nn.Sequential(deepcopy(usual)))[0]
    assert isinstance(ours, SmallMapConv2d)
    return usual, ours


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (1, 3), (4, 1), (3, 3)])
@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("bias", [False, True])
def test_values_and_gradients_are_those_of_the_convolution(shape, stride, bias):
    usual, ours = both(stride, bias)
    images = torch.randn(4, 6, *shape, dtype=torch.float64)
    found = []
    for layer in (usual, ours):
        inputs = images.clone().requires_grad_()
        layer.zero_grad()
        outputs = layer(inputs)
        (outputs * torch.arange(outputs.numel()).view_as(outputs)).sum().backward()
        found.append([outputs.detach(), inputs.grad, *(p.grad.clone() for p in layer.parameters())])
    for expected, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, expected, rtol=1e-12, atol=1e-12)


def test_parameters_are_shared_and_keep_their_names():
    network = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1), nn.ReLU())
    before = dict(network.named_parameters())
    after = dict(adapt_to_small_maps(network).named_parameters())
    assert before.keys() == after.keys()
    assert all(before[name] is after[name] for name in before)


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, 3),
        nn.Conv2d(4, 4, 3, padding=1, groups=2),
        nn.Conv2d(4, 4, 3, padding=2, dilation=2),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="circular"),
        nn.Conv2d(4, 4, 3, stride=(1, 2), padding=1),
    ],
)
def test_other_convolutions_are_left_alone(layer):
    assert adapt_to_small_maps(nn.Sequential(layer))[0] is layer


def test_large_maps_take_the_usual_path(monkeypatch):
    _, ours = both()
    monkeypatch.setattr("tricouple.models.encoders.unfold", None)
    side = int(LARGEST**0.5) + 1
    assert ours(torch.randn(1, 6, side, side, dtype=torch.float64)).shape == (1, 5, side, side)
    with pytest.raises(TypeError):
        ours(torch.randn(1, 6, 2, 2, dtype=torch.float64))
