"""The encoder of the synthetic study."""

import pytest
import torch
from torch import nn

from tricouple.models.mlp import three_layer_mlp


def test_three_linear_layers_of_the_given_widths():
    encoder = three_layer_mlp(7, hidden=11, out_dim=3)
    shapes = [tuple(layer.weight.shape) for layer in encoder if isinstance(layer, nn.Linear)]
    assert shapes == [(11, 7), (11, 11), (3, 11)]


def test_an_embedding_depends_on_its_own_input_alone():
    encoder = three_layer_mlp(5, hidden=8, out_dim=4)
    inputs = torch.randn(6, 5)
    torch.testing.assert_close(encoder(inputs)[2:3], encoder(inputs[2:3]))


def test_widths_must_be_positive():
    with pytest.raises(ValueError, match="hidden must be at least 1, got 0"):
        three_layer_mlp(5, hidden=0, out_dim=4)
